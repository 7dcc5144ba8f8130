"""Reading what models say from copies, off the forwarding path."""

from headstart.proxy.reading.generations import GenerationReading, ModelReader
from headstart.proxy.reading.parsing import ReadingLimits

__all__ = ["GenerationReading", "ModelReader", "ReadingLimits"]
