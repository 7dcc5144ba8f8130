import pytest

from headstart.core.intent.words import Normaliser, forms, normal, singular


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("git_log", "git log"),
        ("git-log", "git log"),
        ("gitLog", "git log"),
        ("GITLog", "git log"),
        ("Git  log!", "git log"),
        ("sqlite3", "sqlite 3"),
        ("UTF-8", "utf 8"),
        ("Straße", "strasse"),
        ("\uff30\uff24\uff26", "pdf"),
        ("résumé", "resume"),
        ("re\u0301sume\u0301", "resume"),
        ("İstanbul", "istanbul"),
        ("\u201cdon\u2019t\u201d\u2026 1\u20132", "don t 1 2"),
        ("\u201cnaïve\u201d\u2014résumé", "naive resume"),
        ("天气预报", "天 气 预 报"),
        ("", ""),
        ("_-_", ""),
    ],
)
def test_ways_of_writing_the_same_words_have_one_normal_form(written: str, told: str) -> None:
    assert normal(written) == told


def test_a_capital_that_may_begin_a_word_waits_for_the_next_piece() -> None:
    pieces = Normaliser()
    assert pieces.feed("PDF") == "pd"
    assert pieces.feed("ile") == " file"


def test_finishing_ends_the_last_word_and_the_next_text_begins_a_new_one() -> None:
    pieces = Normaliser()
    assert [pieces.feed("log"), pieces.finish(), pieces.feed("s"), pieces.finish()] == ["log", " ", "s", " "]


def test_finishing_twice_adds_no_second_border() -> None:
    pieces = Normaliser()
    pieces.feed("log ")
    assert [pieces.finish(), pieces.finish()] == ["", ""]


def test_lone_surrogates_and_control_characters_are_read_without_failing() -> None:
    assert normal("a\ud800b\x00c") == "a b c"


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("sizes", "size"),
        ("entities", "entity"),
        ("boxes", "box"),
        ("branches", "branch"),
        ("pdfs", "pdf"),
        ("gas", "gas"),
    ],
)
def test_plurals_are_reduced_by_their_ending(plural: str, one: str) -> None:
    assert singular(plural) == one


def test_verbs_bring_their_forms_along() -> None:
    assert forms("merge", verb=True) == ("merge", "merges", "merged", "merging")
    assert forms("modify", verb=True) == ("modify", "modifies", "modified", "modifying")
    assert forms("stack trace") == ("stack trace", "stack traces")


def test_words_of_other_alphabets_are_not_inflected() -> None:
    assert forms("天 气", verb=True) == ("天 气",)
