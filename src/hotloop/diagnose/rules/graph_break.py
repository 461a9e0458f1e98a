"""Analysis -> graph-break: torch.compile that has to leave its graph in the middle of the model."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Kind, Numerics, Safety, Value, saving_within
from hotloop.core.rules import rule
from hotloop.diagnose.measured import known_count, known_places, train_share

BREAK_NS = 150_000.0
"""Host time that one break adds to a forward and its backward: guards, a resumed frame, one more graph to start.

Measured with torch 2.13 on a CPU, six small layers with 1, 3 and 5 breaks, medians of 300 steps: 178 to 230 us a break
with inductor, 72 to 139 us with aot_eager.
"""


@rule("graph-break", "torch.compile leaves its graph in the middle of the model")
def judge_graph_break(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Counts the places where torch.compile could not go on and went back to Python, with the reason and the line.

    ## Why it costs
    Each break ends one graph and begins another: guards are checked again, Python runs in between, nothing is fused
    across it, and CUDA graphs shrink to pieces. What is lost by missed fusion cannot be seen without compiling the
    whole model, so the forecast counts the fixed cost of a break only.

    ## How to tell
    torch's own counters list the breaks and their reasons: a print, a `.item()`, a call into a C library, a branch on a
    tensor's value.

    ## What to do
    Move prints and `.item()` out of the model, replace branches on values by `torch.where` or `torch.cond`, and
    register foreign functions as custom operators. `torch.compile(model, fullgraph=True)` names the next one.

    ## When it is wrong
    A break between two large parts costs next to nothing. A break in a loop over layers costs once a layer, but is
    counted once here.
    """
    rank = analysis.lead
    breaks = rank.compile.graph_breaks or 0
    if not rank.compile.used or breaks <= 0:
        return None
    forwards = max(1.0, known_count(rank, "forwards"))
    share = train_share(analysis)
    # A break inside a loop over layers is one place and many graphs.
    pieces = max(breaks, (rank.compile.graphs or 0) - 1)
    cost_ratio = min(share, pieces * BREAK_NS * forwards / analysis.step_ns)
    reasons = rank.compile.break_reasons
    evidence: dict[str, Value] = {
        "graph_breaks": breaks,
        "graphs": rank.compile.graphs,
        "reasons": [reason for reason, _ in reasons[:5]],
    }
    return Finding(
        rule="graph-break",
        kind=Kind.FAULT,
        title=f"torch.compile leaves its graph at {breaks} place{'s' if breaks > 1 else ''} in the model",
        phase="forward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, 0.4 * cost_ratio, 0.9 * cost_ratio, cost_ratio, Basis.RULE_OF_THUMB),
        evidence=evidence,
        where=known_places(*(place for _, place in reasons))[:3],
        fix=Fix(technique="whole-graph", settings={}, safety=Safety.SHOW, numerics=Numerics.REORDERED),
        unit=analysis.unit,
        next="hotloop rule graph-break",
    )
