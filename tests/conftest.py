"""Fixtures for every test."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
