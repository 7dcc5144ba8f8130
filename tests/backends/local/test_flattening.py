"""Flattening: chains stay short, nobody sees a difference, and space comes back."""

from __future__ import annotations

import doctest
import json
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.backends.contract import Capture, Checkpoint, Command, Identity, Limits, Mount, MountMode, RunningSandbox
from headstart.backends.local import flattening
from headstart.backends.local.guest import layers, merging, private
from headstart.backends.local.lineage import LineageLayers
from headstart.backends.local.sandbox import LocalSandbox
from headstart.backends.spawner.guest import processes
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId

from .driving import ENV, backend_in, output, template

pytestmark = pytest.mark.anyio

ACTS = (Path(__file__).parent / "flattening_acts.py").read_text()
ROOTS = ("/home/sandbox", "/tmp/t", "/home/sandbox/project")
LIMITS = Limits(scratch_bytes=200_000_000)
PLACES = ["memory", "store"]
BOX = SandboxId("box")
Act = tuple[str, ...]
Tree = dict[str, tuple[list[Any], int]]


def lineage_of(sandbox: RunningSandbox) -> LineageLayers:
    assert isinstance(sandbox, LocalSandbox)
    return sandbox.layered.lineage


def chain(sandbox: RunningSandbox) -> tuple[str, ...]:
    return lineage_of(sandbox).stands[sandbox.id]


async def quiet(sandbox: RunningSandbox) -> None:
    """Return when nothing is being merged."""
    merging = lineage_of(sandbox).flattening
    assert merging is not None
    with anyio.fail_after(20):
        await merging.wait()


async def act(sandbox: RunningSandbox, acts: Sequence[Act] = ()) -> dict[str, Any]:
    told = json.dumps({"acts": acts, "roots": ROOTS}) + "\n"
    done = await sandbox.run(Command(argv=("/usr/bin/python3", "-ISc", ACTS), env=ENV), stdin=told.encode())
    assert done.status.code == 0, done
    return json.loads(done.stdout)


async def seen(sandbox: RunningSandbox) -> Tree:
    return (await act(sandbox))["tree"]


async def seen_at(sandbox: RunningSandbox, checkpoint: Checkpoint) -> Tree:
    fork = await sandbox.fork(checkpoint, Identity(sandbox=SandboxId("looker")))
    try:
        return await seen(fork)
    finally:
        await fork.aclose()


def without_times(tree: Tree) -> dict[str, list[Any]]:
    return {path: told for path, (told, _) in tree.items()}


