"""host-code: your own code takes part of every step, and no other rule explains it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Severity, saving_within
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.rules import rule_of_the_rest
from hotloop.judge.diagnose.lines import loop_places, places
from hotloop.judge.diagnose.measured import format_share, show_code, threshold_ratio
from hotloop.judge.diagnose.own_code import OwnLine, entry_of, own_code

FLOOR_RATIO = 0.05
"""Share of the step; in every training run, some code of the script itself takes up to this share."""
LARGE_RATIO = 0.2
"""Share of the step; above it, the finding should be read before a certain finding that saves little."""
MOST_FINDINGS = 3
BETWEEN = {
    "other_ns": "between the optimizer's step and the next batch",
    "after_input_ns": "between a batch and its forward",
    "after_forward_ns": "between forward and backward",
    "after_nograd_ns": "after a forward without gradients",
    "after_backward_ns": "between backward and the optimizer's step",
    "forward_ns": "inside the forward",
    "backward_ns": "inside the backward",
    "optimizer_ns": "inside the optimizer's step",
}


@rule_of_the_rest(
    "host-code", "your own code takes part of every step, and no other rule explains it", ablation="skip-statement"
)
def host_code(analysis: Analysis, findings: Sequence[Finding]) -> Sequence[Finding]:
    """## What it does
    Adds up the lines of your own code that no other finding names: metrics, counters, bookkeeping, feeders and
    statistics between the phases, and Python inside the forward, the loss or the optimizer on lines that run no
    operator.

    ## Why it costs
    This code runs on the training thread, and nothing trains in the meantime. On an accelerator, it also delays the
    next launches.

    ## How to recognize it
    Stack samples taken during steps show these lines. The cost is the lines' share of the samples times the measured
    time of the phase or gap that contains them. All lines that are reached from the same function of yours form one
    finding.

    ## What to do
    Ask whether every step needs the result. Run the code only every N steps, rewrite it to use whole tensors instead of
    single items, move it into DataLoader workers, or remove it.

    ## When it is wrong
    hotloop does not know whether your training needs the code. The low forecast is therefore 0, and the severity is
    info, or low if the code takes at least a fifth of the step. A line inside the forward or the loss
    counts only if its source shows that it runs only Python, or if at least a tenth of its function's samples met the
    interpreter on an instruction that calls nothing; any other line counts as part of the model.
    """
    lead = analysis.lead
    if lead.step_mean_ns <= 0:
        return ()
    loop = loop_places(lead)
    groups: dict[tuple[str, str, int], list[OwnLine]] = {}
    for one in own_code(lead, findings):
        entry = entry_of(one.line, loop)
        in_loop = (entry.file, entry.function) in loop
        groups.setdefault((entry.file, entry.function, entry.line if in_loop else 0), []).append(one)
    threshold = threshold_ratio(lead, floor_ratio=FLOOR_RATIO, judged_fields=GAP_FIELDS)
    ranked = sorted(groups.values(), key=lambda lines: -sum(one.ns for one in lines))
    large = [lines for lines in ranked if sum(one.ns for one in lines) / lead.step_mean_ns >= threshold]
    return tuple(_describe(lead, lines) for lines in large[:MOST_FINDINGS])


def _describe(rank: RankAnalysis, lines: Sequence[OwnLine]) -> Finding:
    cost_ns = sum(one.ns for one in lines)
    cost_ratio = min(1.0, cost_ns / rank.step_mean_ns)
    by_field = {name: sum(one.ns for one in lines if one.field == name) for name in (one.field for one in lines)}
    by_phase = {name: sum(one.ns for one in lines if one.phase == name) for name in (one.phase for one in lines)}
    field = max(by_field, key=lambda name: by_field[name])
    line = lines[0].line
    return Finding(
        title=f"{format_share(cost_ratio)} of every step runs your code {BETWEEN[field]}: "
        f"{os.path.basename(line.where.file)}:{line.where.line} in {line.where.function}{show_code(line)}",
        phase=max(by_phase, key=lambda name: by_phase[name]),
        cost_ns=round(cost_ns),
        time_ns={phase: round(ns) for phase, ns in by_phase.items()},
        cost_ratio=cost_ratio,
        saving=saving_within(cost_ratio, 0.0, cost_ratio / 2, cost_ratio, Basis.RULE_OF_THUMB),
        evidence={
            "samples": sum(one.line.samples for one in lines),
            "fields": {name: round(ns) for name, ns in by_field.items()},
            "callers": [f"{os.path.basename(one.file)}:{one.line} in {one.function}" for one in line.stack[:-1]],
        },
        where=places(tuple(one.line for one in lines)),
        severity_override=Severity.LOW if cost_ratio >= LARGE_RATIO else None,
    )
