"""What the service answers about itself, over HTTP, to its own commands.

Beside it are `gateway` and `proxy`; below it is `runtime`.
"""
