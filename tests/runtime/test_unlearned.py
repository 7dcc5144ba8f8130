"""Why a server's lists are not there is known to whoever lists the servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config.model import ServerSettings
from headstart.errors import CatalogueUnavailable
from headstart.ids import LOCAL_PRINCIPAL, ResourceId
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_process import ProcessContext

from .conftest import OpenService, scope, scripted

pytestmark = pytest.mark.anyio

BROKEN, GONE = ResourceId("broken"), ResourceId("gone")


async def test_a_failed_learning_and_a_missing_command_are_told_with_their_reason(
    open_service: OpenService, tmp_path: Path
) -> None:
    broken = scripted("broken", tmp_path)
    gone = ServerSettings(name=GONE, command="/no/such/command")

    async def exits(_: ProcessContext) -> int:
        return 3

    async with (
        FakeBackend(programs={"mcp-broken": exits}) as backend,
        open_service(broken, gone, backend=backend) as service,
    ):
        before = {entry.name: entry.problem for entry in service.servers(LOCAL_PRINCIPAL)}
        with pytest.raises(CatalogueUnavailable):
            await service.catalogue(BROKEN, scope("one"))
        after = {entry.name: entry.problem for entry in service.servers(LOCAL_PRINCIPAL)}
    assert before[BROKEN] == ""
    assert "was not found" in before[GONE]
    assert after[BROKEN].startswith("broken: ")
    assert set(service.unusable) == {GONE}
