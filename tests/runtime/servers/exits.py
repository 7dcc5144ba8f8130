"""A server that fails at once."""

import sys

sys.stderr.write("Traceback: no API key\n")
sys.exit(3)
