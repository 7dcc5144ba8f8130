"""Templates that sandboxes are started from: built once, found by name, used and removed by several processes.

Above is `Sandboxes`, which starts sandboxes from them, and the command line. Below are the backends, which show a
template's `root` and let its private folders begin with its `base`.
"""

from headstart.sandbox.options import HOST
from headstart.sandbox.templates.build import TemplateBuilder, TemplateOrder
from headstart.sandbox.templates.record import TemplateRecord
from headstart.sandbox.templates.store import HeldTemplate, TemplateStore

__all__ = ["HOST", "HeldTemplate", "TemplateBuilder", "TemplateOrder", "TemplateRecord", "TemplateStore"]
