"""Floating-point operations of a decoder transformer per token, and what share of a device's peak a rate of tokens is.

A multiplication with an addition is two operations. Attention is counted over the whole square, as if it were not
causal, by the convention of PaLM (arXiv:2204.02311, appendix B), so that figures compare with published ones.
"""

from __future__ import annotations

from hotloop.core.workload import DecoderShape


def attention_flops_per_token(model: DecoderShape) -> float:
    """Scores and weighted values of all layers, forward and backward: 12 L h s, where h is the width of all queries (of
    latent attention, half of that of queries and values)."""
    return 6.0 * model.layers * (model.attention_width + model.output_width) * model.seq


def model_flops_per_token(model: DecoderShape) -> float:
    """Forward and backward, nothing computed twice: 6 N + 12 L h s (PaLM, appendix B); of experts, N has a token's own.

    Grouped queries change N, not the second term: every query meets every key.

    >>> round(model_flops_per_token(DecoderShape(layers=32, hidden=4096, heads=32, vocab=50368, seq=2048)) / 1e9, 1)
    43.1
    """
    return 6.0 * model.active_params + attention_flops_per_token(model)


def hardware_flops_per_token(model: DecoderShape, recompute: str) -> float:
    """What a device computes: with ``full`` the layers' forward twice, with ``selective`` attention's forward twice
    (Korthikanti et al., arXiv:2205.05198, section 4 and appendix A)."""
    again = {"none": 0.0, "selective": attention_flops_per_token(model) / 3}
    if recompute not in again:
        layers = model.active_params - model.embedding_params - model.head_params
        again[recompute] = 2.0 * layers + attention_flops_per_token(model) / 3
    return model_flops_per_token(model) + again[recompute]


def utilization(tokens_per_s_per_gpu: float, flops_per_token: float, peak_flops_per_s: float) -> float:
    """MFU of model FLOPs, HFU of hardware FLOPs (PaLM, section 4.1)."""
    return tokens_per_s_per_gpu * flops_per_token / peak_flops_per_s
