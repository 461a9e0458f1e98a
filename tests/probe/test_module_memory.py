"""Fake steps beside real ones: what is predicted, and what the user is told where nothing can be."""

import importlib
import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotloop.ahead.plan.module_trace import make_request, read_tensors
from hotloop.measure.probe.module_memory import find_loss, measure
from hotloop.measure.probe.programs import BadRequest

ROOT = Path(__file__).resolve().parents[2]
PROBE = ROOT / "src" / "hotloop" / "measure" / "probe" / "start.py"
MODELS = ROOT / "benchmarks" / "plan_models"
WITHIN_RATIO = 0.05
SOURCE = """
import torch
from torch import nn

class Chain(nn.Module):
    def __init__(self, count=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

class Choosy(Chain):
    def forward(self, x):
        x = super().forward(x)
        return x * 2 if x.sum().item() > 0 else x

def make_chain():
    return Chain()

def make_converted():
    return Chain().to(torch.bfloat16)

def make_choosy():
    return Choosy()

def make_broken():
    raise ValueError("no weights found")

def make_batch():
    return torch.ones(64, 256)

def make_attention():
    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(64, 192)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            q, k, v = self.project(x).unflatten(-1, (3, 64)).transpose(1, 2).chunk(3, 1)
            return self.drop(nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1))

    return Attend()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "made.py"
    path.write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["made"])  # the probe sets them
    monkeypatch.setattr(sys, "path", [str(MODELS), *sys.path])
    return path


def trace(file: Path, function: str, batch: str, **settings: Any) -> dict[str, Any]:
    tensors = read_tensors(batch)
    given = (str(file), batch) if tensors is None else tensors
    return measure(make_request((str(file), function), given, **{"device": "cpu", **settings}))


def peak_of(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = max(answer["peaks"], key=lambda one: one["total_bytes"])
    return found


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        ("unet", "images:float32[1,3,32,32],targets:float32[1,3,32,32]"),
        ("t5", "input_ids:int64[2,32],decoder_input_ids:int64[2,32],labels:int64[2,32]"),
    ],
)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_the_predicted_peak_is_that_of_the_profilers_memory_events(script: Path, model: str, batch: str) -> None:
    real = importlib.import_module("real_step").measure(model, "fp32", "sgd", "cpu", batch)
    predicted = peak_of(trace(MODELS / "models.py", f"make_{model}", batch, optimizer="sgd"))["total_bytes"]
    assert predicted == pytest.approx(real["peak_bytes"], rel=WITHIN_RATIO)


def test_the_program_answers_in_a_process_of_its_own(script: Path) -> None:
    request = make_request((script.name, "make_chain"), (script.name, "make_batch"), device="cuda", precision="bf16")
    Path("in.json").write_text(json.dumps(request), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(PROBE), "module_memory", "in.json", "out.json"], check=True, capture_output=True
    )
    assert ended.stderr == b""
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["params"] == 6 * (256 * 256 + 256)


@dataclass
class Output:
    logits: Any = None
    loss: Any = None
    aux: Any = None


class OrderedOutput(OrderedDict[str, Any]):
    """As ModelOutput of transformers: no pytree until it is registered as one."""


@pytest.mark.parametrize(
    ("wrap", "note"),
    [
        (lambda logits, loss: (logits, loss), "first scalar"),
        (lambda logits, loss: (loss, logits), "first scalar"),
        (lambda logits, loss: (logits, None, (None, [loss])), "first scalar"),
        (lambda logits, loss: {"logits": logits, "nll": loss}, "first scalar"),
        (lambda logits, loss: OrderedOutput(logits=logits, aux=(loss,)), "first scalar"),
        (lambda logits, loss: Output(logits=logits, aux=loss), "first scalar"),
        (lambda logits, loss: Output(logits=logits, loss=loss.detach(), aux={"kl": loss}), "first scalar"),
        (lambda logits, loss: OrderedOutput(logits=logits, loss=loss), "output's own"),
        (lambda logits, loss: Output(logits=logits, loss=loss), "output's own"),
        (lambda logits, loss: {"loss": None, "metric": loss.detach(), "nll": loss}, "first scalar"),
    ],
)
def test_the_loss_is_found_wherever_the_output_has_it(wrap: Callable[..., Any], note: str) -> None:
    import torch

    logits = torch.ones(2, 3, requires_grad=True)
    loss = logits.sum()
    found, text = find_loss(wrap(logits, loss))
    assert found is loss
    assert note in text


def test_a_mean_stands_for_a_loss_that_is_no_scalar() -> None:
    import torch

    logits = torch.ones(2, 3, requires_grad=True)
    found, text = find_loss((logits, None))
    assert (found.item(), found.dim()) == (1.0, 0)
    assert text == "the model returns no loss: the mean of its output [2, 3] is used"
    found, text = find_loss({"logits": logits, "loss": logits.sum(1)})
    assert (found.item(), text) == (3.0, "the output's own loss [2] is not a scalar: its mean is used")
    with pytest.raises(BadRequest, match="returned tuple without a tensor that requires a gradient"):
        find_loss((logits.detach(), None))


def test_states_are_counted_to_the_byte_and_parts_sum_to_the_peak(script: Path) -> None:
    answer = trace(script, "make_chain", "float32[64,256]")
    weights = 6 * (256 * 256 + 256) * 4
    sizes = answer["sizes"]
    assert (sizes["parameters"], sizes["gradients"], sizes["inputs"]) == (weights, weights, 64 * 256 * 4)
    assert sizes["optimizer_states"] == 2 * weights + 12 * 4  # and 12 step counters
    for peak in answer["peaks"]:
        assert sum(peak["by_category"].values()) == peak["total_bytes"]
    backward = max(answer["peaks"], key=lambda one: one["by_category"].get("activations", 0))
    assert backward["by_category"]["activations"] >= 6 * 64 * 256 * 4
    assert any(one["line"].startswith("made.py:") for one in backward["largest"])
    assert answer["notes"] == ["the model returns no loss: the mean of its output [64, 256] is used"]


def test_a_module_that_converts_itself_is_traced_in_its_dtype(script: Path) -> None:
    plain = trace(script, "make_chain", "float32[64,256]")
    converted = trace(script, "make_converted", "bfloat16[64,256]")
    assert converted["sizes"]["parameters"] * 2 == plain["sizes"]["parameters"]


def test_cuda_keeps_bool_masks_and_no_attention_matrix(script: Path) -> None:
    on_cpu = trace(script, "make_attention", "float32[4,512,64]")
    on_cuda = trace(script, "make_attention", "float32[4,512,64]", device="cuda")
    matrix_bytes = 4 * 512 * 512 * 4
    assert peak_of(on_cpu)["total_bytes"] - peak_of(on_cuda)["total_bytes"] > 2 * matrix_bytes
    assert on_cpu["imitated"] == []
    assert "dropout: keeps a bool mask" in on_cuda["imitated"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("make_choosy", ("made.py:18", "needs the values of a tensor", "torch.where")),
        ("make_broken", ("made.py:30", "ValueError: no weights found")),
        ("make_nothing", ("has no function 'make_nothing'", "make_chain")),
        ("make_batch", ("returned FakeTensor", "must return a module")),
    ],
)
def test_what_cannot_be_traced_is_one_line_with_its_place(script: Path, function: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest) as caught:
        trace(script, function, "float32[64,256]")
    error = str(caught.value)
    assert "\n" not in error
    for word in words:
        assert word in error
