"""What users write, and what they are told when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config.load import load_settings, read_mcp_file
from headstart.config.model import PoolMode, Settings
from headstart.errors import ConfigError


def mcp_file(folder: Path, text: str, *, name: str = "mcp.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load(folder: Path, toml: str = "", *, variables: dict[str, str] | None = None) -> Settings:
    config = folder / "headstart.toml"
    config.write_text(toml)
    return load_settings(config=config, variables=variables or {}, state_dir=folder / "state")


def complaint(folder: Path, toml: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, toml)
    error = caught.value
    told = f"{error}. hint: {error.hint}" if error.hint else str(error)
    assert "\n" not in told
    return told


def test_a_standard_mcp_file_is_read_as_it_is_and_never_written(tmp_path: Path) -> None:
    text = """{"mcpServers": {
      "git": {"command": "mcp-server-git", "args": ["--repository", "${REPO}"], "env": {"TOKEN": "${T:-none}"}, "alwaysAllow": []},
      "docs": {"type": "http", "url": "https://example.test/mcp", "headers": {"Authorization": "Bearer x"}}
    }}"""
    path = mcp_file(tmp_path, text)
    git, docs = read_mcp_file(path, variables={"REPO": "/srv/repo"})
    assert (git.command, git.args, git.env) == ("mcp-server-git", ("--repository", "/srv/repo"), {"TOKEN": "none"})
    assert docs.remote
    assert docs.headers == {"Authorization": "Bearer x"}
    assert path.read_text() == text


def test_values_that_may_be_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    path = mcp_file(tmp_path, '{"mcpServers": {"a": {"command": "x", "env": {"KEY": "s3cret"}}}}')
    assert "s3cret" not in repr(read_mcp_file(path, variables={}))


def test_an_unknown_key_is_named_with_its_line_and_the_likely_cure(tmp_path: Path) -> None:
    mcp_file(
        tmp_path,
        """{
  "mcpServers": {
    "playwright": {
      "command": "npx",
      "args": ["@playwright/mcp"],
      "headstart": {
        "instnace": "shared"
      }
    }
  }
}""",
    )
    told = complaint(tmp_path, 'mcp = "mcp.json"')
    assert told == 'mcp.json:7: playwright.headstart.instnace: unknown key. hint: did you mean "instance"?'


def test_a_missing_command_is_named_with_its_line(tmp_path: Path) -> None:
    mcp_file(tmp_path, '{"mcpServers": {\n  "git": {"args": []}\n}}')
    told = complaint(tmp_path, 'mcp = "mcp.json"')
    assert told.startswith("mcp.json:2: git: has neither command nor url. hint: ")


def test_a_server_that_is_there_twice_is_named_with_the_second_line(tmp_path: Path) -> None:
    mcp_file(tmp_path, '{"mcpServers": {\n  "git": {"command": "a"},\n  "git": {"command": "b"}\n}}')
    assert complaint(tmp_path, 'mcp = "mcp.json"').startswith("mcp.json:3: git: appears twice")


def test_the_same_server_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        mcp_file(tmp_path, '{"mcpServers": {"git": {"command": "a"}}}', name=name)
    assert "server 'git' is in two files" in complaint(tmp_path, 'mcp = ["a.json", "b.json"]')


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{"command": 3}', "mcp.json:2: git.command: should be a valid string, not 3"),
        ('{"command": "x", "headstart": {"zygote": "sometimes"}}', "git.headstart.zygote: 'sometimes' is not possible"),
        ('{"command": "x", "headstart": {"memory_mb": -1}}', "git.headstart.memory_mb: should be greater than 0"),
        ('{"command": "x", "url": "http://h/"}', "git: has both command and url"),
        ('{"command": "x", "env": {"A": "${NOPE}"}}', "git.env.A: ${NOPE} is not set. hint: export NOPE=…"),
        ('{"url": "http://h/sse", "type": "sse"}', "git.type: the old SSE transport is not spoken"),
        ('{"command": "x", "headstart": {"shared": true, "instance": "session"}}', "contradict each other"),
    ],
)
def test_bad_server_entries_are_named(tmp_path: Path, entry: str, expected: str) -> None:
    mcp_file(tmp_path, '{"mcpServers": {\n  "git": ' + entry + "\n}}")
    assert expected in complaint(tmp_path, 'mcp = "mcp.json"')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"mcpServers": {', "mcp.json:1:17: not valid JSON"),
        ('{"other": {}}', 'mcp.json:1: no "mcpServers" object'),
        ('{"mcpServers": {"a__b": {"command": "x"}}}', "a__b: not a usable server name"),
    ],
)
def test_unusable_mcp_files_are_named(tmp_path: Path, text: str, expected: str) -> None:
    mcp_file(tmp_path, text)
    assert expected in complaint(tmp_path, 'mcp = "mcp.json"')


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    told = complaint(tmp_path, 'mcp = "missing.json"')
    assert "missing.json: cannot be read: No such file or directory. hint: check the path" in told


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("[pool]\nmode = 'fast'", "headstart.toml:2: pool.mode: 'fast' is not possible here"),
        ("[pool]\nmemroy_mb = 3", 'headstart.toml:2: pool.memroy_mb: unknown key. hint: did you mean "memory_mb"?'),
        ("[service]\nnode = 'GPU 3'", "headstart.toml:2: service.node: 'GPU 3' cannot name a node"),
        ("[service]\nhost = '0.0.0.0'", "headstart.toml:2: service.host: 0.0.0.0 can be reached from other machines"),
        ("[upstreams]\nmcp = 'http://h/v1'", "headstart.toml:2: upstreams.mcp: this prefix is taken"),
        ("[upstreams]\na = 'http://h/v1/v1'", "headstart.toml:2: upstreams.a: the path has /v1 twice"),
        ("[upstreams]\na = 'h/v1'", "headstart.toml:2: upstreams.a: this is no http(s) URL"),
        (
            "[upstreams]\na = 'http://h/v1/chat/completions'",
            "headstart.toml:2: upstreams.a: this is one route of the model server",
        ),
        ("[upstreams]\na = 'ftp://h/v1'", "headstart.toml:2: upstreams.a: this is no http(s) URL"),
        ("[pool\n", "headstart.toml:1:6: not valid TOML"),
        ("[servers.git]\nshared = true", "headstart.toml:1: servers.git: no such server"),
        ("[servers.sandbox]\nshared = true", "hint: the built-in one is set under [sandbox]"),
        (
            "[sandbox]\nnetwrok = 'host'",
            'headstart.toml:2: sandbox.netwrok: unknown key. hint: did you mean "network"?',
        ),
        ("[sandbox]\nnetwork = 'all'", "headstart.toml:2: sandbox.network: 'all' is not possible here"),
        ("[sandbox]\npids = 0", "headstart.toml:2: sandbox.pids: should be greater than 0"),
        ("[sandbox]\nmounts = ['/nowhere/x']", "headstart.toml:2: sandbox.mounts: /nowhere/x does not exist"),
        ("[sandbox]\nmounts = ['x']", "x (written as 'x', which is relative to the file's folder) does not exist"),
        ("[sandbox]\nmounts = [{path = '/usr', mode = 'r'}]", "headstart.toml:2: sandbox.mounts.0.mode: 'r' is not"),
        ("[sandbox]\nmounts = [{path = '/usr', target = '/x'}]", "sandbox.mounts.0.target: unknown key"),
        (
            "[sandbox]\nmounts = [{path = 'headstart.toml', mode = 'overlay'}]",
            "headstart.toml is no folder, so it can be no overlay. hint: mount the folder that it is in",
        ),
        ("[sandbox]\nenv = {A = 1}", "headstart.toml:2: sandbox.env.A: should be a valid string"),
        ("[sandbox]\nenv = {'A=B' = ''}", "headstart.toml:2: sandbox.env: 'A=B' is no name of a variable"),
        ("[sandbox]\nenv = {A = '${NOT_SET}'}", "headstart.toml:2: sandbox.env.A: ${NOT_SET} is not set"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, toml: str, expected: str) -> None:
    assert expected in complaint(tmp_path, toml)


@pytest.mark.parametrize("prefix", ["s", "v1", "mcp", "k", "headstart", "a/b", ""])
def test_an_upstream_cannot_take_a_prefix_that_means_something_else(tmp_path: Path, prefix: str) -> None:
    told = complaint(tmp_path, f"[upstreams]\n{prefix!r} = 'http://h/v1'")
    assert f"upstreams.{prefix}: this prefix is taken or not usable" in told


def test_credentials_in_an_upstreams_url_are_refused_and_not_repeated(tmp_path: Path) -> None:
    told = complaint(tmp_path, "[upstreams]\na = 'https://me:secret@h/v1'")
    assert "without credentials" in told
    assert "secret" not in told


def test_what_the_built_in_sandboxes_are_made_with_is_read_and_nothing_is_made_up(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    toml = """
[sandbox]
network = "host"
mounts = ["data", {path = "/usr", mode = "overlay"}]
memory_mb = 500
env = {TOKEN = "${TOKEN}", PLAIN = "x"}
"""
    sandbox = load(tmp_path, toml, variables={"TOKEN": "s3cret"}).sandbox
    assert [(mount.path, mount.mode) for mount in sandbox.mounts] == [
        (tmp_path / "data", "ro"),
        (Path("/usr"), "overlay"),
    ]
    assert (sandbox.enabled, sandbox.network, sandbox.memory_mb, sandbox.pids) == (None, "host", 500, None)
    assert sandbox.env == {"TOKEN": "s3cret", "PLAIN": "x"}
    assert "s3cret" not in repr(sandbox)


def test_headstart_toml_adds_to_servers_without_touching_the_mcp_file(tmp_path: Path) -> None:
    mcp_file(tmp_path, '{"mcpServers": {"git": {"command": "x"}, "off": {"command": "y", "disabled": true}}}')
    settings = load(
        tmp_path,
        """
