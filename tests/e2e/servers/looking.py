"""An MCP server that tells what lies beside it, and what a module beside it says; standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import beside  # pyright: ignore[reportMissingImports]  written by the test


def look() -> str:
    said: str = beside.SAID  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return json.dumps([sorted(path.name for path in Path(__file__).parent.iterdir()), said])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "looking", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [{"name": "look", "description": "Look around.", "inputSchema": {"type": "object"}}]}
        case _:
            return {"content": [{"type": "text", "text": look()}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}) + "\n")
        sys.stdout.flush()
