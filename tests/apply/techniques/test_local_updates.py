"""Two gloo ranks: what a round leaves, and what is refused before anything changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.apply import TECHNIQUES, check_strategy
from hotloop.core.strategy import Choice, Strategy, StrategyError

SCRIPT = Path(__file__).parents[1] / "rounds_ranks.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
NAMES = [f"{outer}, {send}" for outer in ("average", "nesterov") for send in ("float32", "bf16")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("rounds") / "found.json"
    done = subprocess.run([*TORCHRUN, SCRIPT, out], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_hold_the_same_bits_after_each_round_and_only_then(found: dict[str, Any], name: str) -> None:
    assert found[name]["equal_after"] == [4, 8, 12]
    (status, detail), *more = found[name]["records"]
    assert (status, more) == ("applied", [])
    assert detail.startswith("the 2 workers exchange their weight changes every 4 steps")


@pytest.mark.parametrize("name", ["average, float32", "nesterov, float32"])
def test_a_round_is_what_torch_itself_computes(found: dict[str, Any], name: str) -> None:
    """With a schedule, clipping by each rank's own norm, batch norm, and torch.optim.SGD as the outer optimizer."""
    assert found[name]["distance"] <= 1e-6


def test_a_warm_up_is_plain_ddp_and_rounds_stay_at_multiples(found: dict[str, Any]) -> None:
    assert found["warm-up"] == {"equal_after": [1, 2, 3, 4, 5, 6, 8, 12], "is_plain": True}


def test_the_mean_can_be_seen_between_rounds(found: dict[str, Any]) -> None:
    assert found["mean"] == dict.fromkeys(("differs_before", "equal_inside", "is_mean", "own_afterwards"), True)


def test_a_weight_that_is_not_a_number_shows_on_all_ranks_after_the_round(found: dict[str, Any]) -> None:
    assert found["nan"] == [8, 9]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("with_scaler", "a GradScaler skips a step on one rank alone; train in bf16, which needs none"),
        ("with_half_weights", "the parameters are torch.bfloat16, not torch.float32 alone"),
        ("with_hook", "DDP has a communication hook"),
        ("with_other_weights", "the ranks have different weights after step 1"),
        (
            "with_shared_optimizer",
            "ZeroRedundancyOptimizer shares its work over the ranks and needs the same gradients on all of them",
        ),
        ("with_fsdp", "the model is sharded (FSDP): no rank has all the weights to train on alone"),
    ],
)
def test_what_cannot_be_trained_so_is_refused_on_all_ranks(found: dict[str, Any], case: str, reason: str) -> None:
    assert found["refused"][case] == [reason, reason]


@pytest.mark.parametrize("other", ["compress-gradients", "fp16-autocast", "fsdp2", "no-sync-accumulation"])
def test_what_contradicts_it_is_not_chosen_beside_it(other: str) -> None:
    choices = (Choice(technique="local-updates"), Choice(technique=other))
    with pytest.raises(StrategyError, match="local-updates"):
        check_strategy(Strategy(choices=choices), TECHNIQUES)


@pytest.mark.parametrize(
    ("technique", "settings", "message"),
    [
        ("compress-gradients", {"ratio": 0.1}, r'compress-gradients.ratio needs method = "topk": bf16 does not use it'),
        ("compress-gradients", {"method": "int8", "momentum": 0.5}, r'momentum needs method = "topk": int8'),
        ("compress-gradients", {"method": "topk", "rank": 4}, r'rank needs method = "powersgd": topk'),
        ("compress-gradients", {"warm_up_steps": 9}, r'warm_up_steps needs method = "topk" or "powersgd": bf16'),
        ("local-updates", {"outer_rate": 0.7}, r'outer_rate needs outer = "nesterov": average'),
        ("local-updates", {"send": "bf16", "outer_momentum": 0.9}, r'outer_momentum needs outer = "nesterov": average'),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(technique: str, settings: dict[str, Any], message: str) -> None:
    choice = Choice(technique=technique, settings=settings)
    with pytest.raises(StrategyError, match=message):
        check_strategy(Strategy(choices=(choice,)), TECHNIQUES)
