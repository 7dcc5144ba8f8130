"""Sandboxes in namespaces: what the spawner does for the local backend.

Attaching a process to a control group takes 7 ms when the machine has been quiet (the
kernel waits for every CPU to notice), but nothing says that it must be done when a
sandbox is wanted. So a few processes are *parked*: each is the first process of new PID,
IPC and UTS namespaces and sits in its control groups already, waiting for an order. An
order names a template; the parked process then takes the template's mounts, lays its
private parts over them, drops everything it could do, and serves as the sandbox's init.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from headstart.backends.local.guest import images, lockdown, private, shadows, tree, userns
from headstart.backends.local.guest.errands import Errands
from headstart.backends.local.guest.places import group_folder, limits_memory, offered
from headstart.backends.local.guest.shadows import NAMESPACES
from headstart.backends.local.guest.stores import Stores, layers_in, why_not_plain
from headstart.backends.local.guest.tracer import ORDERS, TracerProcess
from headstart.backends.spawner.guest import runs, syscalls
from headstart.backends.spawner.guest.init import Init, reset_signals
from headstart.backends.spawner.guest.wire import PeerGone, Wire

__all__ = ["LocalKind", "make_kind"]

_PARKED = 4
_GROUP_PREFIX = "headstart-"
_GROUP_RETRY_S = 0.002
_BUILD_S = 30
_REFILL_SOON_S, _REFILL_LATER_S = 0.004, 0.05
"""Attaching holds up every fork on the machine for a moment, so not while a sandbox or a program is starting …"""

_CHEAP_FOR_S = 0.08
"""… except that the moment is a short one while the last attaching was so long ago at most."""

_HOSTS_NETWORK = syscalls.SCOPE_SOCKETS
"""What is closed to sandboxes with the host's network; signals are, by their PID namespace."""

_BEFORE_USER = [name for name in NAMESPACES if name != "user"]

_NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


class _Parked:
    """A process that waits to become a sandbox."""

    def __init__(self, pid: int, wire: Wire, group: str) -> None:
        self.pid = pid
        self.wire = wire
        self.group = group


class _Template:
    def __init__(self, mounts: int, plan: dict[str, Any]) -> None:
        self.mounts = mounts
        self.plan = plan


