"""An MCP server as a package has it: a `main` that a console script calls; standard library only."""

from __future__ import annotations

import json
import sys
from typing import Any

ECHO = {
    "name": "echo",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "packaged", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [ECHO]}
        case _:
            arguments: dict[str, Any] = request["params"].get("arguments") or {}
            return {"content": [{"type": "text", "text": f"{arguments.get('text', '')} from a package"}]}


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            reply = {"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()
