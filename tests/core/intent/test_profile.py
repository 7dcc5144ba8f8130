from headstart.core.events import ToolProfile
from headstart.core.intent.profile import LONGEST_KEYWORD, MOST_KEYWORDS, Keyword, keywords_of, profile_of
from headstart.ids import ResourceId


def _tool(name: str, description: str = "", *arguments: str) -> ToolProfile:
    return ToolProfile(name=name, description=description, argument_names=arguments)


def _keywords(**servers: tuple[ToolProfile, ...]) -> dict[str, dict[str, Keyword]]:
    profiles = [profile_of(ResourceId(name), tools=tools) for name, tools in servers.items()]
    return {resource: {k.text: k for k in keywords} for resource, keywords in keywords_of(profiles).items()}


def test_generic_verbs_and_schema_talk_are_no_keywords() -> None:
    found = _keywords(docs=(_tool("get_list", "Returns the current value of an optional string, if available"),))

    assert not {"get", "list", "return", "current", "value", "optional", "string", "available"} & set(found["docs"])


def test_words_come_from_names_arguments_and_descriptions() -> None:
    found = _keywords(git=(_tool("git_log", "Show the commit history", "repo_path"),))
    assert {"git", "git log", "commit", "history", "repo"} <= set(found["git"])


def test_a_tool_name_counts_as_a_phrase_also_without_its_generic_beginning() -> None:
    found = _keywords(sheets=(_tool("create_pivot_table"),))
    assert {"create pivot table", "pivot table", "pivot"} <= set(found["sheets"])


def test_plurals_and_camel_case_are_the_same_keyword() -> None:
    found = _keywords(sheets=(_tool("listWorkbooks", "Lists every workbook"),))
    assert "workbook" in found["sheets"]
    assert "workbooks" not in found["sheets"]


def test_a_keyword_weighs_less_the_more_servers_share_it() -> None:
    ledger = _tool("ledger")
    alone = _keywords(a=(ledger,), b=(_tool("other"),))["a"]["ledger"]
    two = _keywords(a=(ledger,), b=(ledger,))["a"]["ledger"]
    four = _keywords(a=(ledger,), b=(ledger,), c=(ledger,), d=(ledger,))["a"]["ledger"]
    assert alone.weight > two.weight > four.weight > 0
    assert (alone.specific, two.specific, four.specific) == (True, False, False)


def test_a_word_belongs_to_the_server_that_uses_it_most_densely() -> None:
    editor = (*(_tool(f"tool_{number}_zeta") for number in range(40)), _tool("convert_to_pdf"))
    found = _keywords(reader=(_tool("read_pdf", "Reads a PDF"),), editor=editor)
    assert found["reader"]["pdf"].specific
    assert not found["editor"]["pdf"].specific
    assert found["reader"]["pdf"].weight > 3 * found["editor"]["pdf"].weight


def test_an_everyday_word_weighs_half() -> None:
    found = _keywords(a=(_tool("x", "garden trellis"),))
    assert found["a"]["garden"].weight == found["a"]["trellis"].weight / 2


def test_no_single_keyword_weighs_two() -> None:
    tools = tuple(_tool(f"worksheet_{letter}", "worksheet", "worksheet") for letter in ("alpha", "beta", "gamma"))
    assert 1 < _keywords(worksheet=tools)["worksheet"]["worksheet"].weight < 2


def test_the_operators_keywords_are_specific_even_when_shared_and_come_first() -> None:
    profiles = [profile_of(ResourceId(name), tools=(), keywords=("Pivot  Table", "  ")) for name in ("a", "b")]
    assert keywords_of(profiles)[ResourceId("a")] == (Keyword(text="pivot table", weight=1.25, specific=True),)


def test_keywords_are_bounded_in_number_and_length() -> None:
    words = " ".join(f"q{chr(97 + a)}{chr(97 + b)}x" for a in range(26) for b in range(26))
    profile = profile_of(ResourceId("big"), tools=(_tool("t" * 5_000, f"{words} {'z' * 10_000}"),))
    found = keywords_of([profile])[ResourceId("big")]
    assert len(found) == MOST_KEYWORDS
    assert max(len(keyword.text) for keyword in found) <= LONGEST_KEYWORD


def test_a_server_that_says_nothing_has_no_keywords() -> None:
    assert keywords_of([profile_of(ResourceId("x1"), tools=())]) == {ResourceId("x1"): ()}
    assert keywords_of([]) == {}
