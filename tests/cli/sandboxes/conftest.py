"""One service for the tests of a file."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.cli.sandboxes.typing_at import Service, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running
        told = running.log.read_text()
        assert "Traceback" not in told, told
