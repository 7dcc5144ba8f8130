"""The attacks that are tried from inside of a sandbox, by what is attacked."""

from .attack import ABSENT, DENIED, PRELUDE, UNBOUNDED, Attack
from .bombs import BOMBS
from .files import FILES
from .network import NETWORK
from .prefix import PREFIX
from .privileges import DEVICES, KERNEL, PRIVILEGES
from .processes import PROCESSES

__all__ = ["ABSENT", "ATTACKS", "DENIED", "PRELUDE", "UNBOUNDED", "Attack"]

ATTACKS = [*FILES, *PREFIX, *DEVICES, *PRIVILEGES, *PROCESSES, *KERNEL, *NETWORK, *BOMBS]
