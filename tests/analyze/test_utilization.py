"""FLOPs of one recorded step against hand counts of four models, and what is made of them with a peak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from hotloop.agent.observe.deep import OperatorMode
from hotloop.agent.replay import recorder
from hotloop.core.errors import UsageError
from hotloop.core.utilization import Utilization, parse_targets, rate_over_peak
from hotloop.evidence.analyze.utilization import NO_CPU_PEAK, Sampled, StepFlops, count_step, measure_utilization
from tests.diagnose.build_analysis import make_analysis


class Phases:
    """What the mode asks of a recorder."""

    def __init__(self) -> None:
        self.stack = [recorder.OTHER]


def record(forward: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """The operators of one step as the deep window records them."""
    phases = Phases()
    mode = OperatorMode(phases)  # type: ignore[arg-type]
    with mode:
        phases.stack.append(recorder.FORWARD)
        loss = forward()
        phases.stack[-1] = recorder.BACKWARD
        loss.backward()  # type: ignore[no-untyped-call]
    return {"ops": list(mode.found.values()), "signatures": len(mode.found), "operators": mode.operators}


def counted(forward: Callable[[], torch.Tensor], is_checkpointing: bool = False) -> StepFlops:
    found = count_step(record(forward), is_checkpointing)
    assert isinstance(found, StepFlops), found
    return found


def mlp() -> tuple[Callable[[], torch.Tensor], float]:
    # Rows x in x out x 2 each; backward: weights twice as often as the first layer's input, which needs no gradient.
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    x = torch.randn(32, 64)
    first, second = 2 * 32 * 64 * 128, 2 * 32 * 128 * 10
    return lambda: model(x).sum(), 2 * first + 3 * second


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(x)))


def transformer(*, causal: bool) -> tuple[Callable[[], torch.Tensor], float]:
    b, s, h, layers, vocab = 2, 16, 32, 3, 50
    embed, head = nn.Embedding(vocab, h), nn.Linear(h, vocab)
    blocks = nn.ModuleList(Attention(h, 4, causal=causal) for _ in range(layers))
    tokens = torch.randint(0, vocab, (b, s))

    def forward() -> torch.Tensor:
        x = embed(tokens)
        for block in blocks:
            x = block(x)
        return F.cross_entropy(head(x).flatten(0, 1), tokens.flatten())

    # 6 N a token with N = 12 h^2 a layer and the head, and 12 h s a layer of attention (PaLM, appendix B).
    per_token = 6 * (layers * 12 * h * h + vocab * h) + 12 * layers * h * s
    return forward, b * s * per_token


def resnet() -> tuple[Callable[[], torch.Tensor], float]:
    stem, norm = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16)
    one, two = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
    head, x = nn.Linear(16, 10), torch.randn(4, 3, 32, 32)

    def forward() -> torch.Tensor:
        y = F.relu(norm(stem(x)))
        y = F.relu(y + two(F.relu(one(y))))
        return head(y.mean((2, 3))).sum()

    # Every weight meets each of the 16 x 16 outputs of each of 4 images; the images themselves need no gradient.
    stem_flops, block_flops = 2 * 4 * 256 * (16 * 3 * 9), 2 * 4 * 256 * (16 * 16 * 9)
    return forward, 2 * stem_flops + 3 * 2 * block_flops + 3 * 2 * 4 * 16 * 10


MODELS: dict[str, Callable[[], tuple[Callable[[], torch.Tensor], float]]] = {
    "mlp": mlp,
    "gpt": lambda: transformer(causal=True),
    "bert": lambda: transformer(causal=False),
    "resnet": resnet,
}


@pytest.mark.parametrize("name", MODELS)
def test_model_flops_are_those_of_the_hand_count(name: str) -> None:
    torch.manual_seed(0)
    forward, by_hand = MODELS[name]()
    found = counted(forward)
    assert found.model_flops == pytest.approx(by_hand, rel=0.01)
    # MFU by its formula: model FLOPs a second over the peak; here steps of 20 ms and a peak of 1 GFLOP/s.
    analysis = make_analysis(ops=record(forward), torch_threads=2)
    used = measure_utilization(analysis, Sampled(cpu_peaks={"float32": 1e9}))
    assert used.mfu_ratio == pytest.approx(by_hand / 0.02 / 1e9, rel=0.01)
    assert used.peak == "float32 on 2 threads of this CPU, measured after the run"


def test_what_is_computed_twice_is_in_hfu_alone() -> None:
    """Fused attention computes the scores again in backward; a checkpoint the whole forward of its block."""
    block, x = Attention(32, 4, causal=False), torch.randn(2, 16, 32)
    plain = counted(lambda: block(x).sum())
    scores = 2 * 2 * 16 * 16 * 32
    assert plain.hardware_flops - plain.model_flops == scores
    again = counted(lambda: checkpoint(block, x, use_reentrant=False).sum(), is_checkpointing=True)
    assert again.model_flops == pytest.approx(plain.model_flops)
    products = 2 * 32 * 12 * 32 * 32
    # The last product of a block is not needed for its backward, and torch stops before it.
    assert products / 2 < again.hardware_flops - plain.hardware_flops <= products + 2 * scores


def test_what_is_not_known_has_a_reason_and_no_figure() -> None:
    forward, _ = mlp()
    ops = record(forward)
    used = measure_utilization(make_analysis(ops=ops), Sampled())
    assert used.mfu_ratio is None
    assert used.unknown["mfu_ratio"] == NO_CPU_PEAK
    assert used.flops_per_step
    assert used.utilization_ratio is None
    assert used.unknown["utilization_ratio"].startswith("training ran on the CPU")
    assert isinstance(count_step({**ops, "signatures": 300}, False), str), "what was left out may hold products"
    assert isinstance(count_step({**ops, "signatures": 300, "more_products": []}, False), StepFlops)
    assert isinstance(count_step({**ops, "operators": 20_000}, False), str)
    assert isinstance(count_step(None, False), str)
    foreign = [*ops["ops"], {**ops["ops"][0], "name": "flash_attn::_flash_attn_forward"}]
    assert count_step({**ops, "ops": foreign}, False) == "the work of flash_attn::_flash_attn_forward is unknown"
    odd = [{**op, "shapes": []} for op in ops["ops"]]
    assert isinstance(count_step({**ops, "ops": odd}, False), str)


def test_a_device_takes_its_peak_from_its_data_sheet() -> None:
    forward, by_hand = mlp()
    analysis = make_analysis(ops=record(forward), device_type="cuda")
    used = measure_utilization(analysis, Sampled(device_name="NVIDIA H100 80GB HBM3", utilization_ratio=0.6))
    assert used.mfu_ratio == pytest.approx(rate_over_peak(1 / 0.02, by_hand, 494.5e12))
    assert used.peak == "tf32 of NVIDIA H100 80GB HBM3, dense, by its data sheet"
    assert used.utilization_ratio == 0.6
    asked = make_analysis(products=record(forward), device_type="cuda")
    again = measure_utilization(asked, Sampled(device_name="NVIDIA H100 80GB HBM3"))
    assert again.mfu_ratio == used.mfu_ratio
    unnamed = measure_utilization(analysis, Sampled())
    assert unnamed.mfu_ratio is None
    assert unnamed.unknown["mfu_ratio"] == "the peak rate of the device is unknown"


def test_a_trace_of_the_run_tells_what_the_run_does_not() -> None:
    traced = Utilization(busy_ratio=0.4, sm_active_ratio=0.2, flops_per_step=2e9, peak_flops_per_s=1e12, peak="x")
    used = measure_utilization(make_analysis(device_type="cuda"), Sampled(), traced)
    assert (used.busy_ratio, used.sm_active_ratio, used.peak) == (0.4, 0.2, "x")
    assert used.mfu_ratio == pytest.approx(2e9 / 0.02 / 1e12)
    assert "mfu_ratio" not in used.unknown


@pytest.mark.parametrize("word", ["mfu", "mfu=", "mfu=x", "mfu=0", "mfu=1.2", "mfu=nan", "gpu=0.5"])
def test_a_target_that_makes_no_sense_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=f"--target {word}: "):
        parse_targets([word])
