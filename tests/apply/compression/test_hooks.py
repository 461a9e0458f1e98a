"""Two gloo ranks, many buckets: replicas stay equal, bad gradients arrive everywhere, checkpoints go on bit for bit."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.change.apply.compression.hooks import after, wait_for_release
from tests.apply.ranks import run_ranks

NAMES = ("bf16", "fp16", "int8", "topk", "topk_momentum", "powersgd", "topk_warm", "powersgd_warm")
KEEPING = ("int8", "topk", "topk_momentum", "powersgd", "topk_warm", "powersgd_warm")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(Path(__file__).with_name("hook_ranks.py"), tmp_path_factory.mktemp("hooks"))


@pytest.mark.parametrize("name", NAMES)
def test_replicas_are_equal_bit_for_bit(found: dict[str, Any], name: str) -> None:
    assert found[name]["agree"]
    assert found[name]["agree_accumulated"]


@pytest.mark.parametrize(
    ("name", "most_ratio"),
    [
        ("bf16", 1.01),
        ("fp16", 1.01),
        ("int8", 1.01),
        ("topk", 1.3),
        ("topk_momentum", 1.3),
        ("powersgd", 1.3),
        ("topk_warm", 1.3),
        ("powersgd_warm", 1.3),
    ],
)
def test_the_training_learns_about_as_well(found: dict[str, Any], name: str, most_ratio: float) -> None:
    assert found[name]["loss"] <= most_ratio * found["plain"]["loss"]


@pytest.mark.parametrize("name", NAMES)
def test_an_infinite_gradient_arrives_and_is_not_kept(found: dict[str, Any], name: str) -> None:
    assert found[name]["poison"]["arrived"]
    assert found[name]["poison"]["finite_after"]


@pytest.mark.parametrize("method", ["topk", "powersgd"])
def test_a_warm_up_is_bf16_s_and_then_over(found: dict[str, Any], method: str) -> None:
    assert found["warm-up"][method] == {"equal_until": True, "equal_afterwards": False}


@pytest.mark.parametrize("name", KEEPING)
def test_a_checkpoint_goes_on_bit_for_bit(found: dict[str, Any], name: str) -> None:
    assert found[name]["resume"] == {"same_state": True, "same_weights": True}


def test_a_model_wrapped_in_one_line_trains_and_goes_on(found: dict[str, Any]) -> None:
    one = found["one line"]
    assert one["agree"]
    assert one["goes_on"]
    assert one["shown"]


def test_an_exchange_that_failed_gives_its_error_and_no_gradient() -> None:
    class Work:
        def get_future(self) -> Any:
            future: Any = torch.futures.Future()
            future.set_exception(RuntimeError("the other rank is gone"))
            return future

    arrived = after(Work(), lambda: torch.full((3,), torch.nan))
    with pytest.raises(RuntimeError, match="the other rank is gone"):
        arrived.wait()


def test_the_process_ends_after_the_last_exchange_is_released() -> None:
    class Work:
        def get_future(self) -> Any:
            return pending

    pending: Any = torch.futures.Future()
    arrived = after(Work(), lambda: torch.ones(3))
    ended = threading.Thread(target=wait_for_release)
    ended.start()
    ended.join(0.1)
    assert ended.is_alive()
    pending.set_result(None)
    ended.join(0.8)
    assert not ended.is_alive()
    assert arrived.wait().tolist() == [1.0, 1.0, 1.0]
