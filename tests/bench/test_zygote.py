"""The zygote bench measures both forms in turns, keeps every sample, and remembers what it chose."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from headstart.backends.process import open_process_backend
from headstart.bench import zygote
from headstart.bench.servers import InstalledServer, ServerSpec

pytestmark = pytest.mark.anyio

SERVER = """
import json, sys, {modules}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        result = {{"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {{"tools": {{}}}},
                  "serverInfo": {{"name": "tiny", "version": "1"}}}}
    else:
        result = {{"tools": []}}
    if "id" in asked:
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": result}}), flush=True)
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that two small servers are installed: one forks, one must not."""
    found: dict[str, InstalledServer] = {}
    for name, modules in (("plain", "asyncio, decimal, email.message"), ("leaky", "leak")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "leak.py").write_text("import socket; kept = socket.socket()")
        (folder / "server.py").write_text(SERVER.format(modules=modules))
        found[name] = InstalledServer(
            name=name,
            kind="pip",
            command=sys.executable,
            args=(str(folder / "server.py"),),
            env={},
            prefix=folder,
            data=folder,
            light=True,
        )

    async def ensure_installed(names: object, **_: object) -> dict[str, InstalledServer]:
        return found

    specs = {name: ServerSpec(name=name, kind="pip", pins=(), command="", light=True) for name in found}
    monkeypatch.setattr(zygote, "ensure_installed", ensure_installed)
    monkeypatch.setattr(zygote, "load_specs", lambda: specs)
    monkeypatch.setattr(zygote, "cache_dir", lambda: tmp_path)


@pytest.mark.usefixtures("tiny")
async def test_both_forms_are_measured_and_the_reason_of_a_cold_one_is_told(tmp_path: Path) -> None:
    async with open_process_backend(tmp_path / "state") as backend:
        first = await zygote.run(quick=True, backend=backend)
        again = await zygote.run(quick=True, backend=backend)
    for result in (first, again):
        servers = result.summary["servers"]
        assert set(servers["plain"]) == {"cold_ms_p50", "zygote_ms_p50", "n"}
        assert servers["plain"]["n"] == zygote.QUICK_COLD_ROUNDS
        assert servers["leaky"]["zygote_ms_p50"] is None
        assert result.notes[0].startswith("leaky starts cold: it leaves files or sockets open")
        measured = [(sample["server"], sample["form"]) for sample in result.samples]
        assert measured.count(("plain", "cold")) == zygote.QUICK_COLD_ROUNDS
        assert measured.count(("plain", "zygote")) == zygote.QUICK_ZYGOTE_ROUNDS
    remembered = {path.name async for path in anyio.Path(tmp_path).glob("*.form.json")}
    assert remembered == {"plain.process.form.json", "leaky.process.form.json"}
