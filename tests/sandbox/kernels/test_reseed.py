"""What is run in a Python that was copied, so that each copy draws numbers of its own: in real processes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import headstart.sandbox.kernels

PROGRAM = (Path(headstart.sandbox.kernels.__file__).parent / "guest" / "reseed.py").read_text()
COPIES = """
import json, os, sys
{prepared}
namespace = {{}}
exec(compile(sys.stdin.read(), "<reseed>", "exec"), namespace)
imported = set(sys.modules)
hold = namespace["hold"]()
for number in range(3):
    reader, writer = os.pipe()
    if os.fork() == 0:
        left = {then}
        os.write(writer, json.dumps([{drawn}, left, sorted(set(sys.modules) - imported)]).encode())
        os._exit(0)
    os.close(writer)
    print(os.fdopen(reader).read())
    os.wait()
"""


RESEED = 'namespace["reseed"]()'


def copies(prepared: str, drawn: str, *, then: str = RESEED, path: Path | None = None) -> list[Any]:
    """Return what three forks of one Python have drawn, what was told to be left, and what was imported for that."""
    script = COPIES.format(prepared=prepared, drawn=drawn, then=then)
    run = subprocess.run(
        [sys.executable, "-c", script],
        input=PROGRAM,
        env={"PYTHONPATH": str(path)} if path else {},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_each_fork_draws_what_its_origin_would_have_where_that_is_held() -> None:
    told = copies("import random; random.seed(1)", "random.getrandbits(64)", then="hold()")
    assert {drawn for drawn, _, _ in told} == {random.Random(1).getrandbits(64)}


def test_each_copy_draws_numbers_of_its_own_from_random() -> None:
    told = copies("import random; random.seed(1)", "random.getrandbits(64)")
    assert len({drawn for drawn, _, _ in told}) == 3
    assert [left for _, left, _ in told] == [[]] * 3


def test_each_copy_draws_numbers_of_its_own_from_numpys_generator_for_all() -> None:
    prepared, drawn = "import numpy.random; numpy.random.seed(1)", "int(numpy.random.randint(1 << 62))"
    assert len({number for number, _, _ in copies(prepared, drawn, then="None")}) == 1
    told = copies(prepared, drawn)
    assert len({number for number, _, _ in told}) == 3
    assert [left for _, left, _ in told] == [[]] * 3


def test_nothing_is_imported_that_was_not() -> None:
    assert [imported for _, _, imported in copies("", "0")] == [[]] * 3


def test_torch_is_seeded_by_its_own_function_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os\nstate = 1\ndef seed():\n    global state\n    state = os.getpid()\n")
    for name in ("jax", "tensorflow"):
        (tmp_path / f"{name}.py").write_text("")
    told = copies("import torch, jax, tensorflow", "torch.state", path=tmp_path)
    assert len({drawn for drawn, _, _ in told}) == 3
    assert [left for _, left, _ in told] == [["jax", "tensorflow"]] * 3


def test_a_library_that_fails_at_it_is_named_and_the_others_are_seeded(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("def seed():\n    raise RuntimeError('no device')\n")
    told = copies("import torch, random; random.seed(1)", "random.getrandbits(64)", path=tmp_path)
    assert len({drawn for drawn, _, _ in told}) == 3
    assert [left for _, left, _ in told] == [["torch"]] * 3


def test_generators_in_variables_and_native_ones_are_named(tmp_path: Path) -> None:
    for name in ("cryptography", "uuid_utils"):
        (tmp_path / f"{name}.py").write_text("")
    prepared = (
        "import random, cryptography, uuid_utils, numpy.random\n"
        "a, b, c, d = random.Random(), random.SystemRandom(), numpy.random.default_rng(), numpy.random.RandomState(1)"
    )
    told = copies(prepared, "0", path=tmp_path)
    assert [left for _, left, _ in told] == [["a", "c", "cryptography", "d", "uuid_utils"]] * 3


def test_what_uuids_end_with_where_no_card_tells_is_other_in_each_copy() -> None:
    without_cards = "import uuid, random; random.seed(1); uuid._GETTERS, uuid._generate_time_safe = [], None"
    prepared = without_cards + "; uuid.getnode()"
    assert len({node for node, _, _ in copies(prepared, "uuid.getnode()", then="None")}) == 1
    assert len({node for node, _, _ in copies(prepared, "uuid.getnode()")}) == 3
