"""`run_in_shell`: commands of a bash session that keeps its state, whatever they do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import headstart
from headstart.errors import BackendError, ConfigError

pytestmark = pytest.mark.anyio


async def run(box: headstart.Sandbox, command: str, **more: Any) -> headstart.ShellResult:
    with anyio.fail_after(60):
        return await box.run_in_shell(command, **more)


async def said(box: headstart.Sandbox, command: str) -> str:
    done = await run(box, command)
    assert (done.stderr, done.lost) == ("", None)
    return done.stdout


async def test_commands_find_what_those_before_have_left(box: headstart.Sandbox) -> None:
    done = await run(
        box, "cd /usr && export A=1; b='x  y'; f() { echo \"f $1\"; }; alias ll='f alias'; set -f; umask 027"
    )
    assert (done.exit_code, done.cwd, done.stdout, done.stderr) == (0, "/usr", "", "")
    assert await said(box, 'pwd; echo "$A $b"; f 1; ll; echo *; umask') == "/usr\n1 x  y\nf 1\nf alias\n*\n0027\n"
    assert await said(box, "bash -c 'echo $A'") == "1\n"
    assert await said(box, "set -- a 'b c'") == ""
    assert await said(box, 'echo $# "$2"; cd -') == "2 b c\n" + (await box.run("echo $HOME")).stdout


async def test_a_command_tells_how_it_ended_and_what_it_said(box: headstart.Sandbox) -> None:
    done = await run(box, "echo out; echo err >&2; false")
    assert (done.stdout, done.stderr, done.exit_code, done.ok) == ("out\n", "err\n", 1, False)
    assert await said(box, "echo $?") == "1\n"
    assert (await run(box, "nonesuch")).exit_code == 127
    assert (await run(box, "bash -c 'kill -9 $$'")).exit_code == 137
    assert (await run(box, "return 7; echo no")).exit_code == 7
    assert (await run(box, "(exit 5)")).exit_code == 5
    assert (await run(box, "")).ok


async def test_what_bash_says_is_clean(box: headstart.Sandbox) -> None:
    assert (await run(box, "nonesuch")).stderr == "bash: nonesuch: command not found\n"
    for line in (
        "true &",
        "wait",
        "bash -c 'kill -9 $$'",
        "PS1='> '; PROMPT_COMMAND='echo prompt'",
        "sleep 0 & wait $!",
    ):
        done = await run(box, line)
        assert (done.stdout, done.stderr) == ("", "")
    await run(box, "set -xv")
    assert (await run(box, "echo traced")).stderr.splitlines()[-1].endswith(" echo traced")
    await run(box, "set +xv")
    assert (await run(box, "echo on")) == headstart.ShellResult(
        exit_code=0, cwd=(await run(box, "")).cwd, stdout="on\n"
    )


async def test_what_cannot_be_a_command_is_told_and_the_session_goes_on(box: headstart.Sandbox) -> None:
    await run(box, "x=1")
    for command in ("echo 'open", "if", "echo )", "cat <<EOF\nno end", "${", "f() {", "echo \\", "((", "case x in"):
        assert (await run(box, command)).lost is None
    assert (await run(box, 'set -u; echo "$unset"; echo no')).stdout == ""
    assert await said(box, "set +u; echo $x ${unset-}") == "1\n"
    assert (await run(box, "${y:?is missing}")).exit_code != 0
    with pytest.raises(ConfigError, match="is no text for bash"):
        await box.run_in_shell("echo \0")
    with pytest.raises(ConfigError, match="is no text for bash"):
        await box.run_in_shell(b"true")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="is no text for bash"):
        await box.run_in_shell("echo \ud800")
    assert (await run(box, "echo $x")).stdout == "1\n"


async def test_a_large_command_of_any_characters_arrives_as_it_is(box: headstart.Sandbox) -> None:
    text = "ä'\"\\$`!*\n\t\r\x01\x7f€𝄞 " * 20_000
    done = await run(box, f"cat <<'END' | sha256sum\n{text}\nEND")
    assert done.stdout.split()[0] == hashlib.sha256(f"{text}\n".encode()).hexdigest()
    done = await run(box, "echo a!b \"!!\" $'\\e'")
    assert done.stdout == "a!b !! \x1b\n"


async def test_stdin_is_empty_and_the_sessions_own_channel_is_out_of_reach(box: headstart.Sandbox) -> None:
    assert (await run(box, "cat; read x; echo $?; ls /proc/self/fd | grep -c 59")).stdout == "1\n0\n"
    assert (await run(box, "exec 3>&- 4>&- 5>&- 9>&-; exec 0<&-; echo on")).stdout == "on\n"
    assert (await run(box, "exec 1>&- 2>&-; echo nowhere")).lost is None
    done = await run(box, "echo $?")
    assert (done.stdout, done.lost) == ("1\n", None)  # they are mended


async def test_a_session_with_few_descriptors_goes_on(box: headstart.Sandbox) -> None:
    await run(box, "ulimit -n 64; x=1")
    assert await said(box, "echo $x; ulimit -n") == "1\n64\n"


async def test_redirections_of_the_session_stay(box: headstart.Sandbox) -> None:
    await run(box, "exec 7>&1 > log 2>&1")
    assert (await run(box, "echo logged; nonesuch")).stdout == ""
    assert await said(box, "exec >&7; cat log") == "logged\nbash: nonesuch: command not found\n"


async def test_a_session_that_is_ended_tells_its_status_and_the_next_command_gets_a_new_one(
    box: headstart.Sandbox,
) -> None:
    for command, code, told in (
        ("x=1; trap 'echo bye' EXIT; exit 3", 3, "ended by itself, with status 3"),
        ("x=1; kill -9 $$", 137, "killed by signal 9"),
        ("x=1; exec true", 0, "ended by itself, with status 0"),
        ("x=1; set -e; false", 1, "ended by itself, with status 1"),
    ):
        done = await run(box, command)
        assert done.lost is not None
        assert (done.exit_code, done.cwd, done.stderr) == (code, None, "")
        assert done.stdout == ("bye\n" if "bye" in command else "")
        assert told in done.lost
        done = await run(box, "echo ${x-none}")
        assert (done.stdout, done.restarted) == ("none\n", True)
        assert not (await run(box, "true")).restarted


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000",
        "while :; do :; done",
        "while :; do sleep 1000; done",
        "f() { f2; }; f2() { while :; do sleep 0.1; done; }; f | cat",
        "y=$(sleep 1000)",
        "(sleep 1000; sleep 1000)",
        "wait",
    ],
)
async def test_a_command_that_takes_too_long_is_interrupted_and_the_session_goes_on(
    box: headstart.Sandbox, command: str
) -> None:
    await run(box, "cd /usr; x=1; sleep 1000 & pid=$!")
    done = await run(box, f"echo so far; {command}; echo no", timeout_s=0.3)
    assert (done.exit_code, done.timed_out, done.lost, done.stdout, done.stderr) == (130, True, None, "so far\n", "")
    assert done.cwd == "/usr"
    assert await said(box, "echo $x; kill -0 $pid && echo the job goes on") == "1\nthe job goes on\n"


async def test_a_late_interrupt_never_hits_the_next_command(box: headstart.Sandbox) -> None:
    for number in range(40):
        await run(box, "sleep 0.02", timeout_s=0.0195 + number / 20_000)
        done = await run(box, "for ((i = 0; i < 500; i++)); do :; done; echo $i")
        assert (done.stdout, done.exit_code) == ("500\n", 0)


async def test_a_command_that_does_not_react_loses_the_session_and_that_is_told(box: headstart.Sandbox) -> None:
    done = await run(box, "x=1; trap '' INT; echo deaf; sleep 1000", timeout_s=0.3)
    assert (done.timed_out, done.stdout, done.exit_code) == (True, "deaf\n", 137)
    assert "had not reacted to an interrupt after 2 s" in (done.lost or "")
    done = await run(box, "echo ${x-none}")
    assert (done.stdout, done.restarted) == ("none\n", True)


async def test_jobs_go_on_and_what_they_say_meanwhile_comes_with_the_next_command(box: headstart.Sandbox) -> None:
    assert await said(box, "(while [ ! -e go ]; do sleep 0.01; done; head -c 300000 /dev/zero; : > done) &") == ""
    await box.files.write("go", b"")
    await box.run("while [ ! -e done ]; do sleep 0.01; done", timeout_s=20)  # nobody reads, and it is not held up
    assert await said(box, "wait; echo on") == "\0" * 300_000 + "on\n"


async def test_output_is_told_as_it_comes_and_all_of_it_before_the_result(box: headstart.Sandbox) -> None:
    taken = {"stdout": 0, "stderr": 0}

    async def take(name: str, chunk: bytes) -> None:
        taken[name] += len(chunk)

    done = await run(box, "head -c 300000000 /dev/zero; head -c 70000 /dev/zero >&2", on_output=take)
    assert taken == {"stdout": 300_000_000, "stderr": 70_000}
    assert (done.stdout, done.truncated) == ("", False)
    done = await run(box, "head -c 3000000 /dev/zero")
    assert (len(done.stdout), done.truncated) == (1 << 20, True)


async def test_what_raises_while_it_takes_output_is_raised_and_the_session_goes_on(box: headstart.Sandbox) -> None:
    async def refuse(name: str, chunk: bytes) -> None:
        raise LookupError("not mine")

    with pytest.raises(LookupError, match="not mine"):
        await run(box, "x=1; while :; do echo y; done", on_output=refuse)
    assert await said(box, "echo $x") == "1\n"


async def test_traps_stay_and_run(box: headstart.Sandbox) -> None:
    await run(box, "trap 'echo got it' USR1; trap 'echo failed' ERR")
    assert (await run(box, "kill -USR1 $$; false; true")).stdout == "got it\nfailed\n"


async def test_there_can_be_several_sessions_each_with_its_own_state(box: headstart.Sandbox) -> None:
    async with box.open_shell(cwd="/usr", env={"WHO": "me"}) as other:
        await run(box, "x=1")
        done = await other.run("echo $WHO ${x-none}; sleep 1000 & echo $!")
        assert (done.cwd, done.stdout.splitlines()[0]) == ("/usr", "me none")
    with pytest.raises(BackendError, match="the shell was closed"):
        await other.run("true")
    pid = done.stdout.splitlines()[1]
    await box.run(f"while kill -0 {pid} 2> /dev/null; do sleep 0.01; done", timeout_s=20)
    await box.kill()
    with pytest.raises(BackendError):
        await box.run_in_shell("true")


@pytest.mark.parametrize("answer", ["%d nonsense", "x", "%d 0", "%d 99999 /"])
async def test_an_answer_that_a_command_made_up_costs_it_the_session_and_nobody_else(
    box: headstart.Sandbox, answer: str
) -> None:
    done = await run(box, f"__headstart_report() {{ printf '{answer}\\0' $1 >&59; }}")
    assert "what means nothing" in (done.lost or "")
    assert (await run(box, "echo on")).stdout == "on\n"


async def test_nothing_of_a_session_is_left_open(box: headstart.Sandbox, open_descriptors: Callable[[], int]) -> None:
    await run(box, "true")
    before = open_descriptors()
    for _ in range(5):
        async with box.open_shell() as shell:
            await shell.run("true")
        await run(box, "exit")
        await run(box, "true")
    assert open_descriptors() == before
