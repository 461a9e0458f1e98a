from typing import Any

import pytest

from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.module_trace import (
    HOPPER_WORKSPACE_BYTES,
    WORKSPACE_BYTES,
    ModuleTrace,
    find_peak,
    make_request,
    read_tensors,
)
from hotloop.core.decode import decode
from hotloop.core.errors import UsageError

PARAMS = 1000


def peak(phase: str, position: str, **by_category: int) -> dict[str, Any]:
    return {
        "step": 2,
        "phase": phase,
        "position": position,
        "op": "mm",
        "total_bytes": sum(by_category.values()),
        "by_category": by_category,
        "by_class": {"Norm": 10, "Linear": 40},
        "block_by_class": {"Linear": 5},
        "largest": [{"size_bytes": 40, "category": "activations", "class": "Linear", "line": "train.py:3"}],
    }


def answer(**more: Any) -> dict[str, Any]:
    states = {"parameters": 2 * PARAMS, "optimizer_states": 4 * PARAMS}
    return {
        "params": PARAMS,
        "sizes": {**states, "gradients": 2 * PARAMS},
        "peaks": [
            peak("backward", "after", **states, activations=9000, temporaries=500),
            peak("optimizer", "after", **states, gradients=2 * PARAMS, temporaries=2 * PARAMS),
        ],
        "imitated": ["dropout: keeps a bool mask"],
        "notes": [],
        "seconds": 1.0,
        **more,
    }


def test_one_device_holds_the_worst_moment_with_context_and_cublas() -> None:
    found = find_peak(decode(ModuleTrace, answer()), read_hardware("a100-80g-sxm"))[1]
    hardware = read_hardware("a100-80g-sxm")
    assert (found.when, found.logits_bytes, found.buffers_bytes) == ("backward", 500, WORKSPACE_BYTES)
    assert found.peak_bytes == 15_500 + WORKSPACE_BYTES + hardware.context_bytes
    hopper = find_peak(decode(ModuleTrace, answer()), read_hardware("h100-80g-sxm"))[1]
    assert hopper.buffers_bytes == HOPPER_WORKSPACE_BYTES
    cpu = find_peak(decode(ModuleTrace, answer(imitated=[])), read_hardware("cpu"))[1]
    assert cpu.peak_bytes == 15_500


def test_a_batch_is_tensors_or_a_function() -> None:
    batch = read_tensors("x:float32[2,3],bool[]")
    assert batch == [
        {"name": "x", "dtype": "float32", "shape": [2, 3]},
        {"name": None, "dtype": "bool", "shape": []},
    ]
    assert make_request(("a.py", "f"), ("a.py", "g"), device="cuda")["batch"] == {"file": "a.py", "function": "g"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("float33[2]", "unknown dtype 'float33'"),
        ("float32[2,x]", "is not a shape"),
        ("float32[0]", "is not a shape"),
        ("x:float32[2", "is not a tensor"),
    ],
)
def test_a_wrong_batch_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_tensors(text)
