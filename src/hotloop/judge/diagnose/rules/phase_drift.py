"""phase-drift: a phase of the step becomes slower during the run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from hotloop.core.analysis import Analysis, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, saving_within
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import places
from hotloop.judge.diagnose.loading import taken_cores
from hotloop.judge.diagnose.measured import add_columns, format_share, format_time

FIELDS: Mapping[str, tuple[str, ...]] = {
    "optimizer": ("optimizer_ns",),
    "forward": ("forward_ns",),
    "backward": ("backward_ns",),
    "input_wait": ("input_wait_ns",),
    "other": GAP_FIELDS,
}
LEAST_STEPS = 30
LEAST_GROWTH = 2.0
"""The last third's median over the first third's, and over that ratio of the other phases: a busy machine slows all."""
FLOOR_RATIO = 0.05
"""Share of the mean step: what the phase takes on average beyond its first third."""
WORK_RATIO = 0.5
"""Share of a phase's growth that shows in the process's CPU time; threads that wait for cores use none."""
STAYS_RATIO = 0.9
"""Growth that comes to a stop and stays is a drift too."""
BUSY_CORES = 0.2
SURE_RATIO, LIKELY_RATIO = 0.5, 0.9
"""Rule of thumb: the part of the growth that is saved once its cause is gone."""
MOST_UNIT_DRIFT = 1.05


@rule("phase-drift", "a phase of the step becomes slower during the run")
def phase_drift(analysis: Analysis) -> Finding | None:
    """## What it does
    Compares every phase in the first, middle and last third of the steady steps.

    ## Why it costs
    The mean time of a drifting phase is misleading: the longer the run, the slower the step. Typical causes are hooks
    that are registered again each epoch, a history that is walked in every step, a graph that is kept, and denormal
    numbers in an optimizer's averages on the CPU.

    ## How to recognize it
    The phase's median time grows and stays large: it at least doubles from the first third to the last, also relative
    to the rest of the step. The process's CPU time grows with it, while the batch size stays the same. If other
    programs used cores, no saving is forecast.

    ## What to do
    Look at the lines of this phase for something that accumulates. For an optimizer on the CPU whose gradients have
    become zero, call `torch.set_flush_denormal(True)`.

    ## When it is wrong
    A schedule that makes steps larger on purpose (longer sequences, layers that are unfrozen) looks the same if the
    batch sizes are unknown.
    """
    lead = analysis.lead
    if lead.step_mean_ns <= 0 or lead.steady_count < LEAST_STEPS or _units_drift(lead):
        return None
    steps = add_columns(lead.columns, (name for fields in FIELDS.values() for name in fields))
    found = [one for phase in FIELDS if (one := _judge(lead, phase, steps)) is not None]
    return max(found, key=lambda one: one.cost_ratio or 0.0, default=None)


def _judge(rank: RankAnalysis, phase: str, steps: Sequence[int]) -> Finding | None:
    column = add_columns(rank.columns, FIELDS[phase])
    if len(column) < LEAST_STEPS:
        return None
    first, middle, last = _thirds(column)
    rest_first, _, rest_last = _thirds([whole - own for whole, own in zip(steps, column, strict=True)])
    beyond_ns = statistics.fmean(column) - first
    growth, rest = last / max(1.0, first), rest_last / max(1.0, rest_first)
    cost_ratio = min(1.0, max(0.0, beyond_ns) / rank.step_mean_ns)
    grows = first <= middle and first <= last and last >= STAYS_RATIO * middle
    if not grows or growth < LEAST_GROWTH * max(1.0, rest) or cost_ratio < FLOOR_RATIO:
        return None
    cpu = [int(value) for value in rank.columns.get("cpu_ns", ())]
    if len(cpu) == len(column) and min(cpu) > 0:
        cpu_first, _, cpu_last = _thirds(cpu)
        if cpu_last - cpu_first < WORK_RATIO * (last - first):
            return None
    is_busy = taken_cores(rank) >= BUSY_CORES
    why = ": denormal numbers in its averages do that" if phase == "optimizer" and rank.device_type == "cpu" else ""
    lines = [line for name in FIELDS[phase] for line in rank.lines.get(name, ())]
    return Finding(
        title=f"the {phase.replace('_', ' ')} becomes slower during the run, from {format_time(first)} to "
        f"{format_time(last)} a step (this growth is {format_share(cost_ratio)} of the mean step)"
        + (": other programs used cores, which may be why" if is_busy else why),
        phase=phase,
        cost_ns=round(beyond_ns),
        cost_ratio=cost_ratio,
        saving=None
        if is_busy
        else saving_within(
            cost_ratio, SURE_RATIO * cost_ratio, LIKELY_RATIO * cost_ratio, cost_ratio, Basis.RULE_OF_THUMB
        ),
        evidence={
            "first_third_ns": round(first),
            "middle_third_ns": round(middle),
            "last_third_ns": round(last),
            "growth_of_the_rest": round(rest, 3),
            "cores_of_other_programs": round(taken_cores(rank), 2),
        },
        where=places(tuple(sorted(lines, key=lambda line: -line.samples))),
        fix=Fix(technique="stop-drift"),
    )


def _thirds(column: Sequence[int]) -> tuple[float, float, float]:
    size = len(column) // 3
    parts = (column[:size], column[size : 2 * size], column[2 * size :])
    first, middle, last = (float(statistics.median(part)) for part in parts)
    return first, middle, last


def _units_drift(rank: RankAnalysis) -> bool:
    """Whether batches grow or shrink during the run."""
    for name in ("samples", "tokens"):
        column = [int(value) for value in rank.columns.get(name, ())]
        if len(column) >= LEAST_STEPS and min(column) >= 0:
            first, _, last = _thirds(column)
            if max(first, last) > MOST_UNIT_DRIFT * max(1.0, min(first, last)):
                return True
    return False
