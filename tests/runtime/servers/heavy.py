"""A server that needs a CPU-second before it says a word."""

import json
import sys
import time

while time.process_time() < 1.0:
    pass


def answer(request: dict[str, object]) -> dict[str, object]:
    if request["method"] == "initialize":
        return {
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "heavy", "version": "1"},
        }
    if request["method"] == "tools/list":
        return {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]}
    return {"content": [{"type": "text", "text": "hello"}]}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}) + "\n")
        sys.stdout.flush()
