"""compress-gradients: settings that its method would ignore; what it sends is tests/apply/compression's."""

from typing import Any

import pytest

from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.core.strategy import Choice, Strategy, StrategyError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0.1}, r'compress-gradients.ratio needs method = "topk": bf16 does not use it'),
        ({"method": "int8", "momentum": 0.5}, r'momentum needs method = "topk": int8'),
        ({"method": "topk", "rank": 4}, r'rank needs method = "powersgd": topk'),
        ({"warm_up_steps": 9}, r'warm_up_steps needs method = "topk" or "powersgd": bf16'),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings: dict[str, Any], message: str) -> None:
    choice = Choice(technique="compress-gradients", settings=settings)
    with pytest.raises(StrategyError, match=message):
        check_strategy(Strategy(choices=(choice,)), TECHNIQUES)
