"""Strategies read, written and chained; every mistake names its key."""

import pytest

from hotloop.core.strategy import (
    Choice,
    Strategy,
    StrategyError,
    parse_strategy,
    strategy_from_mapping,
    strategy_to_mapping,
    strategy_to_toml,
)

HEAD = 'schema = "hotloop.strategy/1"\n'


def test_toml_and_json_give_the_same_strategy_back() -> None:
    strategy = Strategy(
        name='quote " and \\ and é',
        choices=(
            Choice(technique="b", settings={"n": 2, "x": 0.5, "on": True, "mode": "a\nb"}, where=("train.py:4",)),
            Choice(technique="a", override=True),
        ),
    )
    assert parse_strategy(strategy_to_toml(strategy)) == strategy
    assert strategy_from_mapping(strategy_to_mapping(strategy)) == strategy
    assert [choice.technique for choice in strategy.choices] == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\x7f",
        "\x80",
        "\U0001f600 fast",
        "\t\r\n\b\f\x00\x1f",
        "\"'\\ \\u0041",
        "é\u2028\ufeff\uffff",
        "# [a.b] = 1",
    ],
)
def test_any_text_is_written_as_valid_toml(text: str) -> None:
    choice = Choice(technique="a", settings={"mode": text, text or "empty": [text]}, where=(f"{text}.py:1",))
    strategy = Strategy(name=text, choices=(choice,))
    written = strategy_to_toml(strategy)
    assert parse_strategy(written.encode().decode()) == strategy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "schema is None"),
        ('schema = "hotloop.strategy/2"', "hotloop.strategy/2"),
        (HEAD + "tecniques = 1", "unknown key 'tecniques'"),
        (HEAD + "techniques = 3", "techniques is 3"),
        (HEAD + "[techniques]\nfused-optimizer = true", "techniques.fused-optimizer is True"),
        (HEAD + "[techniques.a]\nwhere = 4", "techniques.a.where is 4"),
        (HEAD + "[techniques.a]\noverride = 1", "techniques.a.override is 1"),
        (HEAD + "name = 4", "name is 4"),
        (HEAD + "[techniques.a", "not TOML"),
        (HEAD + "[techniques.a]\n[techniques.a]", "not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_key(text: str, said: str) -> None:
    with pytest.raises(StrategyError, match=r"fast\.toml") as raised:
        parse_strategy(text, source="fast.toml")
    assert said in str(raised.value)