class LocalKind:
    """Templates, parked processes and control groups of one spawner.

    Args:
        settings: `base` (folder for runs), `cgroups` (places for the run's own groups, see
            `runs.make_groups`; may be empty), `privileged` (whether we are root).
        service: A descriptor that hangs up when the service is gone.
    """

    grace_s = 0.0

    def __init__(self, settings: dict[str, Any], service: int) -> None:
        self._service = service
        self._run = runs.Run(settings["base"])
        self._staging = self._run.path + "/staging"
        os.mkdir(self._staging, 0o700)
        self._privileged: bool = settings["privileged"]
        self._groups = runs.make_groups(self._run, settings["cgroups"], prefix=_GROUP_PREFIX)
        self._nested = {base for base in self._groups if limits_memory(base)}
        for base in self._nested:
            _count_with_what_is_below(base)
        if self._privileged:
            self._userns = userns.make(userns.map_shift(), userns.map_shift())
        else:
            userns.become_root_of_own()
            self._userns = -1
        self._host_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # Whoever holds the read end sees end of file when this process is gone, however it went.
        self._lifeline, self._held = os.pipe2(os.O_CLOEXEC)
        self._templates: dict[str, _Template] = {}
        self._parked: list[_Parked] = []
        self._refill_at = 0.0
        self._parked_at = 0.0
        self._in_group: dict[int, str] = {}  # init → its group, `<lineage>/<number>`
        self._born_in: dict[int, str] = {}  # init of a fork → the group that it was parked in
        self._told_by: dict[int, Wire] = {}  # init → where it tells its namespaces
        self._namespaces: dict[int, list[int]] = {}  # init → descriptors of those
        self._errands = Errands()
        self._tracer = TracerProcess()
        self._stores = Stores(self._staging)
        self._doomed: dict[int, list[str]] = {}  # init that has ended → folders of its groups, which are to be removed
        self._made_groups = 0
        self.facts: dict[str, Any] = {
            "run": self._run.path,
            "cgroups": self._groups,
            "images": images.can_be_made(),
            "traces": shadows.are_possible(),
            "why_not_plain": why_not_plain(self._run.path, privileged=self._privileged),
        }

    # ------------------------------------------------------------ templates

    def prepare(self, template: str, plan: dict[str, Any]) -> dict[str, Any]:
        """Build the template's tree in a child and keep its mount namespace."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        spawner = os.getpid()
        pid = syscalls.clone(syscalls.CLONE_NEWNS)
        if pid == 0:
            self._build_tree(plan, write_end, spawner)
        os.close(write_end)
        try:
            outcome = self._outcome_of_building(read_end)
            if "error" in outcome:
                raise OSError(outcome["error"])
            mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read_end)
        self._templates[template] = _Template(mounts, {**plan["sandbox"], **outcome["parts"]})
        return outcome

    def _outcome_of_building(self, told: int) -> dict[str, Any]:
        """Wait for what a builder tells, but not for one that hangs (in a dead network mount, say)."""
        poll = select.poll()
        poll.register(told, select.POLLIN)
        poll.register(self._service, 0)  # a hang-up is always told
        ready = [descriptor for descriptor, _ in poll.poll(_BUILD_S * 1000)]
        if told not in ready:
            return {"error": f"building the file tree took longer than {_BUILD_S} s; is a mount's source unreachable?"}
        with open(told, "rb", closefd=False) as line:
            return json.loads(line.readline() or b'{"error": "building the file tree ended early"}')

    def _build_tree(self, plan: dict[str, Any], told: int, spawner: int) -> NoReturn:
        try:
            syscalls.be_a_helper_of(spawner, [told])
            try:
                outcome: dict[str, Any] = tree.build_and_enter(self._staging, plan["tree"], idmap=self._privileged)
            except OSError as error:
                outcome = {"error": str(error)}
            os.write(told, json.dumps(outcome).encode() + b"\n")
            signal.pause()  # until killed: the namespace is open then
        finally:
            os._exit(0)

    def release(self, template: str) -> None:
        known = self._templates.pop(template, None)
        if known is not None:
            os.close(known.mounts)

    # ------------------------------------------------------------ sandboxes

    def start(
        self, template: str, order: dict[str, Any], control: int, origin: int | None
    ) -> tuple[int, dict[str, Any]]:
        known = self._templates[template]
        self._refill_later()
        descriptors = [control, known.mounts]
        if order["store"] is not None:
            descriptors.append(self._stores.mounts_of(order["store"]))
        elif origin is not None:
            descriptors.append(self._mounts_of(origin))
        lineage = None if origin is None else self._in_group[origin].partition("/")[0]
        parked, group = self._hand_out({**known.plan, **order}, descriptors, lineage)
        self._in_group[parked.pid] = group
        if group != parked.group:
            self._born_in[parked.pid] = parked.group
        self._told_by[parked.pid] = parked.wire
        return parked.pid, {"group": group}

    def _namespaces_of(self, init: int) -> list[int]:
        """Return descriptors of a sandbox's `NAMESPACES`; its init told them before it was ready."""
        if init not in self._namespaces:
            wire = self._told_by.pop(init)
            try:
                _, self._namespaces[init] = wire.wait()
            except PeerGone as error:
                raise OSError(errno.ESRCH, "the sandbox is gone") from error
            finally:
                wire.close()
        return self._namespaces[init]

    def _mounts_of(self, init: int) -> int:
        return self._namespaces_of(init)[list(NAMESPACES).index("mnt")]

    # ------------------------------------------------------------ errands

    def begin_errand(self, init: int | None, message: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have a helper do something to a sandbox; return where it will tell its answer, one line of JSON."""
        if init is None:
            return self._tracer.order(message, [])
        template = self._templates[message["template"]]
        groups = self._folders(self._in_group[init])
        if message["do"] in ORDERS:
            return self._order(init, groups, template, message, descriptors)
        sandbox = {"init": init, "groups": groups, "owner": self._owner(), "tracer": self._tracer.pid}
        plan = {**template.plan, **message.get("plan", {})}
        order = {"sandbox": sandbox, "message": {**message, "plan": plan}}
        return self._errands.begin(order, [self._mounts_of(init), template.mounts])

    def _order(
        self, init: int, groups: list[str], template: _Template, message: dict[str, Any], descriptors: Sequence[int]
    ) -> int:
        """Have the tracer do something to a program in a sandbox."""
        lineages = [self._lineage_folder(base, self._in_group[init]) for base in self._nested]
        message = {**message, "init": init, "groups": groups, "lineages": lineages}
        order = message.get("order")
        if order is None:
            return self._tracer.order(message, descriptors)
        self._refill_at = max(self._refill_at, time.monotonic() + _REFILL_LATER_S)
        ids = (userns.SANDBOX_ID, userns.SANDBOX_ID) if self._privileged else None
        confined = {
            "limits": template.plan["rlimits"],
            "seccomp": template.plan["seccomp"],
            "scopes": _HOSTS_NETWORK if template.plan["network"] == "host" and syscalls.can_scope() else 0,
            "own": ids,
            "outside": self._owner(),
        }
        counted_in = [group for group in groups if os.path.dirname(group) not in self._groups]
        complete = {**message, "order": {**order, **confined, "groups": groups, "counted_in": counted_in}}
        return self._tracer.order(complete, [*self._namespaces_of(init), *descriptors])

    def begin_store_errand(self, message: dict[str, Any]) -> int:
        """Have a helper open a store or do something to it; return where it will tell its answer."""
        if message["do"] == "open":
            return self._stores.open(message)
        order = {"sandbox": None, "message": message}
        if message["do"] == "delete":
            return self._errands.begin(order, [])
        if message["do"] != "close":
            return self._errands.begin(order, [self._stores.mounts_of(message["store"])])
        held = self._stores.let_go(message["store"])
        try:
            return self._errands.begin(order, held)
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _owner(self) -> tuple[int, int] | None:
        owner = userns.FIRST_ID + userns.SANDBOX_ID
        return (owner, owner) if self._privileged else None

    def _refill_later(self) -> None:
        now = time.monotonic()
        is_cheap = now - self._parked_at < _CHEAP_FOR_S
        self._refill_at = now + (_REFILL_SOON_S if is_cheap else _REFILL_LATER_S)

    def _hand_out(self, order: dict[str, Any], descriptors: list[int], lineage: str | None) -> tuple[_Parked, str]:
        """Give an order to a parked process; one that has died is passed over. Return it, and the group that it goes to."""
        for _ in range(_PARKED + 1):
            if not self._parked:
                self._park()
            parked = self._parked.pop(0)
            group = parked.group if lineage is None else f"{lineage}/{parked.group.rpartition('/')[2]}"
            joins = [folder for folder in self._folders(group) if folder not in self._folders(parked.group)]
            for folder in joins:
                os.mkdir(folder, 0o755)
            try:
                parked.wire.send_with({**order, "group": group, "joins": joins}, descriptors)
            except PeerGone:
                parked.wire.close()
                self._doomed[parked.pid] = [*joins, *self._folders(parked.group)]
                continue
            return parked, group
        raise OSError(errno.ECHILD, "processes that were parked keep dying")

    def _folders(self, group: str) -> list[str]:
        """Return the folders of a sandbox's group, in each hierarchy."""
        return [group_folder(base, group, nested=base in self._nested) for base in self._groups]

    @staticmethod
    def _lineage_folder(base: str, group: str) -> str:
        return f"{base}/{group.partition('/')[0]}"

    def _park(self) -> None:
        self._made_groups += 1
        group = f"{self._made_groups}/{self._made_groups}"
        self._parked_at = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = syscalls.clone(_NAMESPACES | (syscalls.CLONE_NEWNET if self._privileged else 0))
        if pid == 0:
            _be_parked(theirs, group=group, kind=self)
        theirs.close()
        self._parked.append(_Parked(pid, Wire(ours), group))

    def close_foreign_descriptors(self, mine: int) -> None:
        """Close what a parked process inherited and does not need."""
        keep = [0, 1, 2, mine, self._lifeline] + ([self._userns] if self._privileged else [])
        keep.append(self._host_network)
        syscalls.close_all_descriptors_except(keep)

    def settle(self, group: str) -> None:
        """Do for the calling parked process all that can be done before there is an order."""
        for base in self._nested:
            lineage = self._lineage_folder(base, group)
            os.mkdir(lineage, 0o755)
            for controller in offered(base):
                _write(lineage + "/cgroup.subtree_control", "+" + controller)
        folders = self._folders(group)
        for folder in folders:
            os.mkdir(folder, 0o755)
        shadows.join_alone(folders)
        if self._privileged:
            private.bring_up_loopback()

    def become_sandbox(
        self, order: dict[str, Any], descriptors: list[int], told: Wire, trouble: OSError | None
    ) -> NoReturn:
        """Turn the calling parked process into the init of a sandbox; it never returns.

        Args:
            order: The template's plan and what was ordered.
            descriptors: The control socket, the template's mounts, and those of what has its layers, the store or, for
                a fork, its origin.
            told: Gets descriptors of its `NAMESPACES`.
            trouble: What went wrong while it was parked.
        """
        control, *mounts = descriptors
        wire = Wire(socket.socket(fileno=os.dup(control)))
        try:
            if trouble is not None:
                raise trouble
            init = Init(control, ends_with_namespace=True, lifeline=self._lifeline, limits=order["rlimits"])
            self._confine(order, mounts, told)
            init.let_go_of_everything_else()
        except OSError as error:
            wire.send({"event": "broken", "error": f"the sandbox could not be built: {error}"})
            os._exit(70)
        init.serve()

    def _confine(self, order: dict[str, Any], mounts: list[int], told: Wire) -> None:
        template, *origin = mounts
        for base, name, value in order["group_settings"]:
            _write(f"{group_folder(base, order['group'], nested=base in self._nested)}/{name}", value)
        shadows.join_alone(order["joins"])
        if self._groups:  # from inside of it, nsdelegate refuses to set the limits above
            syscalls.unshare(syscalls.CLONE_NEWCGROUP)
        self._choose_network(order["network"])
        scratch = None
        if origin:
            scratch = private.scratch_in(origin[0]) if order["store"] is None else layers_in(origin[0])
        syscalls.setns(template, syscalls.CLONE_NEWNS)
        syscalls.unshare(syscalls.CLONE_NEWNS)
        private.lay_private_parts(order, owner=self._owner(), masked=not order["zygote"], scratch=scratch)
        socket.sethostname(order["hostname"])
        namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in _BEFORE_USER]
        if self._privileged:
            syscalls.setns(self._userns, syscalls.CLONE_NEWUSER)
            lockdown.become(userns.SANDBOX_ID, userns.SANDBOX_ID)
        else:
            private.hide_host_proc()
            userns.enter_own()
        namespaces.append(os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        told.send_with({"event": "built"}, namespaces)
        told.close()
        scopes = _HOSTS_NETWORK if order["network"] == "host" else 0
        lockdown.lock_down(order, dies_with_parent=True, scopes=scopes)

    def _choose_network(self, network: str) -> None:
        """Root parks with an empty network and can go back to the host's; others can only leave it."""
        if self._privileged and network == "host":
            syscalls.setns(self._host_network, syscalls.CLONE_NEWNET)
        elif not self._privileged and network == "none":
            syscalls.unshare(syscalls.CLONE_NEWNET)
            private.bring_up_loopback()

    def ended(self, pid: int) -> None:
        self._errands.ended(pid)
        self._stores.ended(pid)
        if pid in self._told_by:
            self._told_by.pop(pid).close()
        for descriptor in self._namespaces.pop(pid, []):
            os.close(descriptor)
        groups = [self._in_group.pop(pid, None) or self._forget_parked(pid), self._born_in.pop(pid, None)]
        folders = [folder for group in groups if group is not None for folder in self._folders(group)]
        if folders:
            self._doomed[pid] = list(dict.fromkeys(folders))
            self._remove_doomed()

    def _forget_parked(self, pid: int) -> str | None:
        for parked in self._parked:
            if parked.pid == pid:
                parked.wire.close()
                self._parked.remove(parked)
                self._refill_later()
                return parked.group
        return None

    def owns(self, pid: int) -> bool:
        is_helper = self._errands.owns(pid) or self._stores.owns(pid) or self._tracer.owns(pid)
        return is_helper or any(parked.pid == pid for parked in self._parked)

    def count_groups(self) -> int:
        doomed = sum(not self._tracer.is_in_one_of(folders) for folders in self._doomed.values())
        return len(self._in_group) + doomed if self._groups else 0

    def tend(self) -> float | None:
        """Park one process if some are missing; remove the groups of ended sandboxes; have a helper ready."""
        self._remove_doomed()
        now = time.monotonic()
        if len(self._parked) < _PARKED and now >= self._refill_at:
            self._park()
        dues = [self._errands.tend()]
        if self._doomed:
            dues.append(_GROUP_RETRY_S)
        if len(self._parked) < _PARKED:
            dues.append(max(0.0, self._refill_at - now))
        return min((due for due in dues if due is not None), default=None)

    def is_clean(self, pid: int) -> bool:
        return pid not in self._doomed or self._tracer.is_in_one_of(self._doomed[pid])

    def _remove_doomed(self) -> None:
        """Try each once; a group stays busy for a moment after its last process has gone."""
        self._doomed = {pid: folders for pid, folders in self._doomed.items() if not self._remove_groups(folders)}

    def _remove_groups(self, folders: list[str]) -> bool:
        if self._tracer.is_in_one_of(folders):
            return False  # images, which the mover takes out of there soon
        removed = [runs.remove_cgroup(folder, patience_s=0.0) for folder in folders]
        for folder in folders:
            if os.path.dirname(folder) not in self._groups:
                with suppress(OSError):  # others of the lineage, or what is kept of them, are still in there
                    os.rmdir(os.path.dirname(folder))
        return all(removed)

    def close(self) -> None:
        for template in list(self._templates):
            self.release(template)
        self._run.remove()


def _be_parked(theirs: socket.socket, *, group: str, kind: LocalKind) -> NoReturn:
    """Wait for an order as the first process of new namespaces."""
    try:
        reset_signals()
        syscalls.set_title("headstart-init")
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        mine = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 64)
        kind.close_foreign_descriptors(mine)
        trouble = _settle(kind, group)
        wire = Wire(socket.socket(fileno=mine))
        order, descriptors = wire.wait()
        kind.become_sandbox(order, descriptors, wire, trouble)
    except PeerGone:
        pass  # the spawner has ended
    finally:
        os._exit(70)


def _settle(kind: LocalKind, group: str) -> OSError | None:
    """Return what went wrong: whoever orders a sandbox is to hear of it."""
    try:
        kind.settle(group)
    except OSError as error:
        return error
    return None


def _count_with_what_is_below(group: str) -> None:
    """Where version 1 can have it otherwise (before Linux 5.11), have a memory group's limit hold for those below it, too."""
    try:
        with open(group + "/memory.use_hierarchy") as setting:
            if setting.read().strip() == "0":
                _write(group + "/memory.use_hierarchy", "1")
    except FileNotFoundError:
        pass  # version 2


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def make_kind(settings: dict[str, Any], service: int) -> LocalKind:
    """Make the kind; see `LocalKind`. From then on, this process and its forks import nothing any more.

    Some forks stand in a template's tree while they still have all rights, and its /usr may be a stranger's.
    """
    kind = LocalKind(settings, service)
    sys.meta_path.clear()
    return kind
