"""The form a server starts from is chosen by what was seen, and every refusal has its reason."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports tests by path, one by one
from plain_backend import PlainBackend

from headstart.backends.contract import Capabilities, Command, Identity, Template
from headstart.config.model import WarmupCall
from headstart.core.events import PrepareForm
from headstart.ids import SandboxId
from headstart.runtime import zygotes
from headstart.runtime.store import FormChoice
from headstart.runtime.zygote_trial import try_server
from headstart.runtime.zygotes import CheckedForm, FormCheck, choose_form, restore_form

pytestmark = pytest.mark.anyio

SERVER = """
import json, sys, helper

TOOLS = [{"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}, {"name": "change"}]

def change():
    return "changed"

def call(params):
    text = helper.answer() if params["name"] == "look" else change()
    return {"content": [{"type": "text", "text": text}]}

for line in sys.stdin:
    asked = json.loads(line)
    answers = {
        "initialize": lambda params: {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        },
        "tools/list": lambda params: {"tools": TOOLS},
        "tools/call": call,
    }
    if "id" in asked:
        result = answers[asked["method"]](asked.get("params"))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""

SDK_SERVER = """
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("tiny")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look() -> str:
    return "same"

if __name__ == "__main__":
    server.run()
"""


def make_template(folder: Path, helper: str = "def answer(): return 'same'", *, server: str = SERVER) -> Template:
    (folder / "helper.py").write_text(helper)
    script = folder / "server.py"
    script.write_text(server)
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TOKEN": "a session's own"}
    return Template(name="tiny", command=Command(argv=(sys.executable, str(script)), env=env, cwd=str(folder)))


@asynccontextmanager
async def chosen(template: Template, check: FormCheck) -> AsyncGenerator[CheckedForm]:
    form = await choose_form(template, check)
    try:
        yield form
    finally:
        if form.prepared is not None:
            await form.prepared.aclose()


@pytest.fixture
def check(tmp_path: Path) -> FormCheck:
    homes = tmp_path / "homes"
    homes.mkdir()
    return FormCheck(backend=PlainBackend(folder=homes), timeout_s=100)


async def test_a_server_on_the_sdk_forks_and_the_checked_zygote_is_handed_over(
    tmp_path: Path, check: FormCheck
) -> None:
    async with chosen(make_template(tmp_path, server=SDK_SERVER), check) as form:
        assert form.form is PrepareForm.ZYGOTE
        assert form.reason.startswith("forks at its event loop with ")
        assert form.preload is not None
        assert {"mcp.server", "pydantic"} <= set(form.preload.modules)
        assert form.prepared is not None
        assert form.prepared.form is PrepareForm.ZYGOTE
        assert form.zygote_start_s is not None  # the check was passed; how much is won, the bench measures
        assert form.cold_start_s is not None


@pytest.mark.parametrize(
    ("hints", "effects", "called"),
    [
        ("read_only_hint=True", {}, True),
        ("read_only_hint=True, open_world_hint=True", {}, False),
        ("read_only_hint=True", {"look": "external"}, False),
        ("destructive_hint=True", {}, False),
        ("destructive_hint=True", {"look": "read"}, True),
    ],
)
async def test_the_call_that_is_compared_only_reads_and_the_operators_word_goes_first(
    tmp_path: Path, check: FormCheck, hints: str, effects: dict[str, str], *, called: bool
) -> None:
    server = SDK_SERVER.replace("read_only_hint=True", hints)
    cold = await check.backend.prepare(make_template(tmp_path, server=server))
    sandbox = await check.backend.start(cold, Identity(sandbox=SandboxId("tried")))
    try:
        trial = await try_server(sandbox, choose=replace(check, effects=effects).choose_call, clock=check.clock)
    finally:
        await sandbox.aclose()
        await cold.aclose()
    assert (trial.call, len(trial.answers)) == (("look", 2) if called else ("", 0))


@pytest.mark.parametrize(
    ("before", "said", "words"),
    [
        ("import secrets\nnonce = secrets.token_hex(4)", "'same'", "before its main (__main__ takes random bytes)"),
        (
            "import ctypes, os\nborn = ctypes.CDLL(None).getpid()",
            "str(born == os.getpid())",
            "before its main (a fork answers look differently than a cold start)",
        ),
        ("import sys\nearly = sys.stdin.isatty()", "str(early)", "at its event loop"),
        ("with open('/etc/passwd') as file:\n    users = file.read()", "'same'", "at its event loop"),
    ],
)
async def test_what_a_program_does_before_its_event_loop_decides_whether_the_zygote_does_it(
    tmp_path: Path, check: FormCheck, before: str, said: str, words: str
) -> None:
    server = SDK_SERVER.replace('"same"', said).replace(
        "    server.run()", indent(before, "    ") + "\n    server.run()"
    )
    async with chosen(make_template(tmp_path, server=server), check) as form:
        assert form.form is PrepareForm.ZYGOTE
        assert words in form.reason


async def test_a_program_that_looks_at_what_is_mounted_for_it_does_so_in_every_fork(
    tmp_path: Path, check: FormCheck
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = SDK_SERVER.replace("    server.run()", f"    import os\n    os.listdir({str(data)!r})\n    server.run()")
    (program := tmp_path / "program").mkdir()
    async with chosen(make_template(program, server=server), check) as form:
        assert form.form is PrepareForm.ZYGOTE
        assert f"before its main (__main__ looks at {data})" in form.reason


@pytest.mark.parametrize(
    ("helper", "reason"),
    [
        (
            "import os; token = os.environ['TOKEN']\ndef answer(): return 'same'",
            "importing helper reads TOKEN, which differs between sessions",
        ),
        (
            "import os; everything = dict(os.environ)\ndef answer(): return 'same'",
            "importing helper keeps the value of TOKEN, which differs between sessions",
        ),
        (
            "import socket; s = socket.socket()\ndef answer(): return 'same'",
            "it leaves files or sockets open before it could fork (socket:",
        ),
        (
            "from pathlib import Path; Path('made.txt').write_text('x')\ndef answer(): return 'same'",
            "importing helper writes ",
        ),
        (
            "import os\ndef answer(pid=os.getpid()): return str(pid == os.getpid())",
            "a fork answers look differently than a cold start",
        ),
        (
            "import os; pid = os.getpid()\ndef answer(): return 'same'",
            None,
        ),
    ],
)
async def test_what_importing_does_decides(tmp_path: Path, check: FormCheck, helper: str, reason: str | None) -> None:
    async with chosen(make_template(tmp_path, helper), replace(check, session_env=("TOKEN",))) as form:
        if reason is None:
            assert form.form is PrepareForm.ZYGOTE
        else:
            assert form.form is PrepareForm.COLD
            assert form.reason.startswith(reason)
            assert form.prepared is None


async def test_an_environment_that_is_the_same_for_all_sessions_may_be_read(tmp_path: Path, check: FormCheck) -> None:
    helper = "import os; token = os.environ['TOKEN']\ndef answer(): return token"
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert form.form is PrepareForm.ZYGOTE


async def test_a_home_that_differs_between_sandboxes_must_not_be_read_at_import(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    homes.mkdir()
    check = FormCheck(backend=PlainBackend(folder=homes, one_home=False))
    helper = "from pathlib import Path; home = Path.home()\ndef answer(): return 'same'"
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert form.reason == "importing helper reads HOME, which differs between sessions"


async def test_a_variable_that_the_program_sets_before_its_reader_is_imported_means_cold(
    tmp_path: Path, check: FormCheck
) -> None:
    server = "import os; os.environ['MODE'] = 'x'\n" + SERVER
    helper = "import os; mode = os.environ.get('MODE')\ndef answer(): return 'same'"
    async with chosen(make_template(tmp_path, helper, server=server), check) as form:
        assert form.reason == "importing helper reads MODE, which the program itself sets first"


async def test_modules_that_start_threads_are_left_for_after_the_fork(tmp_path: Path, check: FormCheck) -> None:
    helper = (
        "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "def answer(): return 'same'"
    )
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert form.form is PrepareForm.ZYGOTE
        assert "imports 1 after the fork" in form.reason
        assert form.preload is not None
        assert "helper" not in form.preload.modules
        assert "json" in form.preload.modules


async def told_by(form: CheckedForm, check: FormCheck) -> tuple[str, ...]:
    """Return what a sandbox of the chosen zygote answers to `change`."""
    assert form.prepared is not None
    sandbox = await check.backend.start(form.prepared, Identity(sandbox=SandboxId("tried")))
    try:
        return (await try_server(sandbox, choose=lambda _: WarmupCall(tool="change"), clock=check.clock)).answers
    finally:
        await sandbox.aclose()


@pytest.mark.parametrize(
    "drawn",
    [
        "import secrets; own = secrets.token_hex()",
        "import uuid; own = uuid.uuid4()",
        "import random; own = random.random()",
        "import util; own = util.token()",
    ],
)
async def test_what_a_module_draws_at_import_is_another_in_every_fork(
    tmp_path: Path, check: FormCheck, drawn: str
) -> None:
    (tmp_path / "util.py").write_text("import secrets\ndef token(): return secrets.token_hex()")
    server = SERVER.replace('"changed"', "str(helper.own)")
    helper = drawn + "\ndef answer(): return 'same'"
    async with chosen(make_template(tmp_path, helper, server=server), check) as form:
        assert form.preload is not None, form.reason
        assert "helper" not in form.preload.modules
        assert "json" in form.preload.modules
        first, second = [await told_by(form, check) for _ in range(2)]
    assert len({*first}) == len({*second}) == 1
    assert first != second


async def test_a_secret_that_many_modules_import_is_another_in_every_fork(tmp_path: Path, check: FormCheck) -> None:
    helper = "import secrets; own = secrets.token_hex()\ndef answer(): return 'same'"
    tools = [f"tool{number}" for number in range(8)]
    for tool in tools:
        (tmp_path / f"{tool}.py").write_text("from helper import own")
    server = SERVER.replace('"changed"', "tool7.own").replace("helper\n", f"{', '.join(tools)}, helper\n", 1)
    async with chosen(make_template(tmp_path, helper, server=server), check) as form:
        assert form.preload is not None, form.reason
        assert not {"helper", *tools} & set(form.preload.modules)
        assert await told_by(form, check) != await told_by(form, check)


async def test_a_module_that_draws_at_import_leaves_the_way_to_the_loop_to_each_fork(
    tmp_path: Path, check: FormCheck
) -> None:
    server = "import helper\n" + SDK_SERVER
    async with chosen(make_template(tmp_path, "import uuid; own = uuid.uuid4()", server=server), check) as form:
        assert form.form is PrepareForm.ZYGOTE
        assert "before its main (helper takes random bytes)" in form.reason
        assert "imports 1 after the fork" in form.reason


async def test_a_draw_at_import_that_cannot_be_left_for_later_means_cold(
    tmp_path: Path, check: FormCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "MORE_AUDITS", 0)
    helper = "import secrets; own = secrets.token_hex()\ndef answer(): return 'same'"
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert form.reason == "importing helper takes random bytes, which all its forks would share"


async def test_lists_that_differ_in_a_fork_mean_cold(tmp_path: Path, check: FormCheck) -> None:
    (tmp_path / "early.py").write_text("import os; pid = os.getpid()")
    server = SERVER.replace('{"name": "change"}', '{"name": "a" if early.pid == os.getpid() else "b"}')
    server = server.replace("helper\n", "helper, early, os\n", 1)
    async with chosen(make_template(tmp_path, server=server), check) as form:
        assert form.reason == "a fork answers tools/list differently than a cold start"


async def test_an_answer_that_changes_by_itself_is_no_difference(tmp_path: Path, check: FormCheck) -> None:
    helper = "import time\ndef answer(): return str(time.perf_counter_ns())"
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert form.form is PrepareForm.ZYGOTE


async def test_the_warm_up_call_is_compared_if_there_is_one(tmp_path: Path, check: FormCheck) -> None:
    (tmp_path / "early.py").write_text("import os; pid = os.getpid()")
    server = SERVER.replace('"changed"', "str(os.getpid() == early.pid)").replace("helper\n", "helper, early, os\n", 1)
    warmup = WarmupCall(tool="change", arguments={"what": "x"})
    async with chosen(make_template(tmp_path, server=server), replace(check, warmup=warmup)) as form:
        assert form.reason == "a fork answers change differently than a cold start"


async def test_a_program_that_is_not_python_starts_cold(check: FormCheck) -> None:
    template = Template(name="sh", command=Command(argv=("/bin/sh", "-c", "exit")))
    async with chosen(template, check) as form:
        assert (form.form, form.reason) == (PrepareForm.COLD, "sh is not a Python program")


async def test_a_program_that_ends_at_once_starts_cold_and_its_last_words_are_told(
    tmp_path: Path, check: FormCheck
) -> None:
    template = make_template(tmp_path, server="import sys; sys.exit('no licence')")
    async with chosen(template, check) as form:
        assert form.reason == "a recorded cold start failed: it ended before it answered; it wrote: no licence"


async def test_a_check_that_takes_too_long_is_given_up(tmp_path: Path, check: FormCheck) -> None:
    template = make_template(tmp_path, server="import time; time.sleep(600)")
    async with chosen(template, replace(check, timeout_s=1.0)) as form:
        assert form.reason == "checking a zygote took longer than 1 s"


async def test_a_backend_without_zygotes_starts_everything_cold(tmp_path: Path, check: FormCheck) -> None:
    backend = PlainBackend(folder=tmp_path, capabilities=Capabilities(isolation="none"))
    async with chosen(make_template(tmp_path), replace(check, backend=backend)) as form:
        assert form.reason == "the plain backend cannot fork processes here"


async def test_a_choice_survives_being_stored_until_a_package_file_changes(tmp_path: Path, check: FormCheck) -> None:
    async with chosen(make_template(tmp_path), check) as form:
        stored = form.stored()
    text = json.dumps({"form": stored.form.value, "reason": stored.reason, "details": dict(stored.details)})
    told = json.loads(text)
    again = FormChoice(form=PrepareForm(told["form"]), reason=told["reason"], details=told["details"])
    assert restore_form(again) == replace(form, prepared=None)
    assert restore_form(replace(again, details={**again.details, "layout": 0})) is None
    (tmp_path / "helper.py").write_text("def answer(): return 'another'")
    assert restore_form(again) is None


async def test_a_refusal_survives_being_stored_too(tmp_path: Path, check: FormCheck) -> None:
    helper = "import socket; s = socket.socket()\ndef answer(): return 'same'"
    async with chosen(make_template(tmp_path, helper), check) as form:
        assert restore_form(form.stored()) == form
    template = Template(name="sh", command=Command(argv=("/bin/sh", "-c", "exit")))
    async with chosen(template, check) as form:
        assert restore_form(form.stored()) == form
