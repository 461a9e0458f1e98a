"""hotloop rule: a page for every rule and for every fix that a finding can name, as text for a terminal."""

from __future__ import annotations

import pytest

from hotloop.change.apply import ACTS, BY_HAND, TECHNIQUES
from hotloop.change.apply.strategy_check import check_strategy
from hotloop.cli import main
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.judge.diagnose import RULES


def show(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(("rule", *words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("fix", ACTS)
def test_every_fix_has_a_page(fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = show(fix, capsys=capsys)
    assert page.startswith(f"{fix}: ")
    assert len(page.splitlines()) > 4


def test_an_act_by_hand_names_the_rule_that_advises_it() -> None:
    assert [one.id for one in BY_HAND.values() if not any(f"`{rule}`" in one.manual for rule in RULES)] == []
    assert {one.safety.value for one in BY_HAND.values()} == {"show"}


def test_a_page_is_plain_text_in_80_columns_or_as_many_as_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    page = show("padding-waste", capsys=capsys)
    assert 60 < max(map(len, page.splitlines())) <= 80
    assert not set("#`") & set(page)
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, show("padding-waste", capsys=capsys).splitlines())) <= 50


def test_a_strategy_with_an_act_for_the_reader_names_its_page() -> None:
    strategy = Strategy(name="one", choices=(Choice(technique="precompute-samples", settings={}),))
    with pytest.raises(StrategyError, match="see: hotloop rule precompute-samples"):
        check_strategy(strategy, TECHNIQUES)
