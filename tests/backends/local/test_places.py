"""Where control groups may be made, and that what they need is handed down to them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.machine import as_root_of_namespaces

from headstart.backends.contract import Limits
from headstart.backends.local.cgroups import Groups
from headstart.backends.local.guest.places import Place, find_places
from headstart.backends.spawner.guest.runs import Run, make_groups

SHOW = "from headstart.backends.local.guest.places import find_places; print(len(find_places()))"
ALL = frozenset({"cpu", "memory", "pids"})


@dataclass(frozen=True)
class Machine:
    """What a process of a machine with version 2 finds in /proc and /sys/fs/cgroup, in a folder."""

    folder: Path

    def group(self, path: str, *, has: str, hands_down: str) -> Machine:
        group = self.folder / "cgroup" / path
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.controllers").write_text(has)
        (group / "cgroup.subtree_control").write_text(hands_down)
        (group / "cgroup.procs").write_text("")
        if path:
            (group / "cgroup.type").write_text("domain\n")
        return self

    def places(self, own: str, *, systemd: bool = True) -> tuple[Place, ...]:
        (self.folder / "cgroup.own").mkdir()
        mount = f"31 24 0:27 / {self.folder}/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        (self.folder / "cgroup.own/mountinfo").write_text(mount)
        (self.folder / "cgroup.own/cgroup").write_text(f"0::/{own}\n")
        return find_places(str(self.folder / "cgroup.own"), "/" if systemd else "/nowhere")

    def place(self, path: str, controllers: frozenset[str]) -> tuple[Place]:
        return (Place(str(self.folder / "cgroup" / path).rstrip("/"), 2, controllers),)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_delegated_units_groups_are_made_beside_it(machine: Machine) -> None:
    machine.group("", has="cpu io memory pids", hands_down="cpu memory pids")
    machine.group("system.slice", has="cpu memory pids", hands_down="cpu memory pids")
    machine.group("system.slice/us.service", has="cpu memory pids", hands_down="")
    assert machine.places("system.slice/us.service") == machine.place("system.slice", ALL)


def test_where_the_slice_hands_down_only_some_controllers_the_groups_are_made_above_it(machine: Machine) -> None:
    machine.group("", has="cpu io memory pids", hands_down="cpu memory pids")
    machine.group("system.slice", has="cpu memory pids", hands_down="memory pids")
    machine.group("system.slice/us.service", has="memory pids", hands_down="")
    assert machine.places("system.slice/us.service") == machine.place("", ALL)


def test_what_systemd_does_not_hand_down_is_not_counted_on(machine: Machine) -> None:
    machine.group("", has="cpu io memory pids", hands_down="memory")
    machine.group("us.service", has="memory", hands_down="")
    assert machine.places("us.service") == machine.place("", frozenset({"memory"}))


def test_without_systemd_the_root_group_is_ours_to_fill_in(machine: Machine) -> None:
    machine.group("", has="cpu io memory pids", hands_down="")
    assert machine.places("", systemd=False) == machine.place("", ALL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_ordinary_user_goes_no_higher_than_what_was_delegated(machine: Machine) -> None:
    machine.group("", has="cpu memory pids", hands_down="cpu memory pids")
    machine.group("user", has="cpu memory pids", hands_down="pids")
    machine.group("user/us.scope", has="pids", hands_down="")
    (machine.folder / "cgroup/cgroup.procs").chmod(0o444)
    assert machine.places("user/us.scope") == machine.place("user", frozenset({"pids"}))


def test_the_groups_of_sandboxes_get_the_controllers_of_their_place(tmp_path: Path) -> None:
    place = Place(str(tmp_path), 2, ALL)
    run = Run(str(tmp_path / "state"))
    (group,) = make_groups(run, [place.as_told_to_spawner()], prefix="headstart-")
    written = Path(group, "cgroup.subtree_control").read_text()
    run.remove()
    assert written in {f"+{name}" for name in ALL}, "each is written by itself, the last one stays in a plain file"


def test_a_limit_is_promised_only_if_the_run_really_hands_its_controller_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    groups = Groups((Place(str(tmp_path.parent), 2, ALL),), [str(tmp_path)])
    assert groups.controllers == {"memory"}
    settings = groups.settings(Limits(memory_bytes=1 << 20, pids=7, cpu_cores=1.0), background=False)
    assert {name for _, name, _ in settings} == {"memory.max"}


def test_swap_is_limited_where_the_kernel_accounts_for_it(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "memory.swap.max").write_text("max\n")
    groups = Groups((Place(str(tmp_path.parent), 2, ALL),), [str(tmp_path)])
    settings = groups.settings(Limits(memory_bytes=1 << 20), background=False)
    assert (str(tmp_path), "memory.swap.max", "0") in settings


@as_root_of_namespaces
def test_a_hierarchy_that_is_mounted_twice_is_one_place(tmp_path: Path) -> None:
    if not find_places():
        pytest.skip("this machine has no control groups that we may use")
    script = 'mount --rbind /sys/fs/cgroup "$1" && exec "$2" -c "$3"'
    shown = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, SHOW],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert int(shown.stdout) == len(find_places())
