"""The environment that a login shell has in a template: it takes a while to find out, so it is done once."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Literal

from headstart.backends.contract import Command, RunningSandbox
from headstart.errors import BackendError, BuildFailed

__all__ = ["find_shell", "login_environment"]

_PATIENCE_S = 30.0
_MOST_BYTES = 100_000
"""Of a command's environment, Linux takes 128 KB a piece, and somebody will add to it."""

_EACH_SANDBOXS_OWN = frozenset({"HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"})


async def find_shell(sandbox: RunningSandbox, env: Mapping[str, str]) -> Literal["bash", "sh"]:
    """Return which shell there is.

    Raises:
        BuildFailed: There is none.
    """
    try:
        found = await sandbox.run(Command(argv=("sh", "-c", "command -v bash"), env=env), timeout_s=_PATIENCE_S)
    except TimeoutError:
        raise BuildFailed(f"its shell has not started within {_PATIENCE_S:.0f} s") from None
    except BackendError as error:
        raise BuildFailed(
            f"there is no shell in it: {error}",
            hint="a root has /bin/sh and what that needs: pack one from inside (tar -C ROOT -c .),"
            " and an image with docker export, not docker save",
        ) from error
    return "bash" if found.status.code == 0 else "sh"


async def login_environment(
    sandbox: RunningSandbox, shell: Literal["bash", "sh"], env: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a login shell, without what is each sandbox's own; `env` if it cannot be found out."""
    mark = secrets.token_hex(16)
    script = f"printf %s {mark}; exec cat /proc/self/environ"
    try:
        said = await sandbox.run(Command(argv=(shell, "-lc", script), env=env), timeout_s=_PATIENCE_S)
    except TimeoutError:
        return dict(env)
    _, found, told = said.stdout.partition(mark.encode())  # what the profile says comes before
    if said.status.code != 0 or not found or len(told) > _MOST_BYTES:
        return dict(env)
    try:
        pairs = [pair.partition("=") for pair in told.decode().split("\0")]
    except UnicodeDecodeError:
        return dict(env)
    return {name: value for name, equals, value in pairs if equals and name and name not in _EACH_SANDBOXS_OWN}
