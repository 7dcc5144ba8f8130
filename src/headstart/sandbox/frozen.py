"""Secrets that a fork has in common with its origin, whatever names it is given: found by where they usually are.

Only names are told, never what is in them. What is found nowhere usual (a token in a program's own file) is not told.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from headstart.backends.contract import FileInfo, FileKind

__all__ = ["frozen_secrets"]

_FILES: Final = (
    ("/etc", "krb5.keytab"),
    ("/etc/ssh", "ssh_host_*_key"),
    ("/etc/ssl/private", "*"),
    ("/var/lib/systemd", "random-seed"),
    ("/var/lib/urandom", "random-seed"),
    (".", ".rnd"),
    (".", ".netrc"),
    (".", ".pgpass"),
    (".", ".pypirc"),
    (".", ".npmrc"),
    (".", ".git-credentials"),
    (".ssh", "id_*"),
    (".aws", "credentials"),
    (".azure", "*token*"),
    (".cargo", "credentials*"),
    (".config/gcloud", "*credentials*"),
    (".config/gh", "hosts.yml"),
    (".docker", "config.json"),
    (".gnupg/private-keys-v1.d", "*.key"),
    (".gnupg", "random_seed"),
    (".kube", "config"),
    (".local/share/keyrings", "*"),
)
"""Folders, the home's by a relative path, and what lies there: keys, credentials and seeds."""

_TELLING: Final = r"(?:API_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?|PRIVATE_?KEY|ACCESS_?KEY)"
_VARIABLE: Final = re.compile(rf"\w*{_TELLING}\w*", re.IGNORECASE)
_IN_SHELL: Final = re.compile(rf"^declare -\S+ (\w*{_TELLING}\w*)=(?!\"\"$)", re.IGNORECASE | re.MULTILINE)


class _Listing(Protocol):
    async def list(self, path: str = ".") -> Sequence[FileInfo]: ...


async def frozen_secrets(files: _Listing, *, environment: Iterable[str], shell: str | None) -> tuple[str, ...]:
    """Return what a sandbox has that its origin has as well, and that cannot be made anew, for people.

    Args:
        files: Its files; what its user cannot see is not told.
        environment: Names of the variables that every command finds.
        shell: The state of its bash session.

    Raises:
        BackendError: The sandbox is gone.
    """
    variables = {name for name in environment if _VARIABLE.fullmatch(name)}
    variables.update(_IN_SHELL.findall(shell or ""))
    return (*[path async for path in _found(files)], *(f"${name}" for name in sorted(variables)))


async def _found(files: _Listing) -> AsyncIterator[str]:
    seen: dict[str, Sequence[FileInfo]] = {}
    for folder, pattern in _FILES:
        if folder not in seen:
            seen[folder] = await _listed(files, folder)
        for info in seen[folder]:
            if info.kind is FileKind.FILE and info.size_bytes and _is_secret(info.name, pattern):
                yield _shown(folder, info.name)


async def _listed(files: _Listing, folder: str) -> Sequence[FileInfo]:
    try:
        return await files.list(folder)
    except OSError:  # it is not there, or not for its user to see
        return ()


def _is_secret(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) and not name.endswith(".pub")


def _shown(folder: str, name: str) -> str:
    """Write a path as people do.

    >>> _shown(".ssh", "id_rsa"), _shown(".", ".netrc"), _shown("/etc/ssh", "ssh_host_rsa_key")
    ('~/.ssh/id_rsa', '~/.netrc', '/etc/ssh/ssh_host_rsa_key')
    """
    if folder.startswith("/"):
        return f"{folder}/{name}"
    return f"~/{name}" if folder == "." else f"~/{folder}/{name}"
