import pytest

from headstart.core.intent.names import LONGEST_NAME, ResolvedTool, ToolNames
from headstart.core.names import merged_name
from headstart.ids import ResourceId

_TOOLS = {
    ResourceId("git"): ("git_log", "git_status"),
    ResourceId("files"): ("read", "search"),
    ResourceId("wiki"): ("search", "open_page"),
    ResourceId("fetch"): ("fetch",),
}


@pytest.fixture
def names() -> ToolNames:
    return ToolNames(_TOOLS)


@pytest.mark.parametrize(
    "written",
    [
        "git__git_log",
        "mcp__git__git_log",
        "mcp__headstart__git__git_log",
        "git.git_log",
        "git-git_log",
        "git_git_log",
        "git/git_log",
        "git:git_log",
        "GIT__git_log",
        "mcp_git_git_log",
        "functions.git__git_log",
        "default_api.mcp__git__git_log",
        "git_log",
    ],
)
def test_every_way_of_joining_server_and_tool_is_read(names: ToolNames, written: str) -> None:
    assert names.resolve(written) == ResolvedTool(resource=ResourceId("git"), tool="git_log")


def test_a_shortened_merged_name_is_read() -> None:
    long = "x" * 100
    names = ToolNames({ResourceId("server"): (long, long + "y")})
    found = names.resolve(merged_name("server", long))
    assert found == ResolvedTool(resource=ResourceId("server"), tool=long)


def test_a_plain_name_of_two_servers_means_nothing_by_itself(names: ToolNames) -> None:
    assert names.resolve("search") is None


def test_a_plain_name_of_two_servers_means_the_one_whose_tools_were_offered(names: ToolNames) -> None:
    found = names.resolve("search", offered=("read", "search"))
    assert found == ResolvedTool(resource=ResourceId("files"), tool="search")


def test_a_plain_name_of_two_offered_servers_still_means_nothing(names: ToolNames) -> None:
    assert names.resolve("search", offered=("read", "open_page", "search")) is None


def test_a_shortened_name_means_the_qualified_one_that_was_offered(names: ToolNames) -> None:
    found = names.resolve("search", offered=("wiki__search", "wiki__open_page"))
    assert found == ResolvedTool(resource=ResourceId("wiki"), tool="search")


def test_a_clients_own_tool_is_not_taken_for_ours(names: ToolNames) -> None:
    assert names.resolve("fetch", offered=("mcp__fetch__fetch", "fetch")) is None
    assert names.resolve("mcp__fetch__fetch", offered=("mcp__fetch__fetch", "fetch")) is not None


def test_a_plain_name_of_a_server_that_is_hardly_offered_is_not_certain(names: ToolNames) -> None:
    many = ToolNames({ResourceId("files"): ("read", "write", "move", "tree", "find")})
    found = many.resolve("read", offered=("read", "bash"))
    assert found is not None
    assert not found.certain


def test_an_unknown_prefix_is_believed_if_all_that_is_under_it_is_one_servers(names: ToolNames) -> None:
    found = names.resolve("mcp__mygit__git_log", offered=("mcp__mygit__git_log", "mcp__mygit__git_status"))
    assert found == ResolvedTool(resource=ResourceId("git"), tool="git_log")


def test_an_unknown_prefix_over_other_tools_too_is_somebody_else(names: ToolNames) -> None:
    assert names.resolve("mcp__hub__git_log", offered=("mcp__hub__git_log", "mcp__hub__open_issue")) is None


def test_an_unknown_prefix_is_not_certain_while_the_offer_is_unknown(names: ToolNames) -> None:
    found = names.resolve("mcp__mygit__git_log")
    assert found is not None
    assert not found.certain


def test_names_that_loosen_to_the_same_are_told_apart_by_their_exact_form() -> None:
    names = ToolNames({ResourceId("git"): ("hub_search",), ResourceId("git_hub"): ("search",)})
    assert names.resolve("git__hub_search") == ResolvedTool(resource=ResourceId("git"), tool="hub_search")
    assert names.resolve("git_hub__search") == ResolvedTool(resource=ResourceId("git_hub"), tool="search")
    assert names.resolve("git.hub.search") is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "_",
        "__",
        "____",
        "nothing",
        "git",
        "git__",
        "__git_log__",
        "\x00",
        "\ud800",
        "a" * LONGEST_NAME,
        "git__" * 40,
    ],
)
def test_names_that_mean_nothing_resolve_to_nothing(names: ToolNames, written: str) -> None:
    assert names.resolve(written, offered=("git__git_log", written)) is None


def test_a_name_beyond_the_limit_is_nobodys(names: ToolNames) -> None:
    assert names.resolve("x__" * LONGEST_NAME + "git__git_log") is None


def test_a_tool_without_a_letter_does_not_answer_to_its_servers_name() -> None:
    names = ToolNames({ResourceId("git"): ("!!!",)})
    assert names.resolve("git") is None
    assert names.resolve("git__!!!") == ResolvedTool(resource=ResourceId("git"), tool="!!!")


def test_tools_in_other_scripts_are_kept_apart() -> None:
    names = ToolNames({ResourceId("files"): ("读取", "写入")})
    assert names.resolve("files.写入") == ResolvedTool(resource=ResourceId("files"), tool="写入")
