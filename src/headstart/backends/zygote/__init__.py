"""Preloaded Python processes that fork. Above: the backends that start them inside sandboxes, and the
runtime that decides for which programs. Below: the backend contract. `guest/` runs in foreign interpreters.
"""

from headstart.backends.zygote.entry import ColdReason, EntryPlan, plan_entry
from headstart.backends.zygote.fingerprint import fingerprint
from headstart.backends.zygote.process import (
    GUEST_DIR,
    ForkRequest,
    ZygoteProcess,
    audit_command,
    record_command,
    zygote_command,
)
from headstart.backends.zygote.recording import take_recording
from headstart.backends.zygote.report import PreloadReport, Recording

__all__ = [
    "GUEST_DIR",
    "ColdReason",
    "EntryPlan",
    "ForkRequest",
    "PreloadReport",
    "Recording",
    "ZygoteProcess",
    "audit_command",
    "fingerprint",
    "plan_entry",
    "record_command",
    "take_recording",
    "zygote_command",
]
