"""What this machine lets the tests do."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

from headstart.backends.local.guest.places import find_places

__all__ = [
    "as_root_of_namespaces",
    "may_make_namespaces",
    "where_files_outlive",
    "where_memory_is_limited",
    "where_processes_may_be_traced",
]


@functools.cache
def may_make_namespaces() -> bool:
    """Whether this user may make what sandboxes are made of; the root of most containers may not."""
    kinds = ["--mount", "--pid", "--fork"] if os.geteuid() == 0 else ["--user", "--mount"]
    return subprocess.run(["unshare", *kinds, "true"], capture_output=True, check=False).returncode == 0


as_root_of_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not may_make_namespaces(), reason="needs root who may make namespaces"
)


@functools.cache
def may_trace() -> bool:
    """Whether this user may trace what he has started; a container's seccomp filter may forbid it."""
    script = "import sys; from headstart.backends.local.guest import shadows; sys.exit(not shadows.are_possible())"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


where_processes_may_be_traced = pytest.mark.skipif(not may_trace(), reason="nobody may trace processes here (ptrace)")

where_files_outlive = pytest.mark.usefixtures("outliving_files")
"""For tests of what sandboxes keep when a service ends: an ordinary user cannot on every file system."""

where_memory_is_limited = pytest.mark.skipif(
    not any("memory" in place.controllers for place in find_places()), reason="nobody may limit memory here"
)