PATHS = st.sampled_from(
    [root + way for root in ROOTS for way in ("/a", "/b", "/a/x", "/b/x", "/a/y", "/a/x/z", "/b/x/z", "/d", "/d/e/f")]
)
TEXTS = st.sampled_from(["", "1", "22", "333" * 5000])
ACT = st.one_of(
    st.tuples(st.sampled_from(["write", "append"]), PATHS, TEXTS),
    st.tuples(st.sampled_from(["mkdir", "mkdir", "again", "remove", "fifo"]), PATHS),
    st.tuples(st.sampled_from(["rename", "rename", "link", "symlink"]), PATHS, PATHS),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from(["700", "755", "644", "1777"])),
    st.tuples(st.just("xattr"), PATHS, st.sampled_from(["one", "two"])),
    st.tuples(st.just("touch"), PATHS, st.sampled_from(["1000000000", "1100000000"])),
    st.tuples(st.just("sparse"), PATHS, st.sampled_from(["300000", "5"])),
)
STEP = st.tuples(
    st.lists(ACT, min_size=1, max_size=6), st.sampled_from(["keep", "drop", "drop", "drop", "drop an old"])
)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be merged is merged."""
    monkeypatch.setattr(flattening, "_MANY", 1)


def project_in(folder: Path) -> Mount:
    project = folder / "project"
    (project / "a" / "x").mkdir(parents=True)
    (project / "d" / "e").mkdir(parents=True)
    (project / "a" / "x" / "z").write_text("from outside")
    (project / "b").write_text("from outside")
    for each in (folder, project, *project.rglob("*")):
        each.chmod(0o777)
    return Mount(source=project, target=Path("/home/sandbox/project"), mode=MountMode.OVERLAY)


Starter = Callable[[str], Awaitable[RunningSandbox]]


@asynccontextmanager
async def starting(folder: Path, place: str, *mounts: Mount, limits: Limits = LIMITS) -> AsyncGenerator[Starter]:
    """Yield what starts sandboxes, each the first of a lineage, with their layers in memory or in a store."""
    async with backend_in(folder) as backend, AsyncExitStack() as stack:
        if place == "store" and not backend.capabilities.durable:
            pytest.skip("no files can outlive the service here")
        prepared = await backend.prepare(template(*mounts, limits=limits))
        stack.push_async_callback(prepared.aclose)

        async def start(name: str) -> RunningSandbox:
            identity = Identity(sandbox=SandboxId(name))
            if place == "memory":
                started = await backend.start(prepared, identity)
                stack.push_async_callback(started.aclose)
                return started
            store = await backend.stores.open(name, limits=limits)
            stack.push_async_callback(store.aclose)
            return await store.start(prepared, identity)

        yield start


def layers_there(folder: Path, sandbox: RunningSandbox) -> set[str]:
    """List the layers of its lineage that are on the disk or in memory, however much of them."""
    assert isinstance(sandbox, LocalSandbox)
    plain = folder / "stores" / sandbox.id / "files" / "layers"
    layers = plain if plain.exists() else Path(f"/proc/{sandbox.pid}/root{private.SCRATCH}")
    try:
        return {path.name for path in layers.iterdir()}
    except PermissionError:
        pytest.skip("an ordinary user cannot look into a sandbox's memory")


async def only_what_is_held_is_there(folder: Path, sandbox: RunningSandbox) -> None:
    with anyio.fail_after(20):
        while layers_there(folder, sandbox) != set(lineage_of(sandbox).held):  # noqa: ASYNC110  helpers delete them
            await anyio.sleep(0.01)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=4, max_size=12))
async def test_merged_layers_show_what_they_have_shown_one_by_one(
    place: str, steps: list[tuple[list[Act], str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("state")
    async with starting(folder, place, project_in(tmp_path_factory.mktemp("mounted"))) as start:
        merged, plain = await start("merged"), await start("plain")
        lineage_of(plain).flattening = None
        for each in (merged, plain):
            await output(each, "mkdir /tmp/t")
        kept: list[tuple[Checkpoint, Tree]] = []
        for acts, then in steps:
            told, wanted = await act(merged, acts), await act(plain, acts)
            assert told["failed"] == wanted["failed"]
            assert without_times(told["tree"]) == without_times(wanted["tree"])
            kept.append((await merged.checkpoint(), told["tree"]))
            await plain.checkpoint()
            if then != "keep":
                await merged.forget(kept.pop(0 if then == "drop an old" else -1)[0])
            await quiet(merged)
        latest = await seen(merged)
        for checkpoint, tree in kept:
            assert await seen_at(merged, checkpoint) == tree
        await merged.checkpoint()
        assert await seen(merged) == latest
        await quiet(merged)
        await merged.checkpoint()
        assert len(chain(merged)) <= len(kept) + 4


@pytest.mark.parametrize("place", PLACES)
async def test_who_checkpoints_and_drops_five_hundred_times_stands_on_few_layers(place: str, tmp_path: Path) -> None:
    wanted, longest = dict[str, str](), 0
    async with starting(tmp_path, place) as start:
        sandbox = await start("one")
        await output(sandbox, "echo kept > first")
        first = await sandbox.checkpoint()
        for number in range(500):
            script = f"echo {number} > f{number % 7}; echo > temporary{number}; rm -f temporary{number - 1}"
            await output(sandbox, script)
            wanted[f"f{number % 7}"] = str(number)
            await sandbox.forget(await sandbox.checkpoint())
            longest = max(longest, len(chain(sandbox)))
        assert longest < 40
        await quiet(sandbox)
        await output(sandbox, "rm temporary*")
        await sandbox.forget(await sandbox.checkpoint())
        assert len(chain(sandbox)) < 20
        told = await output(sandbox, "for f in *; do echo $f $(cat $f); done")
        assert dict(line.split() for line in told.splitlines()) == {**wanted, "first": "kept"}
        fork = await sandbox.fork(first, Identity(sandbox=SandboxId("fork")))
        assert await output(fork, "ls; cat first") == "first\nkept"
        await fork.aclose()
        await only_what_is_held_is_there(tmp_path, sandbox)


@pytest.mark.parametrize("place", PLACES)
async def test_who_rolls_back_a_hundred_times_stands_on_few_layers(place: str, tmp_path: Path) -> None:
    async with starting(tmp_path, place) as start:
        sandbox = await start("one")
        for number in range(100):
            await output(sandbox, f"echo {number} > n")
            kept = await sandbox.checkpoint()
            await output(sandbox, "echo lost > n; echo lost > m")
            back = await sandbox.fork(kept, Identity(sandbox=SandboxId(f"back{number}")))
            await sandbox.aclose()
            sandbox = back
            await sandbox.forget(kept)
            assert await output(sandbox, "ls; cat n") == f"n\n{number}"
            assert len(chain(sandbox)) < 40
        await sandbox.aclose()


@pytest.mark.parametrize("place", PLACES)
async def test_what_was_overwritten_and_deleted_comes_back(place: str, tmp_path: Path) -> None:
    """What is written is eight times what there is room for."""
    async with starting(tmp_path, place, limits=Limits(scratch_bytes=64_000_000)) as start:
        sandbox = await start("one")
        for number in range(50):
            await output(sandbox, f"head -c 10000000 /dev/urandom > big; echo {number} > n; rm -f more; echo > more")
            await sandbox.forget(await sandbox.checkpoint())
            await quiet(sandbox)
            if number % 10 == 9:
                await only_what_is_held_is_there(tmp_path, sandbox)
        assert await output(sandbox, "stat -c %s big; cat n") == "10000000\n49"


@pytest.mark.parametrize("place", PLACES)
async def test_where_files_are_few_merging_leaves_room_for_what_runs(place: str, tmp_path: Path) -> None:
    async with starting(tmp_path, place, limits=Limits(scratch_bytes=16_000_000)) as start:
        sandbox = await start("one")
        await output(sandbox, "for n in $(seq 600); do echo $n > f$n; done")
        for number in range(40):
            await output(sandbox, f"for n in $(seq 30); do echo {number} > f$n; done")
            await sandbox.forget(await sandbox.checkpoint())
            await quiet(sandbox)
            await only_what_is_held_is_there(tmp_path, sandbox)
        await output(sandbox, "echo > f1")
        await sandbox.checkpoint()
        assert len(chain(sandbox)) < 20
        assert await output(sandbox, "ls | wc -l; cat f2 f600") == "600\n39\n600"


class Held:
    """Merges that have been done and wait before that is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done, self.go_on = anyio.Event(), anyio.Event()
        really = LocalSandbox.merge

        async def merge(sandbox: LocalSandbox, row: Sequence[str], **details: Any) -> Mapping[str, Any]:
            told = await really(sandbox, row, **details)
            self.done.set()
            await self.go_on.wait()
            return told

        monkeypatch.setattr(LocalSandbox, "merge", merge)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("place", PLACES)
