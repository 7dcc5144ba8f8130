from headstart.cli.weaker import by_usefulness, terse

ROOT = "sandboxes run as the service's own user: start as root"
GROUPS = "no control group limits cpu; per-process limits stand in: start as root, or have systemd delegate a group"


def test_what_only_root_can_cure_is_told_last_and_nothing_twice() -> None:
    assert by_usefulness([ROOT, GROUPS, ROOT]) == [GROUPS, ROOT]


def test_the_terse_form_leaves_the_cures_out() -> None:
    assert terse([ROOT, GROUPS]) == ["no control group limits cpu", "sandboxes run as the service's own user"]
    assert terse(["no colon in it"]) == ["no colon in it"]
