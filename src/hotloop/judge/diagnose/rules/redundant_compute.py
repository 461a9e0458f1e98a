"""Analysis -> redundant-compute: several backwards or forwards of the same data although one is enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Numerics, saving_of_removal, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import later_places_in_loop, places_in_loop
from hotloop.judge.diagnose.measured import (
    is_material,
    is_material_span,
    known_count,
    known_mean,
    line_places,
    steps_per_anchor_step,
)

UNKNOWN_LOW_RATIO = 0.4
UNKNOWN_MID_RATIO = 0.7
"""Rule of thumb: part of the repeated backwards that is saved, if the shared part is unknown."""
BACKWARD_PER_FORWARD = 2.0
"""A backward computes two matrix products for each one of the forward."""


@rule("redundant-compute", "the same forward or backward is computed more than once")
def judge_redundant_compute(analysis: Analysis) -> Sequence[Finding]:
    """
    ## What it does
    Finds several backwards through the same graph (`retain_graph=True`), and forwards of an input that was already
    computed in the same step.

    ## Why it costs
    Each separate backward walks the shared part of the model again. The gradients of the losses add up anyway, so one
    backward of their sum gives the same result. A second forward, often only for a metric, costs as much as the first.

    ## How to recognize it
    There are more backwards than graphs, some of them with `retain_graph=True`. The recorded matrix products show how
    much of each backward is shared; without them, the rule assumes a range. A forward is redundant if the same input
    tensor reached the model again before the next optimizer step. For a frozen model (a teacher), this counts only if
    the model takes a single tensor: a second input, such as a time or an action, may differ each time.

    ## What to do
    Call `(loss_a + loss_b).backward()` instead of two backwards. Keep the outputs of the first forward, detached, for
    metrics.

    ## When it is wrong
    Some methods are right as they are: those that need each loss's own gradient (gradient surgery, some multi-task
    weightings), second derivatives, several optimizers with a loss each, and two passes with different dropout on
    purpose (R-Drop, SimCSE). If two losses each run the model on the same batch and nothing in the model is random, one
    pass is enough: compute both losses from one output and add them. A model that keeps state between calls (a memory,
    a running position) is an exception.

    The rule does not report gradients that no optimizer uses (a discriminator step that reaches the generator because
    `detach()` is missing, a teacher's forward with gradients). The program may have read such gradients before it
    cleared them, for a norm, a penalty or gradient surgery; that leaves no trace. Their share of a backward is not
    measured either.
    """
    found = (_judge_backwards(analysis), _judge_forwards(analysis))
    return tuple(finding for finding in found if finding is not None)


def _judge_backwards(analysis: Analysis) -> Finding | None:
    rank = analysis.lead
    retained = known_count(rank, "retained_backwards")
    backwards = known_count(rank, "backwards")
    graphs = _graph_count(rank, backwards, retained)
    # With several optimizers, each may have its own loss, and these cannot be summed into one backward.
    optimizers = steps_per_anchor_step(rank)
    repeats = max(1.0, backwards / max(graphs, optimizers, 1e-9))
    if retained < 0.05 or repeats < 1.05:
        return None
    backward_ratio = analysis.share("backward")
    cost_ratio = backward_ratio * (1.0 - 1.0 / repeats)
    if not is_material(analysis, cost_ratio, own_fields=("backward_ns",)):
        return None
    shared = shared_ratio(rank.ops, repeats) if rank.ops is not None else None
    if shared is None:
        low, mid = UNKNOWN_LOW_RATIO * cost_ratio, UNKNOWN_MID_RATIO * cost_ratio
        saving = saving_within(cost_ratio, low, mid, cost_ratio, Basis.RULE_OF_THUMB)
    else:
        # A backward of repeats passes takes r*s + (1-s) of one full pass; one pass remains.
        pass_count = repeats * shared + (1.0 - shared)
        whole = (1.0 - 1.0 / pass_count) / (1.0 - 1.0 / repeats)
        saving = saving_of_removal(cost_ratio, whole * cost_ratio)
    return Finding(
        title=f"{repeats:.2g} backwards run through the same graph; one backward of the summed loss is enough",
        phase="backward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        time_ns={"backward": round(cost_ratio * analysis.step_ns)},
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "backwards_per_step": round(backwards, 2),
            "retained_per_step": round(retained, 2),
            "shared_ratio": None if shared is None else round(shared, 3),
        },
        where=line_places(rank.lines.get("backward_ns", ())),
        fix=Fix(technique="sum-losses"),
    )


def _graph_count(rank: RankAnalysis, backwards: float, retained: float) -> float:
    """Graphs per step that need a backward of their own."""
    if backwards - retained >= 0.95:
        return backwards - retained
    micro_batches = known_count(rank, "micro_batches")
    if micro_batches >= 0.95:
        return micro_batches
    return max(1.0, known_count(rank, "forwards") - known_count(rank, "repeated_forwards"))


def shared_ratio(ops: Mapping[str, Any], repeats: float) -> float | None:
    """Share of a full backward that every repeated one walks again, 0..1, from the recorded matrix products.

    The products of a backward are twice those of its forward; anything beyond that was walked again. None if the record
    holds too few products to say.

    >>> forward = {"name": "aten::mm", "shapes": [[8, 4], [4, 4]], "count": 1, "backward": False}
    >>> shared_ratio({"ops": [forward, forward | {"count": 4, "backward": True}]}, 2.0)
    1.0
    """
    forward, backward = (
        sum(_products_count(op) * float(op["count"]) for op in ops.get("ops", ()) if bool(op["backward"]) is side)
        for side in (False, True)
    )
    if forward <= 0 or backward <= 0 or repeats <= 1.0:
        return None
    passes = backward / (BACKWARD_PER_FORWARD * forward)
    return min(1.0, max(0.0, (passes - 1.0) / (repeats - 1.0)))


def _products_count(op: Mapping[str, Any]) -> float:
    """Multiplications of a matrix product or a convolution, from its shapes; 0 for other operators."""
    name, shapes = op["name"], op["shapes"]
    if name in ("aten::mm", "aten::bmm", "aten::matmul"):
        first, second = shapes[0], shapes[1]
    elif name in ("aten::addmm", "aten::baddbmm"):
        first, second = shapes[1], shapes[2]
    elif name == "aten::linear":
        return float(math.prod(shapes[0]) * shapes[1][0])
    elif name in ("aten::conv1d", "aten::conv2d", "aten::conv3d"):
        strides = op["inputs"][3]
        step = math.prod(strides) if isinstance(strides, list) else 1
        # The size of the output with the usual padding: every stride-th position.
        positions = shapes[0][0] * math.prod(shapes[0][2:]) / max(1, step)
        return float(positions * math.prod(shapes[1]))
    elif name == "aten::convolution_backward":
        out, weight = shapes[0], shapes[2]
        return BACKWARD_PER_FORWARD * float(out[0] * math.prod(out[2:]) * math.prod(weight))
    else:
        return 0.0
    return float(math.prod(first) * second[-1]) if first and second else 0.0


def _judge_forwards(analysis: Analysis) -> Finding | None:
    rank = analysis.lead
    repeated_ns = known_mean(rank, "repeated_forward_ns") or 0.0
    repeated = known_count(rank, "repeated_forwards")
    cost_ratio = min(1.0, repeated_ns / rank.step_mean_ns)
    if repeated <= 0 or not is_material_span(analysis, cost_ratio, "repeated_forward_ns"):
        return None
    # A repeat without gradients serves metrics. A teacher's forward has no gradients either, but repeats nothing.
    nograd = known_mean(rank, "repeated_nograd_forwards")
    sure_ratio = min(1.0, (known_count(rank, "nograd_forwards") if nograd is None else nograd) / repeated)
    without_gradients = sure_ratio >= 0.95
    forward_ns = rank.mean.get("forward_ns", 0.0)
    backward_ns = rank.mean.get("backward_ns", 0.0)
    # A backward takes about twice its forward: if it fits both forwards, it likely went through both.
    both_used = not without_gradients and backward_ns > 1.5 * forward_ns
    sent_back = _repeated_backward_ns(rank, repeated_ns * (1.0 - sure_ratio), repeated) if both_used else 0.0
    if sent_back > 0:
        cost_ratio = min(1.0, (repeated_ns + sent_back) / rank.step_mean_ns)
    # If both are used and backward was not seen to run through a repeat, only repeats without gradients can go.
    removed_ratio = sure_ratio * cost_ratio if both_used and sent_back <= 0 else cost_ratio
    return Finding(
        title="a model runs on the same batch more than once per step"
        + (", forward and backward: the losses can share one output" if sent_back > 0 else ""),
        phase="forward",
        cost_ns=round(repeated_ns + sent_back),
        time_ns={"forward": round(repeated_ns), "backward": round(sent_back)},
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio, removed_ratio),
        evidence={
            "repeated_forwards_per_step": round(repeated, 2),
            "without_gradients": without_gradients,
            "backward_fits_both": both_used,
            "repeated_backward_ns": round(sent_back),
        },
        # With gradients, the first call is one of the places too, and is listed last.
        where=places_in_loop(rank, "nograd_ns")[:3]
        if without_gradients
        else later_places_in_loop(rank, "forward_ns", beside="nograd_ns")[:3],
        fix=Fix(technique="reuse-outputs", numerics=None if sent_back > 0 else Numerics.EXACT),
    )


def _repeated_backward_ns(rank: RankAnalysis, repeated_ns: float, repeated: float) -> float:
    """Time per step of backwards through forwards that repeat another one; 0 if one backward might not replace both.

    One backward of one optimizer runs through both results, so only the gradient of their sum is wanted. Several
    backwards may each be wanted separately (gradient surgery), and another optimizer has its own loss.
    """
    passes = max(1.0, known_count(rank, "micro_batches"))
    if known_count(rank, "backwards") > 1.05 * passes or steps_per_anchor_step(rank) > 1.05:
        return 0.0
    reached = min(1.0, known_count(rank, "repeated_backwards") / repeated)
    forward_ns = rank.mean.get("forward_ns", 0.0)
    share = min(1.0, repeated_ns / forward_ns) if forward_ns > 0 else 0.0
    return reached * share * rank.mean.get("backward_ns", 0.0) if reached >= 0.5 else 0.0
