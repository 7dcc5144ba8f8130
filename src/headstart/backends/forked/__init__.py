"""Sandboxes that are forks of a zygote, as far as `local` and `process` share them.

Above it are those two backends; below it are `zygote` (the preloader) and `spawner`
(channels to inits).
"""

from headstart.backends.forked.prepared import Fork, Nest, open_nest
from headstart.backends.forked.sandbox import ForkedSandbox

__all__ = ["Fork", "ForkedSandbox", "Nest", "open_nest"]
