"""The conformance suite: what every backend promises, as checks that try it.

For a backend of your own, parametrise one test over `CHECKS`::

    SUBJECT = Subject(open=lambda state: open_my_backend(state))

    @pytest.mark.anyio
    @pytest.mark.parametrize("check", CHECKS, ids=str)
    async def test_it_keeps_the_contract(check: Check, tmp_path: Path) -> None:
        try:
            await check(SUBJECT, tmp_path)
        except NotClaimed as gap:
            pytest.skip(str(gap))

A check opens the backend itself, in an empty state directory, and never twice the same.
It raises `ContractViolation` with the promise and what was seen instead. A promise that
the backend's `capabilities` don't make raises `NotClaimed`; nothing passes by not running.

The checks need `sh`, coreutils, `setsid` and a Python inside, nothing else; they are no
attacks (those are in the repository's `tests/escape`), and run as root or not.
"""

from __future__ import annotations

from typing import Final

from headstart.testing.contract_commands import COMMAND_CHECKS
from headstart.testing.contract_files import FILE_CHECKS
from headstart.testing.contract_identity import IDENTITY_CHECKS
from headstart.testing.contract_isolation import ISOLATION_CHECKS
from headstart.testing.contract_layers import LAYER_CHECKS
from headstart.testing.contract_life import LIFE_CHECKS
from headstart.testing.contract_pause import PAUSE_CHECKS
from headstart.testing.contract_programs import PROGRAM_CHECKS
from headstart.testing.contract_roots import ROOT_CHECKS
from headstart.testing.contract_store import STORE_CHECKS
from headstart.testing.contract_trial import Check, ContractViolation, NotClaimed, Subject, Trial

__all__ = ["CHECKS", "Check", "ContractViolation", "NotClaimed", "Subject", "Trial"]

CHECKS: Final[tuple[Check, ...]] = (
    *COMMAND_CHECKS,
    *FILE_CHECKS,
    *LAYER_CHECKS,
    *PROGRAM_CHECKS,
    *IDENTITY_CHECKS,
    *STORE_CHECKS,
    *LIFE_CHECKS,
    *PAUSE_CHECKS,
    *ROOT_CHECKS,
    *ISOLATION_CHECKS,
)
