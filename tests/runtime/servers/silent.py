"""A server that reads everything and never answers."""

import sys

sys.stderr.write("loading a very large model\n")
sys.stderr.flush()
for _ in sys.stdin:
    pass