async def test_checkpoints_forks_and_rollbacks_go_on_while_layers_are_merged(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with starting(tmp_path, place) as start:
        sandbox = await start("one")
        kept: list[Checkpoint] = []
        for number in range(4):
            await output(sandbox, f"echo {number} > n; echo {number} > n{number}")
            kept.append(await sandbox.checkpoint())
        for checkpoint in kept[:2]:
            await sandbox.forget(checkpoint)
        with anyio.fail_after(20):
            await held.done.wait()
        row = chain(sandbox)[:3]
        fork = await sandbox.fork(kept[2], Identity(sandbox=SandboxId("fork")))
        later = await sandbox.checkpoint()
        await output(sandbox, "rm n*")
        back = await sandbox.fork(later, Identity(sandbox=SandboxId("back")))
        held.go_on.set()
        await quiet(sandbox)
        assert not {*row} & {*chain(sandbox), *chain(fork), *chain(back)}
        assert {*row} <= lineage_of(sandbox).held
        for each, number in ((fork, 2), (back, 3)):
            names = [f"n{count}" for count in range(number + 1)]
            assert (await output(each, "ls; cat n")).split() == ["n", *names, str(number)]
            await output(each, f"echo more > n; rm n{number}; mkdir n{number}")
            again = await each.fork(await each.checkpoint(), Identity(sandbox=SandboxId(f"again-{number}")))
            assert (await output(again, "ls; cat n")).split() == ["n", *names, "more"]
            await again.aclose()
        await sandbox.checkpoint()
        assert not await output(sandbox, "ls n* 2> /dev/null || true")
        await quiet(sandbox)
        await only_what_is_held_is_there(tmp_path, sandbox)
        for each in (back, fork):
            await each.aclose()


@pytest.mark.usefixtures("eager")
async def test_a_merge_that_is_not_wanted_any_more_when_it_is_done_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    async with starting(tmp_path, "memory") as start:
        sandbox = await start("one")
        base = await sandbox.checkpoint()
        fork = await sandbox.fork(base, Identity(sandbox=SandboxId("fork")))
        for number in range(3):
            await output(fork, f"echo {number} > n")
            await fork.forget(await fork.checkpoint())
        with anyio.fail_after(20):
            await held.done.wait()
        await fork.aclose()
        held.go_on.set()
        await quiet(sandbox)
        await only_what_is_held_is_there(tmp_path, sandbox)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("place", PLACES)
async def test_a_helper_that_is_killed_in_a_merge_leaves_everything_as_it_was(place: str, tmp_path: Path) -> None:
    async with starting(tmp_path, place, limits=Limits(scratch_bytes=1_000_000_000)) as start:
        sandbox = await start("one")
        assert isinstance(sandbox, LocalSandbox)
        many = "import os; [open(f'f{{n}}', 'w').close() for n in range({})]"
        await output(sandbox, f'python3 -c "{many.format(9000)}"')
        kept = await sandbox.checkpoint()
        await output(sandbox, f'python3 -c "{many.format(6000)}"; rm f7; echo new > f8')
        later = await sandbox.checkpoint()
        before = chain(sandbox)
        await sandbox.forget(kept)
        with anyio.fail_after(20):
            while not layers_there(tmp_path, sandbox) - lineage_of(sandbox).held:  # noqa: ASYNC110  it merges
                await anyio.sleep(0.001)
        spawner = sandbox._client.pid  # pyright: ignore[reportPrivateUsage]
        [helper] = [pid for pid in processes.children(spawner) if is_merging(pid)]
        os.kill(helper, signal.SIGKILL)
        await quiet(sandbox)
        assert chain(sandbox) == before
        shown = "ls | wc -l; cat f8; ls f7 2> /dev/null || echo gone"
        assert (await output(sandbox, shown)).split() == ["8999", "new", "gone"]
        await only_what_is_held_is_there(tmp_path, sandbox)
        await output(sandbox, "echo newer > f8")
        await sandbox.forget(later)
        await sandbox.forget(await sandbox.checkpoint())
        await quiet(sandbox)
        assert not {*before[:2]} & {*chain(sandbox)}
        assert (await output(sandbox, shown)).split() == ["8999", "newer", "gone"]


def is_merging(pid: int) -> bool:
    """Whether a helper has begun to merge: it has lowered its priority."""
    try:
        return os.getpriority(os.PRIO_PROCESS, pid) >= layers.LOW_PRIORITY
    except ProcessLookupError:
        return False


@pytest.mark.usefixtures("eager")
async def test_who_is_paused_has_nothing_merged_and_who_goes_on_has(tmp_path: Path) -> None:
    async with starting(tmp_path, "memory") as start:
        sandbox = await start("one")
        kept = list[Checkpoint]()
        for number in range(3):
            await output(sandbox, f"echo {number} > n")
            kept.append(await sandbox.checkpoint())
        before = chain(sandbox)
        await sandbox.pause()
        for checkpoint in kept:
            await sandbox.forget(checkpoint)
        await quiet(sandbox)
        assert chain(sandbox) == before
        await sandbox.resume()
        await output(sandbox, "echo 4 > n")
        await sandbox.checkpoint()
        await quiet(sandbox)
        assert len(chain(sandbox)) == 2


@pytest.mark.usefixtures("eager")
async def test_a_store_that_is_opened_again_has_the_merged_layers(tmp_path: Path) -> None:
    async with starting(tmp_path, "store") as start:
        sandbox = await start("one")
        for number in range(5):
            await output(sandbox, f"echo {number} > n; echo {number} > n{number}")
            kept = await sandbox.checkpoint()
            if number < 4:
                await sandbox.forget(kept)
        await quiet(sandbox)
        before = chain(sandbox)
        assert len(before) == 2
    async with starting(tmp_path, "store") as start:
        sandbox = await start("one")
        assert chain(sandbox) == before
        assert (await output(sandbox, "ls; cat n")).split() == ["n", "n0", "n1", "n2", "n3", "n4", "4"]
        await only_what_is_held_is_there(tmp_path, sandbox)


async def test_nothing_is_left_of_merging_and_who_ends_meanwhile_waits_for_nobody(tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("one")))
        for number in range(20):
            await output(sandbox, f"echo {number} > n; touch n{number}-$(seq -s ' '  500 | sed 's/ / n{number}-/g')")
            await sandbox.forget(await sandbox.checkpoint())
        await sandbox.aclose()
        await prepared.aclose()
        left = await backend.leftovers()
        assert (left.processes, left.cgroups, left.directories) == (0, 0, 0)


