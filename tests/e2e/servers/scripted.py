"""An MCP server that misbehaves as its first argument says; standard library only, so that it is up at once.

Its tools: `echo` says a text back with the server's own number, `add` keeps a note, `notes` reads them, `act` does what the
behaviour is about. Started with `log=FILE`, it writes there what happened to it; with `once=FILE`, it behaves well until there
is such a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

OPTIONS: dict[str, str] = {}
for argument in sys.argv[2:]:
    name, _, value = argument.partition("=")
    OPTIONS[name] = value
STILL_GOOD = "once" in OPTIONS and not Path(OPTIONS["once"]).exists()
BEHAVIOUR = "good" if STILL_GOOD else sys.argv[1]
NUMBER = os.urandom(4).hex()
notes: list[str] = []
cancelled: list[object] = []


def write(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def log(line: str) -> None:
    if "log" in OPTIONS:
        with Path(OPTIONS["log"]).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def text(said: str, *, error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], "isError": error}


def tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"name": name, "description": description, "inputSchema": schema}


TOOLS = [
    tool("echo", OPTIONS.get("about", "Say a text back."), text="string"),
    tool("add", "Keep a note.", text="string"),
    tool("notes", "Read the notes that were kept."),
    tool("act", "Do what this server is about."),
    tool("gave_up", "Count the calls that were cancelled."),
]


def act() -> dict[str, Any] | None:
    if BEHAVIOUR == "dies":
        sys.stderr.write("a bug in line 42\n")
        sys.stderr.flush()
        os._exit(7)
    if BEHAVIOUR == "large":
        return text("x" * (int(OPTIONS["mb"]) * 1024 * 1024))
    if BEHAVIOUR == "hangs":
        log("waiting")
        return None
    if BEHAVIOUR == "errs":
        return text("out of paper", error=True)
    return text("done")


def call(request: dict[str, Any]) -> dict[str, Any] | None:
    name = request["params"]["name"]
    arguments: dict[str, Any] = request["params"].get("arguments") or {}
    if name == "echo":
        return text(f"{arguments.get('text', '')} from {NUMBER}")
    if name == "add":
        notes.append(arguments["text"])
        return text(f"{len(notes)} notes")
    if name == "notes":
        return text("\n".join(notes))
    if name == "gave_up":
        return text(str(len(cancelled)))
    return act()


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    method = request["method"]
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": BEHAVIOUR, "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(request)
    return {}


def serve() -> None:
    log(f"started {os.getpid()} {NUMBER}")
    time.sleep(float(OPTIONS.get("start_s", "0")))  # what a heavy import would take
    for line in sys.stdin:
        request = json.loads(line)
        if BEHAVIOUR == "junk":
            sys.stdout.write("[info] a line of log where only messages belong\n")
        if request["method"] == "notifications/cancelled":
            cancelled.append(request["params"]["requestId"])
            log("cancelled")
        if "id" not in request:
            continue
        result = answer(request)
        if result is not None:
            write({"jsonrpc": "2.0", "id": request["id"], "result": result})


if BEHAVIOUR == "exits":
    sys.stderr.write("no API key\n")
    sys.exit(3)
if BEHAVIOUR == "silent":
    sys.stderr.write("loading a very large model\n")
    sys.stderr.flush()
    for _ in sys.stdin:
        pass
    sys.exit(0)
if BEHAVIOUR == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
serve()
if BEHAVIOUR == "stubborn":
    threading.Event().wait()
