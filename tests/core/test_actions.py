import pytest

from headstart.core.actions import Annotations, Effect, action_key, canonical_arguments, effect_of

READ_ONLY = Annotations(read_only=True, open_world=False)


def test_the_same_arguments_in_another_order_are_the_same_action() -> None:
    one, other = canonical_arguments({"a": 1, "b": [2]}), canonical_arguments({"b": [2], "a": 1})
    assert action_key("git", "log", one) == action_key("git", "log", other)


def test_numbers_of_different_types_are_different_arguments() -> None:
    texts = {canonical_arguments({"n": n}) for n in (2, 2.0, "2")}
    assert len({action_key("git", "log", text) for text in texts}) == 3


def test_what_json_cannot_say_is_no_argument() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_arguments({"n": float("nan")})


@pytest.mark.parametrize(
    ("annotations", "effect"),
    [
        (READ_ONLY, Effect.READ),
        (Annotations(read_only=False, open_world=False), Effect.WRITE),
        (Annotations(open_world=False), Effect.WRITE),
        (Annotations(read_only=True), Effect.EXTERNAL),
        (Annotations(), Effect.EXTERNAL),
    ],
)
def test_trusted_hints_decide_and_what_they_leave_open_is_external(annotations: Annotations, effect: Effect) -> None:
    assert effect_of(override=None, annotations=annotations, annotations_trusted=True) is effect


def test_hints_that_are_not_trusted_decide_nothing() -> None:
    assert effect_of(override=None, annotations=READ_ONLY, annotations_trusted=False) is Effect.EXTERNAL


def test_the_configs_override_is_the_first_answer() -> None:
    assert effect_of(override=Effect.WRITE, annotations=READ_ONLY, annotations_trusted=True) is Effect.WRITE