class Merger:
    """A sandbox of which nothing is asked but to merge, and to delete."""

    is_lost = paused = False

    def __init__(self, lineage: LineageLayers, *, fails: bool = False) -> None:
        self.fails = fails
        self.merged = list[Sequence[str]]()
        self.deleted = list[str]()
        lineage.members[BOX] = self

    async def merge(self, row: Sequence[str], **_: Any) -> Mapping[str, Any]:
        self.merged.append(row)
        if self.fails:
            raise BackendError("no room")
        return {"merged": list(row), "weights": {}}

    def drop(self, layers: Sequence[str]) -> None:
        self.deleted += layers

    async def stop(self, why: str | None = None) -> None: ...

    async def aclose(self) -> None: ...


def stacked(count: int) -> LineageLayers:
    """Return a lineage whose sandbox stands on a row of so many layers, and one that it writes into."""
    lineage = LineageLayers()
    lineage.begin(BOX, tuple(lineage.new_layer() for _ in range(count)))
    return lineage


async def flattened(lineage: LineageLayers, *, taken: int = 0, files: int = 0) -> None:
    """Let a lineage be flattened as far as it wants to be."""
    work = list[Callable[[], Awaitable[None]]]()
    if lineage.flattening is None:
        flattening.Flattening(lineage, start_soon=work.append)
    assert lineage.flattening is not None
    lineage.flattening.note_room({"bytes": [taken, 80_000_000], "files": [files, 800]})
    lineage.flattening.consider()
    for each in work:
        await each()