mcp = "mcp.json"
[pool]
mode = "on-demand"
[servers.git]
instance = "shared"
mounts = ["repo", {path = "/data", mode = "rw"}]
warmup = {tool = "git_status", arguments = {repo_path = "."}}
[upstreams]
default = "http://127.0.0.1:8000/v1/"
""",
    )
    (git,) = settings.servers
    assert git.shared
    assert [(str(m.path), m.mode) for m in git.mounts] == [(str(tmp_path / "repo"), "ro"), ("/data", "rw")]
    assert git.warmup is not None
    assert git.warmup.arguments == {"repo_path": "."}
    assert settings.pool.mode is PoolMode.ON_DEMAND
    assert settings.upstreams[0].base_url == "http://127.0.0.1:8000/v1"


def test_a_file_a_folder_and_a_mount_may_be_given_from_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    mcp_file(tmp_path / "home", '{"mcpServers": {"git": {"command": "x", "cwd": "~/code"}}}')
    (git,) = load(tmp_path, 'mcp = "~/mcp.json"\n[servers.git]\nmounts = ["~/repo"]\n').servers
    assert git.cwd == tmp_path / "home" / "code"
    assert [mount.path for mount in git.mounts] == [tmp_path / "home" / "repo"]


def test_the_home_of_nobody_who_is_known_is_a_name_like_any_other(tmp_path: Path) -> None:
    assert "no such file" in complaint(tmp_path, 'mcp = "~nobody-at-all/mcp.json"').lower()
    mcp_file(tmp_path, '{"mcpServers": {"git": {"command": "x", "cwd": "~nobody-at-all"}}}')
    (git,) = load(tmp_path, 'mcp = "mcp.json"\n[servers.git]\nmounts = ["~nobody-at-all/x"]\n').servers
    assert git.cwd == tmp_path / "~nobody-at-all"
    assert [mount.path for mount in git.mounts] == [tmp_path / "~nobody-at-all" / "x"]


def test_off_loopback_is_fine_with_a_key(tmp_path: Path) -> None:
    settings = load(tmp_path, "[service]\nhost = '0.0.0.0'\nkeys = ['0123456789abcdef0123456789abcdef']")
    assert settings.service.host == "0.0.0.0"
    assert "0123456789abcdef" not in repr(settings)


def test_a_misspelt_command_is_told_as_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"comand": "x"}}}')
    with pytest.raises(ConfigError) as caught:
        read_mcp_file(tmp_path / "mcp.json", variables={})
    assert caught.value.hint == 'did you mean "command" in place of "comand"?'


def test_a_server_says_where_its_options_are_set(tmp_path: Path) -> None:
    entries = '{"a": {"command": "x"}, "b": {"command": "x"},\n "c": {"command": "x", "headstart": {"pids": 9}}}'
    (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {entries}}}')
    config = tmp_path / "headstart.toml"
    config.write_text('mcp = "mcp.json"\n\n[servers.b]\nmounts = ["data"]\n')
    servers = load_settings(config=config, variables={}, state_dir=tmp_path).servers
    assert [one.option("mounts") for one in servers] == [
        "servers.a.mounts (headstart.toml)",
        "servers.b.mounts (headstart.toml:3)",
        "mcpServers.c.headstart.mounts (mcp.json:2)",
    ]
    assert [(one.path, one.written) for one in servers[1].mounts] == [(tmp_path / "data", "data")]


def test_learning_can_be_switched_off_and_only_with_a_boolean(tmp_path: Path) -> None:
    assert load(tmp_path, "").service.learn
    assert not load(tmp_path, "[service]\nlearn = false").service.learn
    with pytest.raises(ConfigError, match=r"headstart\.toml:2: service\.learn: "):
        load(tmp_path, "[service]\nlearn = 'no'")


@pytest.mark.parametrize(
    ("text", "where", "cure"),
    [
        ('{"mcpServers": {"a" 1}}', "mcp.json:1:21", 'write "name": value'),
        ('{"mcpServers": {\n"a": {"command": "x",}}}', "mcp.json:2:22", "no comma goes before a }"),
        ("// mine\n{}", "mcp.json:1:1", "a value is missing"),
        ('{"mcpServers": {}} x', "mcp.json:1:20", "take away what follows"),
        ('{"mcpServers": {"a": {"command": "x', "mcp.json:1:34", "end the text"),
        ('{"mcpServers": {"a": {"command": 5}}}', "mcp.json:1", "write text"),
        ('{"mcpServers": {"a": 5}}', "mcp.json:1", "names with values"),
    ],
)
def test_a_broken_json_file_is_told_with_its_place_and_a_cure(tmp_path: Path, text: str, where: str, cure: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_mcp_file(path, variables={})
    assert caught.value.where == where
    assert cure in (caught.value.hint or "")
    assert "McpServerEntry" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where", "cure"),
    [
        ("mcp = [", "headstart.toml:1:8", "a value is"),
        ('mcp = "a"\nport 8', "headstart.toml:2:6", "write name = value"),
        ("[pool]\nmode = fast", "headstart.toml:2:8", "text in"),
        ("[pool", "headstart.toml:1:6", "close the bracket"),
        ("[pool]\n[pool]", "headstart.toml:2:6", "remove one of the two"),
        ('mcp = "a', "headstart.toml:1:9", "close the text"),
        ('[service]\nport = "8"', "headstart.toml:2", "a whole number, without quotes"),
        ("[service]\nport = 99999", "headstart.toml:2", "a smaller number"),
    ],
)
def test_a_broken_toml_file_is_told_with_its_place_and_a_cure(tmp_path: Path, text: str, where: str, cure: str) -> None:
    path = tmp_path / "headstart.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(config=path, variables={}, state_dir=tmp_path)
    assert caught.value.where == where
    assert cure in (caught.value.hint or "")


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8-sig")
    assert [server.name for server in read_mcp_file(path, variables={})] == ["a"]
