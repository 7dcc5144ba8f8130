"""Choose from what a server starts, and check the choice: forked, it must be what it is cold.

1. Start it cold under a recorder: its lists, one READ call, and what it has imported.
2. Import the same in a preloader that is only looked at: what did importing read, write, start,
   draw?
3. Run its own code up to its event loop in another such preloader: would it do there what each
   start must do anew? If not, that part is the zygote's, too.
4. Prepare a real zygote and start two sandboxes from it: lists and call must equal the cold ones.
   Where they do not, try once more with a zygote that only imports.

Whatever speaks against it makes the form `cold`, with the reason in plain words. A backend
is used through its contract only, so what was checked is what will run. The recorder and
the preloaders of steps 2 and 3 are ordinary commands in sandboxes; they reach us over a
socket that they are born with, so that nothing of a check is ever on the disk.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, Identity, Mount, Preload, Prepared, RunningSandbox, Template
from headstart.backends.zygote import (
    GUEST_DIR,
    ColdReason,
    EntryPlan,
    PreloadReport,
    Recording,
    ZygoteProcess,
    audit_command,
    fingerprint,
    plan_entry,
    record_command,
    take_recording,
)
from headstart.clock import Clock, SystemClock
from headstart.config.model import EffectName, WarmupCall
from headstart.core.events import PrepareForm
from headstart.errors import BackendError
from headstart.ids import IdSource, RandomIds, SandboxId
from headstart.runtime.handshake import Lists
from headstart.runtime.store import FormChoice
from headstart.runtime.zygote_reasons import reason_to_start_cold, reason_to_stay_before_main
from headstart.runtime.zygote_trial import Trial, TrialFailed, difference, reading_call, try_server

__all__ = ["CheckedForm", "FormCheck", "choose_form", "restore_form"]

LAYOUT = 3
"""Of what `CheckedForm.stored` remembers; another number there means: choose again."""
MORE_AUDITS = 4
"""How often imports are repeated to get rid of what threads and random draws speak against."""
ADVANCE_TIMEOUT_S = 20.0
"""What takes longer to come to its event loop is waiting for something."""
_CONTROL = 3
"""Where a guest finds its control socket: the first descriptor after its stdio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """How to choose.

    Attributes:
        warmup: The READ call to compare; else the first tool that only reads and needs nothing.
        effects: The operator's word on which tools only read; it goes before a tool's own.
        session_env: Names whose values differ between sessions.
        timeout_s: For all of it; longer means cold.
    """

    backend: Backend
    warmup: WarmupCall | None = None
    effects: Mapping[str, EffectName] = field(default_factory=dict[str, EffectName])
    session_env: tuple[str, ...] = ()
    timeout_s: float = 180.0
    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=RandomIds)

    def choose_call(self, lists: Lists) -> WarmupCall | None:
        """Return the READ call to compare, if there is one."""
        return self.warmup or reading_call(lists, self.effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedForm:
    """What was chosen.

    Attributes:
        reason: Plain words for `init`, `status` and the trace.
        preload: How the zygote is made; None for cold.
        cold_start_s / zygote_start_s: From creating the sandbox to all lists read, as seen
            while checking; None where it was not measured.
        files / fingerprint: What it depends on; another fingerprint means: choose again.
        prepared: The checked zygote itself, for the caller to keep and to close.
    """

    form: PrepareForm
    reason: str
    preload: Preload | None = None
    cold_start_s: float | None = None
    cold_cpu_s: float | None = None
    cold_memory_bytes: int | None = None
    zygote_start_s: float | None = None
    zygote_cpu_s: float | None = None
    zygote_memory_bytes: int | None = None
    files: tuple[str, ...] = ()
    fingerprint: str = ""
    prepared: Prepared | None = None

    def stored(self) -> FormChoice:
        """Return what is worth remembering, as plain data; `restore_form` reads it."""
        details = asdict(replace(self, prepared=None))
        for name in ("form", "reason", "prepared"):
            del details[name]
        return FormChoice(form=self.form, reason=self.reason, details={"layout": LAYOUT, **details})


def restore_form(stored: FormChoice) -> CheckedForm | None:
    """Return the remembered choice, or None if the program's files (or what is remembered) have changed since.

    Blocking: looks at every file that was imported, about 2 µs each.
    """
    if stored.details.get("layout") != LAYOUT:
        return None
    details: Mapping[str, Any] = stored.details
    if details["files"] and fingerprint(details["files"]) != details["fingerprint"]:
        return None
    told: Mapping[str, Any] | None = details["preload"]
    preload = None
    if told is not None:
        words = {name: tuple(told[name]) for name in ("modules", "entry", "args", "options")}
        preload = Preload(interpreter=told["interpreter"], cwd=told["cwd"], advance=told["advance"], **words)
    plain = {name: value for name, value in details.items() if name not in ("layout", "preload", "files")}
    return CheckedForm(form=stored.form, reason=stored.reason, preload=preload, files=tuple(details["files"]), **plain)


class _StartsCold(Exception):
    """Something speaks against a zygote; the text says what."""


async def choose_form(template: Template, check: FormCheck) -> CheckedForm:
    """Choose and check; never raises for what the program does, only for what the backend cannot do.

    Cancelled, nothing is left running.
    """
    known: dict[str, Any] = {}
    try:
        with anyio.fail_after(check.timeout_s):
            return await _choose(template, check, known)
    except _StartsCold as reason:
        return CheckedForm(form=PrepareForm.COLD, reason=str(reason), **known)
    except TimeoutError:
        return CheckedForm(
            form=PrepareForm.COLD, reason=f"checking a zygote took longer than {check.timeout_s:g} s", **known
        )


async def _choose(template: Template, check: FormCheck, known: dict[str, Any]) -> CheckedForm:
    if not check.backend.capabilities.zygotes:
        raise _StartsCold(f"the {check.backend.name} backend cannot fork processes here")
    plan = await anyio.to_thread.run_sync(plan_entry, template.command)
    if isinstance(plan, ColdReason):
        raise _StartsCold(plan.text)
    recording, cold = await _record(template, check, plan)
    files = (plan.interpreter, *(word for word in plan.entry if word.startswith("/")), *recording.files)
    known |= {
        "files": files,
        "fingerprint": await anyio.to_thread.run_sync(fingerprint, files),
        "cold_start_s": cold.start_s,
        "cold_cpu_s": cold.usage.cpu_s,
        "cold_memory_bytes": cold.usage.memory_bytes,
    }
    report, modules = await _audit_what_forks_may_share(template, check, plan, recording.modules)
    reason = reason_to_start_cold(recording, report, check.session_env)
    if reason is not None:
        raise _StartsCold(reason)
    early, later = plan.preload(modules, advance=True), plan.preload(modules)
    why_not = await _reason_not_to_advance(template, check, plan, early, recording)
    proof: _Proof | None = None
    if why_not is None:
        try:
            proof = await _prove(replace(template, preload=early), check, cold)
        except _StartsCold as reason:
            why_not = str(reason)
    if proof is None:
        proof = await _prove(replace(template, preload=later), check, cold)
    return CheckedForm(
        form=PrepareForm.ZYGOTE,
        reason=_praise(recording, report, modules, why_not),
        preload=proof.prepared.template.preload,
        zygote_start_s=proof.forked.start_s,
        zygote_cpu_s=proof.forked.usage.cpu_s,
        zygote_memory_bytes=proof.forked.usage.memory_bytes,
        prepared=proof.prepared,
        **known,
    )


async def _record(template: Template, check: FormCheck, plan: EntryPlan) -> tuple[Recording, Trial]:
    """Step 1: a cold start that tells what it has imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def take() -> Recording:
        theirs.close()  # from here on, its end is the program's end
        return await take_recording(ours)

    with ours, theirs:
        try:
            async with _started(_with_guest(template, record_command(plan, control=_CONTROL)), check) as sandbox:
                trial = await try_server(
                    sandbox,
                    choose=check.choose_call,
                    clock=check.clock,
                    descriptors=[theirs.fileno()],
                    while_up=take,
                )
        except (TrialFailed, BackendError) as error:
            raise _StartsCold(f"a recorded cold start failed: {error}") from error
    if not isinstance(trial.taken, Recording):
        raise _StartsCold("a cold start could not be recorded")
    return trial.taken, trial


def _praise(recording: Recording, report: PreloadReport, modules: Sequence[str], why_not: str | None) -> str:
    later = len(recording.modules) - len(modules)
    rest = f", imports {later} after the fork" if later else ""
    main = "at its event loop" if why_not is None else f"before its main ({why_not})"
    held = "" if report.pools_restorable else "; native thread pools stay at one thread (cure: install threadpoolctl)"
    return f"forks {main} with {len(modules)} modules imported{rest}; answers as a cold start does{held}"


async def _audit_what_forks_may_share(
    template: Template, check: FormCheck, plan: EntryPlan, modules: tuple[str, ...]
) -> tuple[PreloadReport, tuple[str, ...]]:
    """Step 2, repeated without the modules that start threads or draw: those are left for after the fork."""
    report = await _audit_imports(template, check, plan, modules)
    for _ in range(MORE_AUDITS):
        later = report.drawing | report.thread_starters if report.threads else report.drawing
        remaining = tuple(name for name in modules if not _within(name, later))
        if len(remaining) == len(modules):
            break
        modules = remaining
        report = await _audit_imports(template, check, plan, modules)
    return report, tuple(name for name in modules if name not in report.failed)


def _within(module: str, packages: frozenset[str]) -> bool:
    """Tell whether importing `module` imports one of `packages` (itself, or a package that it is in)."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in packages for length in range(1, len(parts) + 1))


async def _audit_imports(
    template: Template, check: FormCheck, plan: EntryPlan, modules: tuple[str, ...]
) -> PreloadReport:
    """Step 2: the same imports, looked at."""
    try:
        return await _audit(template, check, plan, plan.preload(modules), timeout_s=check.timeout_s)
    except BackendError as error:
        raise _StartsCold(f"its imports could not be repeated: {error}") from error


async def _reason_not_to_advance(
    template: Template, check: FormCheck, plan: EntryPlan, preload: Preload, recording: Recording
) -> str | None:
    """Step 3: the way to its event loop, looked at. Returns why each fork must go it by itself, None if it need not."""
    try:
        report = await _audit(template, check, plan, preload, timeout_s=ADVANCE_TIMEOUT_S)
    except BackendError as error:
        return str(error)
    private = check.backend.capabilities.private_folders
    return reason_to_start_cold(recording, report, check.session_env) or reason_to_stay_before_main(
        report, template, private_folders=private
    )


async def _audit(
    template: Template, check: FormCheck, plan: EntryPlan, preload: Preload, *, timeout_s: float
) -> PreloadReport:
    """Preload in a process that is only looked at.

    Raises:
        BackendError: It failed, or took too long.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    audited = _with_guest(template, audit_command(plan, control=_CONTROL))
    with theirs, ZygoteProcess(ours, name=template.name) as process:
        async with _started(audited, check) as sandbox, sandbox.attach(descriptors=[theirs.fileno()]):
            theirs.close()  # from here on, its end is the preloader's end
            return await process.preload(preload, audit=True, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    """A zygote, and what a sandbox that was forked from it did."""

    prepared: Prepared
    forked: Trial


async def _prove(template: Template, check: FormCheck, cold: Trial) -> _Proof:
    """Step 4: two forks that answer as the cold start did."""
    try:
        prepared = await check.backend.prepare(template)
    except BackendError as error:
        raise _StartsCold(str(error)) from error
    try:
        return _Proof(prepared=prepared, forked=await _two_forks(cold, prepared, check))
    except (TrialFailed, BackendError) as error:
        await _close(prepared)
        raise _StartsCold(f"a fork failed: {error}") from error
    except BaseException:
        await _close(prepared)
        raise


async def _two_forks(cold: Trial, prepared: Prepared, check: FormCheck) -> Trial:
    """Return the second of two forks; the first touches memory that has never been used."""
    first = await _fork_like(cold, prepared, check)
    second = await _fork_like(cold, prepared, check)
    if min(first.start_s, second.start_s) > cold.start_s:
        raise _StartsCold("a fork starts no faster")
    return second


async def _fork_like(cold: Trial, prepared: Prepared, check: FormCheck) -> Trial:
    """Start one sandbox from the zygote; it must show what the cold start has shown."""
    sandbox = await check.backend.start(prepared, _identity(check))
    try:
        forked = await try_server(sandbox, choose=check.choose_call, clock=check.clock)
    finally:
        await sandbox.aclose()
    differs = difference(cold, forked)
    if differs is not None:
        raise _StartsCold(differs)
    return forked


async def _close(prepared: Prepared) -> None:
    with anyio.CancelScope(shield=True):
        await prepared.aclose()


@asynccontextmanager
async def _started(template: Template, check: FormCheck) -> AsyncGenerator[RunningSandbox]:
    """Run a sandbox of a template that is used once."""
    prepared = await check.backend.prepare(replace(template, preload=None))
    try:
        sandbox = await check.backend.start(prepared, _identity(check))
        try:
            yield sandbox
        finally:
            await sandbox.aclose()
    finally:
        await _close(prepared)


def _identity(check: FormCheck) -> Identity:
    return Identity(sandbox=SandboxId(check.ids.new("check")))


def _with_guest(template: Template, argv: Sequence[str]) -> Template:
    """Let a sandbox run our guest code in the place of its command."""
    command = replace(template.command, argv=tuple(argv))
    return replace(template, command=command, mounts=(*template.mounts, Mount(source=GUEST_DIR, target=GUEST_DIR)))
