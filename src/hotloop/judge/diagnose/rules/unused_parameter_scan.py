"""Analysis -> unused-parameter-scan: DDP looks for unused parameters in every step, and there are none."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Basis, Finding, Fix, Skipped, saving_of_removal, saving_within
from hotloop.core.rules import rule
from hotloop.judge.diagnose.comm import is_distributed
from hotloop.judge.diagnose.measured import known_count, known_places

UNTIMED_COST_RATIO = 0.02
"""Rule of thumb for the walk's share of the step if it was not timed."""


@rule("unused-parameter-scan", "DDP searches for unused parameters although all are used")
def judge_unused_parameter_scan(analysis: Analysis) -> Finding | Skipped | None:
    """
    ## What it does
    Finds `find_unused_parameters=True` in runs in which all parameters receive gradients.

    ## Why it costs
    After every forward, DDP walks the entire autograd graph on the host before backward can begin. It then exchanges a
    map of the used parameters, which is one more all-reduce that the last bucket waits for.

    ## How to recognize it
    The setting is on, and every parameter received a gradient. The cost is the measured time of the walk; the extra
    all-reduce and the later start of backward are neither timed nor counted.

    ## What to do
    Leave `find_unused_parameters` at False. If the set of used parameters never changes, `static_graph=True` also
    avoids the walk.

    ## When it is wrong
    A model with rarely taken branches needs the setting, even if no parameter was unused in this run.
    """
    rank = analysis.lead
    ddp = rank.ddp
    if not is_distributed(analysis) or ddp is None or not ddp.find_unused_parameters or ddp.static_graph:
        return None
    if ddp.unused_tensors is None:
        return Skipped(reason="it is unknown whether parameters were unused")
    if ddp.unused_tensors > 0:
        return None
    forwards = max(1.0, known_count(rank, "forwards"))
    scans = [r.ddp.scan_ns for r in analysis.ranks if r.ddp is not None and r.ddp.scan_ns is not None]
    scan_ns = sum(scans) / len(scans) if scans else None
    if scan_ns is None:
        cost_ratio = UNTIMED_COST_RATIO
        saving = saving_within(cost_ratio, 0.0, cost_ratio / 2, cost_ratio, Basis.RULE_OF_THUMB)
    else:
        cost_ratio = min(1.0, forwards * scan_ns / analysis.step_ns)
        saving = saving_of_removal(cost_ratio)
    return Finding(
        title="DDP searches for unused parameters in every step, and there are none",
        phase="forward",
        cost_ns=round(cost_ratio * analysis.step_ns),
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "scan_ns_per_forward": None if scan_ns is None else round(scan_ns),
            "parameter_tensors": ddp.parameter_tensors,
            "unused_tensors": ddp.unused_tensors,
        },
        where=known_places(ddp.where),
        fix=Fix(technique="ddp-settings", settings={"find_unused_parameters": False}),
    )
