"""The small process that forks sandboxes, and the host's side of talking to it.

Above it are the backends that fork (`local`, `process`, and `zygote` between them); below
it is `contract`. `guest/` is stdlib-only and runs outside the service.
"""
