"""Every rule's docstring is its manual: five headings, in order, each with text."""

import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.rules import Rule, rule
from hotloop.diagnose import RULES

HEADINGS = ("What it does", "Why it costs", "How to tell", "What to do", "When it is wrong")


def missing_sections(one: Rule) -> list[str]:
    """The headings that are absent, out of order or without text."""
    sections = [part.partition("\n") for part in one.manual.split("## ")[1:]]
    if [title.strip() for title, _, _ in sections] == list(HEADINGS):
        return [title for title, _, text in sections if len(text.split()) < 5]
    titles = [title.strip() for title, _, _ in sections]
    return [heading for heading in HEADINGS if heading not in titles] or ["order"]


@pytest.mark.parametrize("rule_id", list(RULES))
def test_every_rule_has_a_manual_with_its_five_headings(rule_id: str) -> None:
    assert missing_sections(RULES[rule_id]) == []


@pytest.mark.parametrize("rule_id", list(RULES))
def test_every_rule_says_in_one_line_what_the_fault_is(rule_id: str) -> None:
    summary = RULES[rule_id].summary
    assert summary
    assert "\n" not in summary
    assert not summary.endswith(".")


def test_this_check_can_fail() -> None:
    @rule("half-written", "a rule whose manual lacks a heading")
    def half_written(_: Analysis) -> None:
        """## What it does
        Something or other that takes five words.
        """

    @rule("wrong-order", "a rule whose headings are mixed up")
    def wrong_order(_: Analysis) -> None:
        """## Why it costs
        ## What it does
        ## How to tell
        ## What to do
        ## When it is wrong
        """

    assert "Why it costs" in missing_sections(half_written)
    assert missing_sections(wrong_order) == ["order"]
