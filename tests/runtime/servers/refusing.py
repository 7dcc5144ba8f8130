"""A server that knows no tool."""

import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": request.get("id")}
    if request["method"] == "initialize":
        info = {"name": "refusing", "version": "1"}
        answer["result"] = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info}
    elif request["method"] == "tools/call":
        answer["error"] = {"code": -32602, "message": f"no tool is called {request['params']['name']}"}
    else:
        continue
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
