# pyright: reportPrivateUsage=false
# (what is held on to, and for how long, is part of what is tested)

from headstart.core.events import ToolProfile
from headstart.core.intent.keyword import Lexicon, Scan
from headstart.core.intent.profile import profile_of
from headstart.ids import ResourceId


def _lexicon(**keywords: tuple[str, ...]) -> Lexicon:
    """Servers with operator's keywords only: each weighs 1.25 and is specific."""
    return Lexicon([profile_of(ResourceId(name), tools=(), keywords=words) for name, words in keywords.items()])


def _hits(lexicon: Lexicon, *pieces: str, gamma: float = 1.0) -> list[tuple[str, tuple[str, ...]]]:
    scan = Scan(lexicon, gamma=gamma)
    crossings = [crossing for piece in pieces for crossing in scan.feed(piece)]
    crossings += scan.finish()
    return [(crossing.resource, crossing.evidence) for crossing in crossings]


def test_a_keyword_is_found_as_a_whole_word_only() -> None:
    lexicon = _lexicon(reader=("pdf",))
    assert _hits(lexicon, "open the pdf now") == [("reader", ("pdf",))]
    assert _hits(lexicon, "pdfs") == [("reader", ("pdf",))]
    assert _hits(lexicon, "(PDF)") == [("reader", ("pdf",))]
    assert _hits(lexicon, "read_pdf") == [("reader", ("pdf",))]
    assert _hits(lexicon, "readPDFFile") == [("reader", ("pdf",))]
    assert _hits(lexicon, "pdf2md") == [("reader", ("pdf",))]
    assert _hits(lexicon, "xpdf") == []
    assert _hits(lexicon, "pdfium") == []


def test_a_keyword_cut_over_three_pieces_is_found_once() -> None:
    assert _hits(_lexicon(sheets=("workbook",)), "the wor", "kb", "ook is") == [("sheets", ("workbook",))]


def test_a_word_at_the_end_waits_until_it_is_over() -> None:
    scan = Scan(_lexicon(reader=("pdf",)), gamma=1)
    assert scan.feed("a pdf") == ()
    assert scan.feed("ium") == ()
    assert scan.feed(" or pdf") == ()
    assert [crossing.resource for crossing in scan.feed(".")] == ["reader"]


def test_the_same_keyword_counts_once_however_often_it_comes() -> None:
    assert _hits(_lexicon(reader=("pdf", "page")), "pdf pdf PDF pdfs", gamma=2) == []
    assert _hits(_lexicon(reader=("pdf", "page")), "pdf pdf page", gamma=2) == [("reader", ("pdf", "page"))]


def test_a_phrase_is_found_across_any_joint() -> None:
    lexicon = _lexicon(sheets=("pivot table",))
    for text in ("a pivot table", "pivot_table", "pivotTable", "pivot\n  table", "Pivot-Tables"):
        assert _hits(lexicon, text) == [("sheets", ("pivot table",))], text


def test_case_and_accents_do_not_matter() -> None:
    lexicon = _lexicon(jobs=("résumé",), roads=("straße",))
    assert _hits(lexicon, "RESUME") == [("jobs", ("resume",))]
    assert _hits(lexicon, "die STRASSE dort") == [("roads", ("strasse",))]


def test_a_keyword_in_a_script_without_spaces_is_found_inside_a_sentence() -> None:
    assert _hits(_lexicon(weather=("天气",)), "今天天", "气怎么样") == [("weather", ("天 气",))]


def test_overlapping_keywords_of_different_servers_are_all_found() -> None:
    lexicon = _lexicon(one=("change log",), other=("log entry",))
    assert _hits(lexicon, "change log entry") == [("one", ("change log",)), ("other", ("log entry",))]


def test_shared_words_alone_never_make_a_candidate() -> None:
    tool = ToolProfile(name="merge", description="ledger voucher invoice payroll accrual depreciation debtor creditor")
    lexicon = Lexicon([profile_of(ResourceId(name), tools=(tool,)) for name in ("a", "b")])
    text = "merge the ledger, voucher, invoice, payroll, accrual, depreciation, debtor, creditor"
    for gamma in (1, 2, 3):
        assert _hits(lexicon, text, gamma=gamma) == []


def test_one_specific_word_makes_shared_ones_count() -> None:
    shared = ToolProfile(name="merge", description="ledger voucher invoice")
    own = ToolProfile(name="zither")
    lexicon = Lexicon([profile_of(ResourceId("a"), tools=(shared, own)), profile_of(ResourceId("b"), tools=(shared,))])
    assert [resource for resource, _ in _hits(lexicon, "zither ledger voucher", gamma=2)] == ["a"]


def test_more_evidence_crosses_again() -> None:
    scan = Scan(_lexicon(a=("alpha", "beta", "delta", "omega")), gamma=2)
    first = scan.feed("alpha beta ")
    assert [crossing.score for crossing in first] == [2.5]
    again = scan.feed("delta omega ")
    assert [crossing.score for crossing in again] == [5.0]
    assert scan.feed("alpha beta delta omega ") == ()


def test_half_weight_text_needs_twice_the_hits() -> None:
    scan = Scan(_lexicon(a=("alpha", "beta", "delta", "omega")), gamma=2)
    assert scan.feed("alpha beta ", weight=0.5) == ()
    assert [crossing.hint for crossing in scan.feed("delta omega ", weight=0.5)] == [False]


def test_four_fifths_of_what_is_needed_in_own_words_is_a_hint_once() -> None:
    scan = Scan(_lexicon(a=("alpha", "beta", "delta", "omega")), gamma=2)
    [hint] = scan.feed("alpha beta delta ", weight=0.5)
    assert (hint.hint, hint.evidence) == (True, ("alpha", "beta", "delta"))
    assert scan.feed("alpha beta delta again ", weight=0.5) == ()
    assert [crossing.hint for crossing in scan.feed("omega ", weight=0.5)] == [False]


def test_the_state_of_a_stream_does_not_grow_with_its_text() -> None:
    scan = Scan(_lexicon(a=("alpha",), b=("a rather long phrase",)), gamma=1)
    for _ in range(1_000):
        scan.feed("alphabet soup and the alpha of a rather long story ")
    assert len(scan._tail) < 30
    assert len(scan._seen) == 1


def test_a_plural_that_is_a_function_word_is_not_looked_for() -> None:
    assert _hits(_lexicon(deer=("doe",)), "what does it do") == []


def test_an_empty_lexicon_finds_nothing() -> None:
    assert _hits(Lexicon([]), "anything at all") == []
    assert len(Lexicon([])) == 0
