"""Sandboxes from what the Linux kernel has: namespaces, a private root, cgroups, seccomp.

Above it: the composition root, which picks a backend. Below it: `backends.contract`.
"""

from headstart.backends.local.backend import LocalBackend, open_local_backend

__all__ = ["LocalBackend", "open_local_backend"]
