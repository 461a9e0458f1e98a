"""Analysis -> graph-break: torch.compile has to leave its graph in the middle of the model."""

from __future__ import annotations

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import known_count, known_places, train_share

LEAST_BREAK_NS, BREAK_NS = 72_000.0, 150_000.0
"""Host time that one break adds to a forward and its backward: guards, a resumed frame, the start of one more graph.

Measured with torch 2.13 on a CPU, six small layers with 1, 3 and 5 breaks, medians of 300 steps: 178 to 230 us a break
with inductor, 72 to 139 us with aot_eager. A rule of thumb for other machines and models: the only measured saving
(gated_mixer, benchmarks/results/zoo/55f64a285295.jsonl) was 0.04, with 0.24 between the graphs.
"""


@rule("graph-break", "torch.compile breaks the graph inside the model")
def judge_graph_break(analysis: Analysis) -> Finding | None:
    """
    ## What it does
    Counts graph breaks, the places where torch.compile fell back to Python, with the reason and line of each.

    ## Why it costs
    Each break ends one graph and begins another: guards are checked again, Python runs in between, nothing is fused
    across the break, and each CUDA graph covers only a piece of the model. The cost of lost fusion cannot be measured
    without compiling the full model, and some of the work between graphs remains after a fix. The forecast is therefore
    a rule of thumb: it ranges from the fixed cost of the breaks in one forward to all of the time between graphs.

    ## How to recognize it
    torch's own counters list the breaks and their reasons: a print, a `.item()`, a call into a C library, a branch on a
    tensor's value.

    ## What to do
    Move prints and `.item()` out of the model, replace branches on values with `torch.where` or `torch.cond`, and
    register foreign functions as custom operators. `torch.compile(model, fullgraph=True)` shows the next break.

    ## When it is wrong
    A break between two large parts costs almost nothing. If hotloop did not see the graph calls, it counts a break in a
    loop over layers only once, although the break costs time in every layer.
    """
    rank = analysis.lead
    breaks = rank.compile.graph_breaks or 0
    if not rank.compile.used or breaks <= 0:
        return None
    forwards = max(1.0, known_count(rank, "forwards"))
    share = train_share(analysis)
    # A break inside a loop over layers is one place but many graphs.
    pieces = float(max(breaks, (rank.compile.graphs or 0) - 1))
    cost_ns = pieces * BREAK_NS * forwards
    run_count, between_ns = rank.compile.graph_calls_per_forward, _between_graphs_ns(rank)
    if run_count is not None and between_ns is not None and run_count > 1.05:
        # The time between the graphs was measured; a single graph would leave the part of one.
        between_ns += _between_backward_graphs_ns(rank)
        cost_ns = between_ns * (1.0 - 1.0 / run_count) * forwards
        # A break in a loop occurs once per turn; graphs for other shapes or for validation break nothing in a step.
        pieces = run_count - 1.0
    cost_ratio = min(share, cost_ns / analysis.step_ns)
    low_ratio = min(cost_ratio, pieces * LEAST_BREAK_NS * forwards / analysis.step_ns)
    reasons = rank.compile.break_reasons
    return Finding(
        title=f"torch.compile breaks the graph at {breaks} place{'s' if breaks > 1 else ''} in the model",
        phase="forward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, low_ratio, (low_ratio + cost_ratio) / 2, cost_ratio, Basis.RULE_OF_THUMB),
        evidence={
            "graph_breaks": breaks,
            "graphs": rank.compile.graphs,
            "graphs_run_per_forward": None if run_count is None else round(run_count, 2),
            "between_graphs_ns_per_forward": None if between_ns is None else round(between_ns),
            "reasons": [reason for reason, _ in reasons[:5]],
        },
        where=known_places(*(place for _, place in reasons))[:3],
        fix=Fix(technique="whole-graph"),
    )


def _between_graphs_ns(rank: RankAnalysis) -> float | None:
    """Time of one forward outside compiled graphs, without recompilation (a finding of its own); None if the calls of
    the graphs were not seen."""
    inside_ns = rank.compile.graph_ns_per_forward
    forwards = known_count(rank, "forwards")
    if inside_ns is None or forwards <= 0:
        return None
    compile_ns = max(0.0, rank.mean.get("compile_ns", 0.0))
    return max(0.0, (rank.mean["forward_ns"] - compile_ns) / forwards - inside_ns)


def _between_backward_graphs_ns(rank: RankAnalysis) -> float:
    """The same for the backward of one forward; 0 if its graphs ran unseen on another thread."""
    inside_ns = rank.compile.graph_backward_ns_per_forward
    if not rank.compile.graph_backward_calls_per_forward or inside_ns is None:
        return 0.0
    return max(0.0, rank.mean["backward_ns"] / max(1.0, known_count(rank, "forwards")) - inside_ns)
