"""Two recorded runs -> their Comparison; and the parts that comparisons of runs and of traces share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.comparison import Comparison, DiffSide, UnitChange
from hotloop.core.errors import RecordingError
from hotloop.core.phases import PHASES
from hotloop.core.redact import redact_text
from hotloop.core.utilization import Utilization

from .changes import sum_terms
from .launch import Run
from .measurement import change_per_unit, differ, join_training
from .summary import LOUD_EXCLUDED_RATIO, units_noise_ratio
from .trainings import Training, analyze_run, count_units, find_unit_drift

INTERVAL_NOTE = (
    "the intervals cover how steps vary within the recording, corrected for neighboring steps that resemble each "
    "other; each side is a single launch, so they do not cover variation between launches"
)


def compare_runs(
    names: tuple[str, str],
    folders: tuple[Path, Path],
    runs: tuple[Run, Run],
    measure_use: Callable[[Any, Training, Path], Utilization],
) -> Comparison:
    """Runs as the user names them; a run that is given twice is compared with itself. Raises RecordingError without
    steps."""
    same = runs[0] is runs[1]
    first, first_notes = _read_training(folders[0], runs[0])
    second, second_notes = (first, first_notes) if same else _read_training(folders[1], runs[1])
    joined = (join_training(first), join_training(second))
    sides = tuple(
        _describe_run(name, training, steps.steps_count, steps.ranks_count)
        for name, training, steps in zip(names, (first, second), joined, strict=True)
    )
    used = (
        measure_use(run, training, folder) for run, training, folder in zip(runs, (first, second), folders, strict=True)
    )
    before, after = (replace(side, utilization=one) for side, one in zip(sides, used, strict=True))
    warnings = ["both sides are the same run"] if same else []
    warnings += compare_devices(before, after)
    per_unit: UnitChange | None = None
    for unit, one, two in (
        ("token", before.tokens_per_step, after.tokens_per_step),
        ("sample", before.samples_per_step, after.samples_per_step),
    ):
        if one is not None and two is not None and differ(one, two):
            warnings.append(
                f"a step has {one:,.6g} {unit}s before and {two:,.6g} after (all ranks together): compare the time"
                f" per {unit}"
            )
            processes = (first.processes, second.processes)
            drifts = any(find_unit_drift(side, unit) is not None for side in processes)
            if drifts:
                warnings.append(
                    f"the number of {unit}s per step drifts over the run, so the time per {unit} also depends on "
                    "which steps were recorded and has no interval; train the same number of steps on both sides"
                )
            if per_unit is None:
                noise_ratios = [None if drifts else units_noise_ratio(side, unit) for side in processes]
                per_unit = change_per_unit(unit, joined, (one, two), noise_ratios)
    if before.ranks_count != after.ranks_count:
        warnings.append(
            f"ranks: {before.ranks_count} before and {after.ranks_count} after; every time is the mean over them"
        )
    if first.lead.rank.anchor != second.lead.rank.anchor:
        warnings.append(
            f"steps end with {first.lead.rank.anchor} before and with {second.lead.rank.anchor} after; these may "
            "not be the same steps"
        )
    warnings += _compare_starts(first, second)
    for which, steps in zip(("before", "after"), joined, strict=True):
        if steps.alignment == "lead":
            warnings.append(f"{which}: the steps of the ranks do not match; only the first rank is used")
        if steps.steps_count == 1:
            warnings.append(f"{which}: only one step was recorded, and its start-up costs are part of it; no interval")
    notes = [f"before: {n}" for n in first_notes] + [f"after: {n}" for n in second_notes]
    if max(before.ranks_count, after.ranks_count) > 1:
        notes.append(
            "a recording does not separate waiting for other ranks from transferring; `hotloop trace` does, from the "
            "traces of all ranks"
        )
    if "cpu" not in (before.device, after.device):
        notes.append("phases are host time: device work appears in the phase where the host waits for it")
    notes.append(INTERVAL_NOTE)
    return Comparison(
        tool_version=__version__,
        before=before,
        after=after,
        warnings=redact_once(warnings),
        step=sum_terms("step", PHASES, *joined),
        per_unit=per_unit,
        device=None,
        kernels=(),
        ops=(),
        notes=redact_once(notes),
    )


def _read_training(folder: Path, run: Run) -> tuple[Training, list[str]]:
    """The largest training of a run, and what the reader has to know about it."""
    trainings = analyze_run(run.processes)
    if not trainings:
        raise RecordingError(
            f"{folder} contains no step: no process completed a backward or an optimizer step, so there is nothing "
            "to compare; see `hotloop report`"
        )
    notes = [*run.health, *(h.message for h in trainings[0].health)]
    if len(trainings) > 1:
        notes.append(f"the run contains {len(trainings)} training jobs; only the largest one is compared")
    if run.outcome is None:
        notes.append("the run is still training or was killed; its later steps are missing")
    return trainings[0], notes


def _describe_run(name: str, training: Training, steps_count: int, ranks_count: int) -> DiffSide:
    rank = training.lead.rank
    return DiffSide(
        name=redact_text(name),
        kind="run",
        ranks_count=ranks_count,
        world_size=rank.world_size,
        steps_count=steps_count,
        step_source=rank.anchor,
        device=rank.device_type,
        samples_per_step=count_units(training.processes, "sample"),
        tokens_per_step=count_units(training.processes, "token"),
    )


def _compare_starts(first: Training, second: Training) -> list[str]:
    """A warning if the steps at the start, which the comparison leaves out, are a large part of a run."""
    starts = [training.lead.rank.excluded for training in (first, second)]
    if not any(one is not None and one.warmup_ns >= LOUD_EXCLUDED_RATIO * one.run_ns for one in starts):
        return []
    told = [
        f"{which} the first {one.warmup_count} steps take {one.warmup_ns * 1e-9:.3g} s of {one.run_ns * 1e-9:.3g} s"
        for which, one in zip(("before:", "after:"), starts, strict=True)
        if one is not None
    ]
    return [f"the start of the runs is not compared: {'; '.join(told)}"]  # words: ok


def compare_devices(before: DiffSide, after: DiffSide) -> list[str]:
    """A warning if the sides ran on different devices."""
    if before.device == after.device or before.device is None or after.device is None:
        return []
    if before.kind == "traces":
        which = "before" if before.device == "cpu" else "after"
        return [f"{which} contains no device work: only the host can be compared"]
    return [f"before trains on {before.device}, after on {after.device}"]


def redact_once(messages: Sequence[str]) -> tuple[str, ...]:
    """Every message once, without secrets."""
    return tuple(dict.fromkeys(redact_text(message) for message in messages))
