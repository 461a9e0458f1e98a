"""A training of a trial, and what its process left besides -> the Measurement that tuning compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.core.measurement import Measurement
from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD

from .process import ProcessAnalysis, Recording
from .summary import summarize_breakdown, summarize_memory, summarize_strategy
from .trainings import Training, analyze_run, find_lead, find_recording, find_unit_drift

ReadOthers = Callable[[tuple[float, float] | None], float | None]
"""Unix times in s -> the share of the cores' time that other programs used between them; None where not known."""
LEAST_PACE_READINGS = 10
"""Fewer timings of the fixed piece of work tell nothing of the machine's pace."""


def measure_training(
    training: Training,
    recordings: Sequence[Recording],
    left: Mapping[str, Any],
    read_others_ratio: ReadOthers,
) -> Measurement:
    """What a trial measured over its steady steps, and over all of them. ``left`` is what the lead process wrote of its
    losses and pace."""
    rank, memory, breakdown = training.lead.rank, summarize_memory(training), summarize_breakdown(training)
    start_ns = _steady_start_ns(training, recordings)
    return Measurement(
        step_ns=training.analysis.step_ns,
        steady_count=rank.steady_count,
        samples_per_step=_total([one.samples_per_step for one in training.analysis.ranks], rank.rank),
        tokens_per_step=_total([one.tokens_per_step for one in training.analysis.ranks], rank.rank),
        peak_bytes=memory.peak_bytes,
        rank_peak_bytes=_largest([process.memory.peak_bytes for process in training.processes]),
        rank_count=len(training.processes),
        form=_describe_form(training),
        others_ratio=read_others_ratio(steady_span_s(training, recordings)),
        pace_ns=_pace_ns(left.get("pace") or (), recordings, training),
        threads_count=rank.torch_threads,
        work_drifts=find_unit_drift(training.processes, training.analysis.unit) is not None,
        exchanges=any(r.ddp is not None or r.mean["collectives"] > 0 for r in training.analysis.ranks),
        # From the moment that torch was there to the first steady step, without as many steady steps.
        one_time_ns=None if start_ns is None else max(0, round(start_ns - rank.warmup_count * rank.step_mean_ns)),
        breakdown={name: breakdown.phases[name].mean_ns for name in PHASES},
        losses=tuple(left.get("losses") or ()),
        losses_unseen=str(left.get("unseen", "the trial left no losses")),
        norms=tuple((int(row), value) for row, value in left.get("norms") or ()),
        norms_unseen=str(left.get("norms_unseen", "the trial left no gradient norms")),
        applied=summarize_strategy(training),
        whole_ns=None
        if rank.excluded is None
        else rank.excluded.warmup_ns + round(rank.step_mean_ns * rank.steady_count),
        whole_count=rank.warmup_count + rank.steady_count,
        whole_others_ratio=read_others_ratio(_span_s(training.lead, recordings, 0)),
    )


def steady_span_s(
    training: Training, recordings: Sequence[Recording], host: str | None = None
) -> tuple[float, float] | None:
    """Unix times, in s, between which the lead process's steps were steady; None where that is not known.

    They are of the clock of ``host`` where the training has several and that is one of them: what was sampled there
    compares with no other clock.
    """
    seen = next((p for p in training.processes if p.identity[0] == host), training.lead)
    process = seen if len(training.hosts) > 1 else training.lead
    return _span_s(process, recordings, process.rank.warmup_count)


def _span_s(seen: ProcessAnalysis, recordings: Sequence[Recording], first: int) -> tuple[float, float] | None:
    """From the row of this number to the last one."""
    process = find_recording(recordings, seen)
    anchor_s = None if process is None else process.process.get("anchor_wall_s")
    if process is None or first >= len(process.rows) or not isinstance(anchor_s, float):
        return None
    start_ns, end_ns = process.rows[first][FIELD["start_ns"]], process.rows[-1][FIELD["end_ns"]]
    return anchor_s + int(start_ns) * 1e-9, anchor_s + int(end_ns) * 1e-9


def list_facts(recordings: Sequence[Recording], names: Sequence[str]) -> dict[str, Any]:
    """What the process that leads the largest training said of itself."""
    lead = find_lead(recordings, analyze_run(recordings)[0])
    return {name: None if lead is None else lead.process.get(name) for name in names}


def _first_steady_row(training: Training, recordings: Sequence[Recording]) -> Any:
    process, warmup_count = find_lead(recordings, training), training.lead.rank.warmup_count
    return None if process is None or warmup_count >= len(process.rows) else process.rows[warmup_count]


def _steady_start_ns(training: Training, recordings: Sequence[Recording]) -> int | None:
    row = _first_steady_row(training, recordings)
    return None if row is None else int(row[FIELD["start_ns"]])


def _pace_ns(pace: Sequence[tuple[int, float]], recordings: Sequence[Recording], training: Training) -> float | None:
    """Mean time of the fixed piece of work after the steps that settled, without its largest twentieth.

    None where other processes of the training (ranks, loader workers) run beside it.
    """
    row = _first_steady_row(training, recordings)
    if row is None or len(training.processes) > 1 or any(one.num_workers != 0 for one in training.lead.rank.loaders):
        return None
    found = sorted(ns for index, ns in pace if index >= int(row[FIELD["index"]]))
    kept = found[: len(found) - len(found) // 20]
    return sum(kept) / len(kept) if len(found) >= LEAST_PACE_READINGS else None


def _describe_form(training: Training) -> str:
    """Ranks, DistributedDataParallel and dtypes, in a few words; what was not seen is left out."""
    lead, count = training.lead.rank, len(training.processes)
    dtype = (lead.model_dtype or "").removeprefix("torch.")
    if lead.autocast_dtype is not None:
        dtype = f"{dtype} under {lead.autocast_dtype} autocast".strip()
    ranks = "1 process" if count == 1 else f"{count} ranks"
    return ", ".join(part for part in (ranks, "DDP" if lead.ddp is not None else "", dtype) if part)


def _largest(peaks: Sequence[int | None]) -> int | None:
    """None when one of them is unknown: it could be the largest."""
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _total(counts: Sequence[float | None], rank: int | None) -> float | None:
    """Per step of all ranks together; of one process where they have no rank."""
    known = [count for count in counts if count]
    if len(known) < len(counts):
        return None
    return sum(known) if rank is not None else sum(known) / len(known)
