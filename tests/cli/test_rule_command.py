"""hotloop rule: a page for every rule and for every fix that a finding can name, as text for a terminal."""

from __future__ import annotations

import pytest

from hotloop.apply import TECHNIQUES
from hotloop.apply.check import check_strategy
from hotloop.cli import main
from hotloop.core.acts import ACTS, BY_HAND
from hotloop.core.strategy import Choice, Strategy, StrategyError
from hotloop.diagnose import RULES


def show(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(("rule", *words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("fix", ACTS)
def test_every_fix_has_a_page(fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = show(fix, capsys=capsys)
    assert page.startswith(f"{fix}: ")
    assert len(page.splitlines()) > 4


def test_a_fix_is_made_by_hotloop_or_by_hand() -> None:
    assert set(BY_HAND) == set(ACTS) - set(TECHNIQUES)
    assert all(any(f"`{rule}`" in text for rule in RULES) for text in BY_HAND.values())


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
    with pytest.raises(StrategyError, match="hotloop rule precompute-samples says how"):
        check_strategy(strategy, TECHNIQUES)
