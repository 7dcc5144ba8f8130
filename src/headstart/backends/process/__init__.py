"""No isolation: an own session, a private home and /tmp, limits on resources.

For machines without namespaces, and only when the operator names it. Above it is
`runtime`; below it are `zygote` and `spawner`.
"""

from headstart.backends.process.backend import ProcessBackend, open_process_backend

__all__ = ["ProcessBackend", "open_process_backend"]