async def test_who_waits_for_what_never_begins_because_its_spawner_is_gone_waits_for_nothing() -> None:
    lineage = stacked(8)
    Merger(lineage)
    flattening.Flattening(lineage, start_soon=lambda _work: None).consider()
    assert lineage.flattening is not None
    with anyio.fail_after(5):
        await lineage.flattening.wait()


async def test_few_layers_are_left_alone_and_many_are_merged() -> None:
    lineage = stacked(7)
    merger = Merger(lineage)
    await flattened(lineage)
    assert merger.merged == []
    lineage = stacked(8)
    merger = Merger(lineage)
    row = lineage.stands[BOX][:-1]
    await flattened(lineage)
    assert merger.merged == [row]
    assert merger.deleted == list(row)
    assert len(lineage.stands[BOX]) == 2


async def test_two_layers_are_merged_when_much_has_been_written() -> None:
    for taken, files, count in ((4_999_999, 49, 3), (5_000_000, 0, 2), (0, 50, 2)):
        lineage = stacked(2)
        Merger(lineage)
        await flattened(lineage, taken=taken, files=files)
        assert len(lineage.stands[BOX]) == count


async def test_two_layers_are_merged_where_many_lie_on_each_other() -> None:
    lineage = stacked(70)
    for number in range(0, 70, 2):
        below = lineage.stands[BOX][: number + 2]
        lineage.keep(Checkpoint(id=CheckpointId(str(number)), capture=Capture.SEALED), below)
    Merger(lineage)
    await flattened(lineage)
    assert len(lineage.stands[BOX]) < 70


async def test_what_cannot_be_merged_is_not_tried_again_before_more_has_come() -> None:
    lineage = stacked(8)
    merger = Merger(lineage, fails=True)
    before = lineage.stands[BOX]
    await flattened(lineage)
    assert lineage.flattening is not None
    lineage.flattening.consider()
    await lineage.flattening.wait()
    assert lineage.stands[BOX] == before
    assert len(merger.merged) == 1
    assert len(merger.deleted) == 1  # what there may be of the new one


def test_the_examples_are_true() -> None:
    result = doctest.testmod(merging)
    assert (result.failed, result.attempted > 0) == (0, True)
