"""The examples in docstrings are true."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "at_least"),
    [
        ("headstart.core.calibration", 2),
        ("headstart.core.intent.names", 1),
        ("headstart.core.intent.words", 4),
        ("headstart.core.ledger", 1),
        ("headstart.core.policy", 1),
        ("headstart.core.transitions", 1),
        ("headstart.core.waste", 1),
        ("headstart.ids", 6),
    ],
)
def test_examples_in_docstrings_are_true(module: str, at_least: int) -> None:
    found = [test for test in doctest.DocTestFinder().find(import_module(module)) if test.examples]
    runner = doctest.DocTestRunner(verbose=False)
    for test in found:
        runner.run(test)
    assert len(found) >= at_least
    assert runner.failures == 0
