"""Tests of this folder share `running.py`; pytest imports by path, so it is put on the path here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
