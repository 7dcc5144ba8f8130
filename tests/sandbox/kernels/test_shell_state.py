"""A bash session's state as text: what is captured is there again in a new bash, whatever it is."""

from __future__ import annotations

import re

import anyio
import pytest

import headstart
from headstart.errors import BackendError, ConfigError

pytestmark = pytest.mark.anyio


async def moved(box: headstart.Sandbox, before: str, after: str) -> str:
    """Run a command, move the session to a new bash, and return what a second one says there."""
    with anyio.fail_after(60):
        done = await box.shell.run(f"{before}\nold=$BASHPID")
        assert (done.lost, done.stderr) == (None, "")
        await box.shell.restore(await box.shell.capture())
        done = await box.shell.run(f"[[ $old != $BASHPID ]] || echo the same\n{after}")
        assert (done.lost, done.stderr) == (None, "")
        return done.stdout


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("x=$'a\\nb\\n'", "declare -p x"),
        ('x="it\'s \\"q\\" \\$HOME \\`id\\` \\\\ !"', "declare -p x"),
        ('x=$\'declare -- y="1"\\ndeclare -r PATH="/none"\\n\'; unset y', "declare -p x; echo ${y-unset}; echo $PATH"),
        ("x=$'\\001\\177\\e\\t\\r'", "declare -p x"),
        ("x=$'\\377\\xfe'", 'printf %s "$x" | od -An -tx1'),
        ("x='ä€𝄞'", "declare -p x"),
        ("x=; y=''", "declare -p x y"),
        ("a=(1 'b c' $'d\\ne' [9]='*' '' '$x')", "declare -p a"),
        (
            "declare -A m=([a b]=1 [$'k\\n']=$'v\\n' ['\"']=\\' ['$x']='*' [']']=x)",
            'for k in "${!m[@]}"; do printf \'%q=%q\\n\' "$k" "${m[$k]}"; done | sort',
        ),
        ("declare -a empty=(); declare -A none=()", "declare -p empty none"),
        ("readonly r=1; readonly -a ra=(1 2)", "declare -p r ra"),
        ("declare -i n=5; n+=2; declare -l low=ABC; declare -u up=abc", "n+=1; low+=D; declare -p n low up"),
        (
            "declare -i unset_n; declare -a unset_a; declare -x unset_x",
            "declare -p unset_n unset_a unset_x; echo ${unset_x-unset}",
        ),
        ("x=1; declare -n ref=x", "ref=2; declare -p ref x"),
        (
            "export E=$'a\\nb'; E2=2; export -n E2; unset LANG",
            "env -0 | tr '\\0' '\\1' | grep -ac E=; echo ${LANG-unset}; bash -c 'echo ${E2-unset}'",
        ),
        ("IFS=:; OPTIND=3; SECONDS=5000", 'printf %q "$IFS"; echo $OPTIND $((SECONDS >= 5000))'),
        ("declare -x SHLVL=7 HOSTNAME=h; UIDS=$UID", "echo $SHLVL $HOSTNAME $((UIDS == UID))"),
    ],
)
async def test_variables_of_every_kind(box: headstart.Sandbox, made: str, shown: str) -> None:
    before = (await box.shell.run(f"{made}\n{shown}")).stdout
    await box.shell.run("exit")
    assert await moved(box, made, shown) == before != ""


async def test_functions(box: headstart.Sandbox) -> None:
    made = (
        "shopt -s extglob\n"
        'plain() { local x=$1; echo "plain ${x@Q}"; }\n'
        "g-h() { case $1 in @(a|b)) echo ext ;; esac; cat <<END\nhere $1\nEND\n}\n"
        'exported() { echo "exported $1"; }; export -f exported\n'
        "fixed() { :; }; readonly -f fixed\n"
        'cd() { builtin cd "$@" && echo "in $PWD"; }; declare() { echo mine; }; set() { echo mine; }\n'
        "alias_free() { ll; }; ll() { echo function; }; alias ll='echo alias'\n"
        "trap() { echo mine; }; printf() { echo mine; }"
    )
    shown = "plain \"a'b\"; g-h a; bash -c 'exported 1'; cd /usr; alias_free; eval ll; declare; printf; set"
    told = "plain 'a'\\''b'\next\nhere a\nexported 1\nin /usr\nfunction\nalias\nmine\nmine\nmine\n"
    assert await moved(box, made, shown) == told
    done = await box.shell.run("fixed() { echo no; }; builtin declare -F | grep -c __headstart")
    assert done.stderr == "bash: fixed: readonly function\n"


