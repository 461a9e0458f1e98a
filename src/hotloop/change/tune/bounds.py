"""A finding's cost, taken away in every second process -> a Bound of what a perfect fix could save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from hotloop.core.ablations import Ablation
from hotloop.core.findings import Basis, Bound, Finding, Saving
from hotloop.core.measurement import Measurement
from hotloop.core.report import Report

from . import goals, statistics
from .referee import RunSide, SideFailed, run_pairs

LEVEL = 0.1 / statistics.LOOKS[0][1]
"""So that the interval of the first looks holds what the process without the cost saves with a probability of 90%. No
level is divided among looks: how wide an interval is ends the pairs, and not where it is."""
MOST_PAIRS = 8
NARROW_RATIO = 0.04
"""A narrower interval needs no further pair."""
MOST_UNLIKE_RATIO = 1 / 3
LEAST_UNLIKE_RATIO = 0.05
"""A phase whose share of the trials' step differs by more than both, as a part of its share of the run's step and of
the step, shows that the trials' steps are not like the run's."""
SAVES, MATERIAL_RATIO, LOST_RATIO = "checkpoint", 0.01, 0.2
"""A phase that takes more than this share of the step shrinks below this part of it only if fewer checkpoints are
saved, because what was left out decided about them."""
LEAST_RECURRENCES = 4
"""A cost that comes every N steps comes this often in a trial."""


def measure_bound(
    ablation: Ablation,
    finding: Finding,
    run: RunSide,
    *,
    phase_ratio: float | None,
    waiting_count: int,
    until_s: float,
    process_s: float,
    clock_s: Callable[[], float],
) -> Bound:
    """Pairs of the unchanged command (A) and of the command without the cost (B), until the interval is narrow.

    ``phase_ratio`` is the share of the run's step that the finding's phase takes; None without a phase. Of the
    ``waiting_count`` findings that still wait, each can have its least number of pairs before this one gets more.
    """
    begun_s = clock_s()
    baseline: list[Measurement] = []
    own: list[Measurement] = []

    def refuse(reason: str) -> Bound:
        return Bound(ablation=ablation.id, saving=None, pairs=len(own), reason=reason)

    found: Bound | None = None
    try:
        pairs = run_pairs(run, MOST_PAIRS, until_s=until_s, process_s=process_s, clock_s=clock_s)
        for unchanged, without in pairs:
            why = explain_refusal(ablation, finding, unchanged, without)
            if why:
                return refuse(why)
            baseline.append(unchanged)
            own.append(without)
            comparison = goals.compare_speed(baseline, own, baseline, level=LEVEL)
            saving = _saving_of(comparison)
            if saving is None and comparison.decided:
                return refuse(comparison.reason)
            if saving is not None:
                found = Bound(ablation=ablation.id, saving=saving, pairs=len(own), reason=ablation.leaves)
                for_others_s = waiting_count * statistics.LEAST_PAIRS * (clock_s() - begun_s) / len(own)
                if saving.high_ratio - saving.low_ratio <= NARROW_RATIO or clock_s() + for_others_s > until_s:
                    break
    except SideFailed as failure:
        if found is None:
            which = "without it" if failure.side == "B" else "of the unchanged command"
            return refuse(f"a process {which} did not train: {failure}")
    if found is None:
        return refuse(f"the time was enough for {len(own)} of at least {statistics.LEAST_PAIRS} pairs")
    return check_likeness(found, finding, phase_ratio, baseline)


def explain_refusal(ablation: Ablation, finding: Finding, unchanged: Measurement, without: Measurement) -> str:
    """Why the two processes show no bound: nothing was taken away, or training goes another way without it."""
    if not ablation.edits_statements:
        records = [record for record in without.applied if record.technique == ablation.id]
        prevented = next((record.detail for record in records if not record.is_applied), None)
        if prevented is not None or not records:
            return prevented or "the training had nothing to leave out"
    if without.whole_count != unchanged.whole_count:
        counts = f"{without.whole_count} steps instead of {unchanged.whole_count}"
        return f"the training goes another way without it: it made {counts}"
    saves_ns, saves_left_ns = (process.breakdown.get(SAVES, 0.0) for process in (unchanged, without))
    if (
        finding.phase != SAVES
        and saves_left_ns < LOST_RATIO * saves_ns
        and saves_ns > MATERIAL_RATIO * unchanged.step_ns
    ):
        return "the training goes another way without it: it saves no checkpoints"
    return ""


def check_likeness(found: Bound, finding: Finding, phase_ratio: float | None, baseline: Sequence[Measurement]) -> Bound:
    """The bound, unless the finding's phase takes another share of the trials' steps than of the run's."""
    if phase_ratio is None or finding.phase is None:
        return found
    seen_ratio = fmean(process.breakdown.get(finding.phase, 0.0) / process.step_ns for process in baseline)
    apart = abs(seen_ratio - phase_ratio)
    if apart <= max(LEAST_UNLIKE_RATIO, MOST_UNLIKE_RATIO * phase_ratio):
        return found
    reason = (
        f"the first {baseline[0].whole_count} steps are not like the run's: {finding.phase} takes {seen_ratio:.0%} of "
        f"them, and {phase_ratio:.0%} of the run's"
    )
    return Bound(ablation=found.ablation, saving=None, pairs=found.pairs, reason=reason)


def _saving_of(found: statistics.PairComparison) -> Saving | None:
    """A speedup as a saving; an interval that includes no saving begins at 0. None before the first look."""
    if found.speedup_ratio is None or found.low_ratio is None or found.high_ratio is None:
        return None
    low, mid, high = (max(0.0, 1 - 1 / x) for x in (found.low_ratio, found.speedup_ratio, found.high_ratio))
    return Saving(low_ratio=low, mid_ratio=min(max(mid, low), high), high_ratio=high, basis=Basis.BOUNDED)


def steps_to_recur(report: Report, finding: Finding) -> int:
    """Steps in which a cost that comes in few of them comes often enough to be measured; 0 for one of every step."""
    timeline = next(iter(report.timelines), None)
    if timeline is None or not finding.cost_ns:
        return 0
    phases = [finding.phase] if finding.phase else list(timeline.phase_ns)
    times_ns = [sum(column) for column in zip(*(timeline.phase_ns[name] for name in phases), strict=True)]
    usual_ns = median(times_ns)
    beyond_ns = [ns - usual_ns for ns in times_ns if ns > usual_ns + finding.cost_ns]
    if sum(beyond_ns) < finding.cost_ns * len(times_ns) / 2:
        return 0
    steps = report.step.count if report.step is not None else 0
    return round((LEAST_RECURRENCES + 1) * steps / len(beyond_ns))
