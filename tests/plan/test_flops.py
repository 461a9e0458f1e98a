"""FLOPs by the formulas, beside published utilisations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotloop.ahead.plan.time import hardware_flops_per_token, model_flops_per_token
from hotloop.core.utilization import rate_over_peak
from hotloop.core.workload import DecoderShape

from .build_plan import SHAPE

MPT_7B = DecoderShape(layers=32, hidden=4096, heads=32, vocab=50368, seq=2048, learned_positions=True, bias=True)


def test_model_flops_are_6_n_and_12_l_h_s() -> None:
    assert model_flops_per_token(SHAPE) == 6 * SHAPE.params + 12 * 8 * 1024 * 1024


def test_a_published_rate_has_its_published_mfu() -> None:
    # llm-foundry, MPT-7b on 8 H100: 10643 tokens/s/GPU are 46.44 % of 989.5e12 by the page's own formula.
    assert rate_over_peak(10643, model_flops_per_token(MPT_7B), 989.5e12) == pytest.approx(0.4644, abs=0.0005)


MIXED = replace(SHAPE, experts=8, experts_per_token=2)
ATTENTION = 8 * 1024 * 1024
"""Layers x hidden x sequence."""


@pytest.mark.parametrize(
    ("recompute", "again"),
    [("none", 0), ("selective", 4 * ATTENTION), ("full", 2 * 8 * SHAPE.layer_params + 4 * ATTENTION)],
)
def test_recomputation_repeats_attention_or_a_forward_of_the_layers(recompute: str, again: int) -> None:
    assert hardware_flops_per_token(SHAPE, recompute) - model_flops_per_token(SHAPE) == again