async def test_aliases_options_and_traps(box: headstart.Sandbox) -> None:
    made = (
        "alias q='echo \"it'\\''s\"' alias='echo taken' trap=false set=false declare=false builtin=false\n"
        "\\shopt -s extglob nullglob dotglob; \\shopt -u sourcepath; \\set -o pipefail -fu; \\set +B\n"
        "\\trap 'echo \"bye $x\"' EXIT; \\trap $'echo a\\necho b' USR1; \\trap '' USR2; \\trap 'echo err' ERR; \\trap 'd=1' DEBUG"
    )
    shown = (
        "q; \\builtin unalias -a\n(shopt extglob nullglob dotglob sourcepath || :) | grep -c on; set -o | grep -cE '(pipefail|noglob|nounset).*on'\n"
        "echo {a,b}; trap -p EXIT USR1 USR2 ERR; kill -USR1 $$; kill -USR2 $$; unset d"
    )
    assert await moved(box, made, shown) == (
        "it's\n3\n3\n{a,b}\ntrap -- 'echo \"bye $x\"' EXIT\ntrap -- 'echo a\necho b' SIGUSR1\ntrap -- '' SIGUSR2\n"
        "trap -- 'echo err' ERR\na\nb\n"
    )
    assert (await box.shell.run("echo ${d-none}")).stdout == "1\n"


async def test_errexit_is_kept_and_ends_nothing_on_the_way(box: headstart.Sandbox) -> None:
    assert await moved(box, "set -eEuo pipefail", "echo ${-//[^eu]/}; false || true; echo on") == "eu\non\n"
    done = await box.shell.run("false; echo no")
    assert (done.lost is not None, done.stdout) == (True, "")


async def test_tracing_is_kept_and_shows_nothing_of_ours(box: headstart.Sandbox) -> None:
    await box.shell.run("set -x")
    await box.shell.restore(await box.shell.capture())
    done = await box.shell.run("echo a")
    assert (done.stdout, done.stderr.strip("+ \n")) == ("a\n", "echo a")


async def test_the_last_status_folder_umask_and_parameters(box: headstart.Sandbox) -> None:
    await box.files.make_folder("odd 'name\n")
    shown = 'echo $?; pwd; umask; printf "%q " "$@"'
    with anyio.fail_after(60):
        await box.shell.run("cd $'odd \\'name\\n'; umask 0137; set -- '' $'a\\nb' '*'; (exit 3)")
        state = await box.shell.capture()
        await box.shell.restore(state)
        done = await box.shell.run(shown)
    home = (await box.run("printf %s $HOME")).stdout
    assert done.stdout == f"3\n{home}/odd 'name\n\n0137\n'' $'a\\nb' \\* "


@pytest.mark.parametrize("own", ["PWD=/usr", "unset PWD", "PWD=.", "readonly PWD"])
async def test_the_folder_is_where_the_session_is_whatever_it_calls_that(box: headstart.Sandbox, own: str) -> None:
    home = (await box.run("printf %s $HOME")).stdout
    assert await moved(box, f"mkdir odd$'\\n'; cd odd$'\\n'; {own}", "/bin/pwd") == f"{home}/odd\n\n"


