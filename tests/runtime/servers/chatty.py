"""A server that prints its banner and its log on stdout, and does not end with its stdin."""

import json
import signal
import sys
import threading

signal.signal(signal.SIGTERM, signal.SIG_IGN if "--stubborn" in sys.argv else signal.SIG_DFL)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(request: dict[str, object]) -> dict[str, object]:
    if request["method"] == "initialize":
        return {
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "chatty", "version": "1"},
        }
    if request["method"] == "tools/list":
        return {"tools": [{"name": "hello", "inputSchema": {"type": "object"}, "x-unknown": [1.0, None]}]}
    return {"content": [{"type": "text", "text": "hello"}], "later": {"field": 1}}


say("*** chatty server, version 1 ***")
for line in sys.stdin:
    say("[info] handling a line")
    request = json.loads(line)
    if "id" in request:
        say(json.dumps({"jsonrpc": "2.0", "id": str(request["id"]), "result": answer(request)}))
threading.Event().wait()
