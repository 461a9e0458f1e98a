"""The battery itself: techniques that break their promise are caught, and honest ones pass."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import battery as b
import torch
from hotloop.core.findings import Numerics, Safety
from hotloop.core.techniques import Applied, NotApplicable, Stage, Technique

def technique(name, numerics, change, hook="change_optimizer"):
    members = {"id": name, "title": name, "numerics": numerics, "safety": Safety.AUTO, "stage": Stage.OPTIMIZER,
               hook: lambda self, one, settings, context: change(one)}
    return type(name, (Technique,), members)()

def rate(factor):
    def change(optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= factor
        return Applied(text="lr")
    return change

def fused(optimizer):
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    return Applied(text="fused")

def secretly(optimizer):
    rate(1.01)(optimizer)
    return NotApplicable(why="nothing to do")

def broken(optimizer):
    raise RuntimeError("broken")

def dtype(model):
    model.double().float()
    return Applied(text="there and back")

E, R, L = Numerics.EXACT, Numerics.REORDERED, Numerics.LOSSY
several = [technique("idle", E, lambda one: Applied(text="nothing")), technique("faster-rate", R, rate(1.01)),
           technique("called-exact", E, fused), technique("called-reordered", R, fused),
           technique("secretly", L, secretly), technique("broken", L, broken),
           technique("nan", L, rate(float("nan"))), technique("casts", E, dtype, "change_model")]
table = {one.id: one for one in several}
steps, place = b.FAST_STEPS, [("language-model", "outside")]
baselines = b.baselines_of(steps, b.SEEDS[:1], 1, ["language-model"])
out = {}
for one in several:
    (outcome,) = b.try_everywhere(one, baselines, steps, b.SEEDS[0], 1, place, table)
    out[one.id] = outcome.as_json()
two = b.baselines_of(steps, b.SEEDS[:1], 2, ["language-model"])
for name in ("idle", "faster-rate"):
    (outcome,) = b.try_everywhere(table[name], two, steps, b.SEEDS[0], 2, place, table)
    out[name + " on 2"] = outcome.as_json()
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("faster-rate", "loss "),
        ("faster-rate on 2", "loss "),
        ("called-exact", "is "),
        ("secretly", "is "),
        ("broken", "failed: RuntimeError: broken"),
        ("nan", "a loss is not finite"),
    ],
)
def test_a_broken_promise_is_caught(judged: dict[str, Any], name: str, problem: str) -> None:
    assert judged[name]["problem"] is not None
    assert problem in judged[name]["problem"]


@pytest.mark.parametrize("name", ["idle", "idle on 2", "called-reordered", "casts"])
def test_a_kept_promise_passes(judged: dict[str, Any], name: str) -> None:
    assert judged[name]["applied"]
    assert judged[name]["problem"] is None