async def test_capturing_changes_nothing(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        await box.shell.run("set -eu; x=1; sleep 1000 & pid=$!; (exit 0)")
        first = await box.shell.capture()
        again = await box.shell.capture()
        moves = re.compile("RANDOM=|.*SECONDS")  # how RANDOM moves on is tried below
        steady = [line for line in first.splitlines() if not moves.match(line)]
        assert [line for line in again.splitlines() if not moves.match(line)] == steady
        done = await box.shell.run("echo $? $- $(($! == pid)); kill $pid")
        assert done.stdout.split()[0] == "0"
        assert done.stdout.split()[2] == "1"
        assert {"e", "u"} <= set(done.stdout.split()[1])
        assert "__headstart" not in (await box.shell.run("compgen -v | grep -v '^__headstart'; declare -p x")).stdout


async def test_a_state_can_begin_another_session_and_many(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        await box.shell.run("x=1; cd /usr; f() { echo f$x; }")
        state = await box.shell.capture()
        async with box.open_shell() as one, box.open_shell() as other:
            for shell in (one, other):
                await shell.restore(state)
                await shell.run("x+=1")
                assert (await shell.run("f; pwd")).stdout == "f11\n/usr\n"
                assert not (await shell.run("true")).restarted


async def test_a_large_state_moves(box: headstart.Sandbox) -> None:
    made = "for ((i = 0; i < 300; i++)); do eval \"v$i=\\$(head -c 3000 /dev/zero | tr '\\0' x)\"; done"
    assert await moved(box, made, "echo ${#v0} ${#v299}") == "3000 3000\n"


async def test_what_is_no_state_is_refused_and_a_folder_that_is_gone_is_told(box: headstart.Sandbox) -> None:
    with pytest.raises(ConfigError, match="this is no state of a bash session"):
        await box.shell.restore("rm -rf /")
    with anyio.fail_after(60):
        await box.shell.run("mkdir gone; cd gone; x=1")
        state = await box.shell.capture()
        await box.shell.run("rmdir ../gone")
        with pytest.raises(BackendError, match="its folder is not there"):
            await box.shell.restore(state)
        assert (await box.shell.run("echo $x")).stdout == "1\n"


DRAW = "echo $RANDOM $RANDOM $RANDOM"


async def test_random_goes_on_alike_in_the_session_and_wherever_its_state_is_restored(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        state = await box.shell.capture() if (await box.shell.run("RANDOM=42")).ok else ""
        drawn = (await box.shell.run(DRAW)).stdout
        for _ in range(2):
            await box.shell.restore(state)
            assert (await box.shell.run(DRAW)).stdout == drawn
        await box.shell.run("RANDOM=42")
        assert state.splitlines()[1] in (await box.shell.capture()).splitlines()
        assert (await box.shell.run(DRAW)).stdout == drawn, "it follows from what it was seeded with"


async def test_random_is_another_where_it_is_seeded_anew(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        await box.shell.run("RANDOM=42; kept=1")
        state = await box.shell.capture()
        drawn = [(await box.shell.run(DRAW)).stdout]
        for seed in (7, 8, 7):
            box.shell.go_on_as(state, seed=seed)
            drawn.append((await box.shell.run(DRAW)).stdout)
            assert (await box.shell.run("echo $kept")).stdout == "1\n"
        assert len(set(drawn)) == 3
        assert drawn[1] == drawn[3]


@pytest.mark.parametrize("made", ["unset RANDOM; RANDOM=hello", "readonly RANDOM", "unset RANDOM", "IFS=0123456789"])
async def test_a_random_that_is_none_any_more_does_no_harm(made: str, box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        assert await moved(box, f"{made}\nx=1", 'echo "$x"') == "1\n"


async def test_the_hostname_is_that_of_where_a_session_is_restored_unless_it_was_changed(
    box: headstart.Sandbox,
) -> None:
    with anyio.fail_after(60):
        await box.shell.run("x=1")
        state = await box.shell.capture()
        assert "HOSTNAME" not in state
        assert (await box.shell.run("[[ $HOSTNAME == $(hostname) ]] && HOSTNAME=mine")).ok
        assert 'declare -- HOSTNAME="mine"' in await box.shell.capture()
