"""Every rule's docstring is its manual: five headings, in order, each with text; and its summary is one line."""

import pytest

from hotloop.judge.diagnose import RULES

HEADINGS = ["What it does", "Why it costs", "How to recognize it", "What to do", "When it is wrong"]


@pytest.mark.parametrize("rule_id", list(RULES))
def test_a_rule_has_a_manual_with_its_five_headings_and_a_summary(rule_id: str) -> None:
    sections = [part.partition("\n") for part in RULES[rule_id].manual.split("## ")[1:]]
    assert [title.strip() for title, _, _ in sections] == HEADINGS
    assert [title for title, _, text in sections if len(text.split()) < 5] == []
    summary = RULES[rule_id].summary
    assert summary
    assert "\n" not in summary
    assert not summary.endswith(".")
