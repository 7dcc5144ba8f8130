"""`headstart template …`: what sandboxes are started from, built once."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.sandbox.options import EnvOption, JsonOption, as_json, mount, variable
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_json, say, show, table
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.sandbox.templates import TemplateOrder, TemplateRecord, TemplateStore

__all__ = ["app"]

NameArgument = Annotated[str, typer.Argument(help="The template's name.")]

_HOST_IS_THERE = "the host's system folders, and an empty home"

app = typer.Typer(help="Build what sandboxes are started from.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command("build")
def template_build(  # noqa: PLR0913 (a command's options)
    name: NameArgument,
    *,
    source: Annotated[
        str,
        typer.Option("--from", metavar="host|FOLDER|ARCHIVE", help="Its root: the host's system folders, or another."),
    ] = "host",
    setup: Annotated[
        list[str] | None, typer.Option("--setup", metavar="LINE", help="Run it once, and keep what it writes.")
    ] = None,
    ready: Annotated[
        str | None, typer.Option("--ready", metavar="LINE", help="It has to succeed, else nothing is built.")
    ] = None,
    env: EnvOption = None,
    mounts: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="PATH[:MODE]", help="While it is built: ro (the default), rw or overlay."),
    ] = None,
    network: Annotated[str, typer.Option(help="While it is built: none or host.")] = "none",
    memory_mb: Annotated[int, typer.Option("--memory", metavar="MB", help="The most building may use.")] = 2_000,
    disk_mb: Annotated[int, typer.Option("--disk", metavar="MB", help="The most building may write.")] = 1_000,
    timeout_s: Annotated[float | None, typer.Option("--timeout", metavar="S", help="How long a line may take.")] = None,
    state_dir: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Build a template, in place of one of that name; if it fails, that one stays as it was."""
    import anyio

    from headstart.sandbox import SandboxOptions
    from headstart.sandbox.templates import TemplateOrder

    options = SandboxOptions(
        mounts=dict(mount(each) for each in mounts or ()),
        network=network,
        memory_mb=memory_mb,
        disk_mb=disk_mb,
        env=dict(variable(each) for each in env or ()),
    )
    order = TemplateOrder(
        name=name, source=source, setup=tuple(setup or ()), ready=ready, options=options, timeout_s=timeout_s
    )
    record = anyio.run(_build, order, state_dir_of(state_dir))
    if as_json(asked=json):
        print_json(_plain(record, None))
    else:
        say(f"template {name} is there: headstart sandbox run --template {name} …")


async def _build(order: TemplateOrder, state: Path) -> TemplateRecord:
    from headstart.sandbox import Sandboxes

    async with Sandboxes.open(state_dir=state) as boxes:
        return await boxes.build_template(order, tell=say, on_output=_pass_on)


async def _pass_on(chunk: bytes) -> None:
    sys.stderr.buffer.write(chunk)
    sys.stderr.flush()


@app.command("list")
def template_list(*, state_dir: StateOption = None, json: JsonOption = False) -> None:
    """List the templates."""
    store = _store(state_dir)
    found = [_looked_at(store, name) for name in store.names()]
    if as_json(asked=json):
        print_json({"templates": [_short(name, record, damage) for name, record, damage in found]})
        return
    rows = table("name", "from", "set-up", "size", "built", "")
    rows.add_row("host", _HOST_IS_THERE, "", "", "", "")
    for name, record, damage in found:
        if record is None:
            rows.add_row(name, "", "", "", "", f"damaged: {damage}")
        else:
            rows.add_row(
                name,
                _from(record),
                f"{len(record.setup)} lines" if record.setup else "",
                f"{_size_bytes(record) / 1e6:,.1f} MB",
                _when(record),
                f"damaged: {damage}" if damage else "",
            )
    show(rows)


@app.command("inspect")
def template_inspect(name: NameArgument, *, state_dir: StateOption = None, json: JsonOption = False) -> None:
    """Say what is known of a template."""
    if name == "host":
        raise ConfigError(f"'host' is nothing that was built: {_HOST_IS_THERE}", where="template", hint="name another")
    store = _store(state_dir)
    record = store.read(name)
    damage = store.damage(record)
    if as_json(asked=json):
        print_json(_plain(record, damage))
        return
    rows = table("", "", header=False)
    for key, value in _told(record, damage):
        rows.add_row(key, value)
    show(rows)


@app.command("remove")
def template_remove(name: NameArgument, *, state_dir: StateOption = None) -> None:
    """Remove a template, and what no other one needs. Sandboxes that run on it go on."""
    if name == "host":
        raise ConfigError("'host' is always there", where="template", hint="name another")
    _store(state_dir).remove(name)


def _store(state: Path | None) -> TemplateStore:
    from headstart.sandbox.templates import TemplateStore

    return TemplateStore(state_dir_of(state) / "templates")


def _looked_at(store: TemplateStore, name: str) -> tuple[str, TemplateRecord | None, str | None]:
    try:
        record = store.read(name)
    except ConfigError as error:
        return name, None, str(error)
    return name, record, store.damage(record)


def _plain(record: TemplateRecord, damage: str | None) -> dict[str, Any]:
    return {
        **record.model_dump(mode="json", exclude={"version", "login_env"}),
        "size_bytes": _size_bytes(record),
        "environment": record.environment,
        "damage": damage,
    }


def _short(name: str, record: TemplateRecord | None, damage: str | None) -> dict[str, Any]:
    if record is None:
        return {"name": name, "damage": damage}
    return {
        "name": name,
        "root": record.root.model_dump(mode="json"),
        "setup": len(record.setup),
        "size_bytes": _size_bytes(record),
        "built_s": record.built_s,
        "damage": damage,
    }


def _told(record: TemplateRecord, damage: str | None) -> list[tuple[str, str]]:
    from headstart.sandbox.templates.record import ArchiveRoot

    told = [("name", record.name), ("from", _from(record))]
    if isinstance(record.root, ArchiveRoot):
        told += [
            ("digest", f"sha256:{record.root.digest}"),
            ("root", f"{record.root.size_bytes / 1e6:,.1f} MB in {record.root.files:,} files and folders"),
        ]
        if record.root.left_out:
            told.append(("left out", f"{record.root.left_out:,} devices, FIFOs and the like"))
    told += [("set-up", line) for line in record.setup]
    if record.layer is not None:
        told.append(("written", f"{record.layer.size_bytes / 1e6:,.1f} MB in {record.layer.files:,} files and folders"))
    if record.ready is not None:
        told.append(("ready", record.ready))
    told += [("built with", f"{path} ({mode})") for path, mode in record.mounts.items()]
    if record.network != "none":
        told.append(("built with", f"network {record.network}"))
    told += [("environment", f"{name}={value}") for name, value in sorted(record.environment.items())]
    told.append(("built", _when(record)))
    return [*told, ("damaged", damage)] if damage else told


def _from(record: TemplateRecord) -> str:
    return "host" if record.root.kind == "host" else str(record.root.path)


def _size_bytes(record: TemplateRecord) -> int:
    """Return what a template takes on the disk."""
    root = record.root.size_bytes if record.root.kind == "archive" else 0
    return root + (record.layer.size_bytes if record.layer is not None else 0)


def _when(record: TemplateRecord) -> str:
    return datetime.fromtimestamp(record.built_s).astimezone().strftime("%Y-%m-%d %H:%M")
