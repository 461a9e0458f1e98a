"""What is written as YAML is read back as the same values, by PyYAML."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.ahead.launch.yaml_text import Noted, draw_yaml

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.lists(
    st.sampled_from(
        ["a", " ", "", "#b", "- c", "d: e", "\t", "%", "'", '"', "$X", "\\n", "~", "\x85", "\u2028", "\ufeff"]
    )
).map("\n".join)
SCALAR = st.none() | st.booleans() | st.integers() | TEXT
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@settings(max_examples=200, deadline=None)
@given(VALUE)
def test_the_same_values_are_read_back(value: object) -> None:
    assert yaml.safe_load(draw_yaml(value)) == value


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(TEXT, VALUE, max_size=3), st.text("ab#:\n ", max_size=20))
def test_a_note_changes_no_value(value: dict[str, object], why: str) -> None:
    noted = {key: Noted([Noted(one, why), {key: Noted(one, why)}], why) for key, one in value.items()}

    assert yaml.safe_load(draw_yaml(noted)) == {key: [one, {key: one}] for key, one in value.items()}


@pytest.mark.parametrize(
    "word", ["on", "No", "y", "NULL", "true", "~", "1.5", "0o7", "1_000", "1e3", ".inf", "2026-11-23", "="]
)
def test_a_word_with_another_meaning_is_quoted(word: str) -> None:
    assert yaml.safe_load(draw_yaml({"a": word})) == {"a": word}
    assert yaml.safe_load(draw_yaml({word: 1})) == {word: 1}
