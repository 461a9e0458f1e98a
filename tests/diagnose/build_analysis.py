"""Shares, counts and facts by keyword -> a consistent synthetic Analysis for tests of rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotloop.change.apply import ACTS
from hotloop.core.acts import fill_fixes
from hotloop.core.analysis import Analysis, CompileFacts, Forecast, Line, LoaderFacts, OptimizerFacts, RankAnalysis
from hotloop.core.findings import Finding, Fix, Saving, Skipped, Where
from hotloop.core.phases import PHASES, Breakdown, Excluded, PhaseStats
from hotloop.core.recording import GAP_FIELDS, STEP_FIELDS, TIME_FIELDS
from hotloop.core.rules import Rule

UNKNOWN_BY_DEFAULT = (
    "synced_backwards",
    "recompute_ns",
    "tokens",
    "padded_tokens",
    "padding_tokens",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_h2d_ns",
    "device_allocated_bytes",
    "device_reserved_bytes",
)
ONE_BY_DEFAULT = ("rows_merged", "batches", "micro_batches", "forwards", "backwards")


def make_rank(
    *,
    step_ns: float = 20e6,
    steady_count: int = 100,
    input_wait: float = 0.0,
    iterator: float = 0.0,
    h2d: float = 0.0,
    forward: float | None = None,
    nograd: float = 0.0,
    backward: float | None = None,
    optimizer: float = 0.05,
    communication: float = 0.0,
    checkpoint: float = 0.0,
    validation: float = 0.0,
    other: float = 0.0,
    after_input: float = 0.0,
    after_forward: float = 0.0,
    after_nograd: float = 0.0,
    after_backward: float = 0.0,
    fields: Mapping[str, float] | None = None,
    columns: Mapping[str, Sequence[int]] | None = None,
    **overrides: Any,
) -> RankAnalysis:
    """One rank whose phases have the given shares of ``step_ns`` (0..1); forward and backward take what is left, 1 : 2.

    ``validation`` is a share of its own (a burst of no-grad forwards: it stands in nograd_ns, and the breakdown
    counts it as validation). ``fields`` sets constant per-step values of any row field (``{"gc_ns": 4e5}``),
    ``columns`` whole series (time fields among them make the steps uneven; the means then follow the series).
    Anything else overrides a field of RankAnalysis (``cores=8``, ``loaders=(...)``, ``step_noise_ratio=0.02``).
    """
    share = {
        "other_ns": other,
        "input_wait_ns": input_wait,
        "iterator_ns": iterator,
        "h2d_ns": h2d,
        "nograd_ns": nograd + validation,
        "optimizer_ns": optimizer,
        "communication_ns": communication,
        "checkpoint_ns": checkpoint,
        "after_input_ns": after_input,
        "after_forward_ns": after_forward,
        "after_nograd_ns": after_nograd,
        "after_backward_ns": after_backward,
    }
    rest = 1.0 - sum(share.values()) - (forward or 0.0) - (backward or 0.0)
    if rest < -1e-9:
        raise ValueError(f"the shares of the phases add to {1 - rest}")
    rest = max(0.0, rest)
    if forward is None and backward is None:
        share["forward_ns"], share["backward_ns"] = rest / 3, rest * 2 / 3
    elif forward is not None and backward is not None:
        share["forward_ns"], share["backward_ns"] = forward, backward
        share["other_ns"] += rest
    else:
        share["forward_ns"] = rest if forward is None else forward
        share["backward_ns"] = rest if backward is None else backward

    series: dict[str, list[int]] = {name: [0] * steady_count for name in STEP_FIELDS}
    series["index"] = list(range(steady_count))
    for name in UNKNOWN_BY_DEFAULT:
        series[name] = [-1] * steady_count
    for name in ONE_BY_DEFAULT:
        series[name] = [1] * steady_count
    for name in TIME_FIELDS:
        series[name] = [round(share[name] * step_ns)] * steady_count
    series["samples"] = [16] * steady_count
    series["cpu_ns"] = [round(step_ns)] * steady_count
    series["rss_bytes"] = [500 << 20] * steady_count
    for name, value in (fields or {}).items():
        series[name] = [round(value)] * steady_count
    for name, values in (columns or {}).items():
        if len(values) != steady_count:
            raise ValueError(f"column {name} has {len(values)} values for {steady_count} steps")
        series[name] = list(values)
    clock = 0
    for step in range(steady_count):
        series["start_ns"][step] = clock
        clock += sum(series[name][step] for name in TIME_FIELDS)
        series["end_ns"][step] = clock
    durations = [e - s for s, e in zip(series["start_ns"], series["end_ns"], strict=True)]
    mean = {name: statistics.fmean(series[name]) for name in STEP_FIELDS}
    mean_ns = statistics.fmean(durations)

    validation_ns = validation * step_ns
    phase_ns = {
        "input_wait": mean["input_wait_ns"] + mean["iterator_ns"],
        "h2d": mean["h2d_ns"],
        "forward": mean["forward_ns"] + mean["nograd_ns"] - validation_ns,
        "backward": mean["backward_ns"],
        "optimizer": mean["optimizer_ns"],
        "communication": mean["communication_ns"],
        "checkpoint": mean["checkpoint_ns"],
        "validation": validation_ns,
        "other": sum(mean[name] for name in GAP_FIELDS),
    }
    total = math.fsum(phase_ns.values())
    breakdown = Breakdown(
        {name: _stats(round(phase_ns[name]), phase_ns[name] / total, steady_count) for name in PHASES}
    )
    values: dict[str, Any] = {
        "rank": 0,
        "local_rank": 0,
        "host": "host",
        "pid": 100,
        "restart": 0,
        "world_size": 1,
        "local_world_size": 1,
        "anchor": "AdamW",
        "steps": steady_count + 10,
        "skipped_steps": 0,
        "steady_count": steady_count,
        "warmup_count": 10,
        "step_mean_ns": mean_ns,
        "step_median_ns": statistics.median(durations),
        "step_noise_ratio": 0.004,
        "breakdown": breakdown,
        "mean": mean,
        "columns": series,
        "samples_per_step": mean["samples"],
        "tokens_per_step": None,
        "padding_ratio": None,
        "padding_to_longest_ratio": None,
        "lines": {},
        "loaders": (),
        "optimizers": (),
        "ddp": None,
        "compile": CompileFacts(),
        "autocast_dtype": None,
        "scaler_where": None,
        "scaler_enabled": None,
        "checkpointing": None,
        "checkpointing_where": None,
        "model": "Net",
        "model_dtype": "float32",
        "model_parameters": 1_000_000,
        "device_type": "cpu",
        "cores": 4,
        "torch_threads": 4,
        "memory_total_bytes": 16 << 30,
        "memory_peak_bytes": 1 << 30,
        "memory_growth_bytes_per_step": 0.0,
        "memory_growth_noise_bytes_per_step": 100.0,
    }
    unknown = set(overrides) - set(RankAnalysis.__dataclass_fields__)
    if unknown:
        raise ValueError(f"RankAnalysis has no field {', '.join(sorted(unknown))}")
    return RankAnalysis(**(values | overrides))


def make_analysis(
    *,
    ranks: int | Sequence[RankAnalysis] = 1,
    unit: str = "sample",
    units_per_step: float | None = 16.0,
    accelerator: bool = False,
    **rank_fields: Any,
) -> Analysis:
    """An Analysis of ``ranks`` like processes (or of the ranks given); the other keywords go to make_rank."""
    if isinstance(ranks, int):
        one = make_rank(**rank_fields)
        if ranks > 1:
            one = replace(one, world_size=ranks, local_world_size=rank_fields.get("local_world_size", ranks))
        members = tuple(replace(one, rank=i, local_rank=i, pid=100 + i) for i in range(ranks))
    else:
        if rank_fields:
            raise ValueError("give the ranks or the fields of one rank, not both")
        members = tuple(ranks)
    return Analysis(ranks=members, unit=unit, units_per_step=units_per_step, accelerator=accelerator)


def make_excluded(*, warmup_count: int, warmup_ns: int, steady_ns: int, phase: str = "forward") -> Excluded:
    """A run of a warm-up, all of it in one phase, and steady steps."""
    return Excluded(
        count=warmup_count,
        total_ns=warmup_ns,
        ratio=warmup_ns / (warmup_ns + steady_ns),
        warmup_count=warmup_count,
        warmup_ns=warmup_ns,
        later_count=0,
        later_ns=0,
        tail_ns=0,
        startup_ns=None,
        phase_ns={phase: warmup_ns},
        compile_ns=0,
    )


def make_loader(**overrides: Any) -> LoaderFacts:
    """A DataLoader in the main process that feeds backward: 1 ms of fetching and 0.1 ms of collating a batch."""
    values: dict[str, Any] = {
        "id": 1,
        "where": Where(file="train.py", line=20, function="main"),
        "num_workers": 0,
        "batch_size": 16,
        "pin_memory": False,
        "persistent_workers": False,
        "prefetch_factor": None,
        "drop_last": True,
        "start_method": "fork",
        "iterable": False,
        "length": 100,
        "dataset": "Pictures",
        "fetch_where": Where(file="train.py", line=8, function="__getitem__"),
        "collate_where": None,
        "feeds_backward": True,
        "batches": 110,
        "iterators": 2,
        "fetch_ns": 1e6,
        "fetch_cpu_ns": 0.9e6,
        "collate_ns": 0.1e6,
        "iterator_start_ns": 50e3,
        "first_wait_ns": 1.2e6,
    }
    return LoaderFacts(**(values | overrides))


def make_optimizer(**overrides: Any) -> OptimizerFacts:
    """A plain AdamW over 30 tensors."""
    values: dict[str, Any] = {
        "index": 0,
        "name": "AdamW",
        "where": Where(file="train.py", line=30, function="main"),
        "foreach": None,
        "fused": None,
        "groups": 1,
        "tensors": 30,
        "parameters": 1_000_000,
        "device": "cpu",
        "dtype": "float32",
        "steps": 110,
    }
    return OptimizerFacts(**(values | overrides))


def make_line(
    line: int, share_ratio: float, text: str = "", *, function: str = "main", file: str = "train.py", **overrides: Any
) -> Line:
    """A sampled line of ``train.py`` with its share of a field's samples."""
    where = Where(file=file, line=line, function=function)
    values: dict[str, Any] = {
        "where": where,
        "share_ratio": share_ratio,
        "samples": max(1, round(share_ratio * 200)),
        "text": text,
        "stack": (where,),
        "leaf": "",
        "calls": (),
    }
    return Line(**(values | overrides))


def make_forecast(technique: str, low_ratio: float, mid_ratio: float, high_ratio: float, **settings: Any) -> Forecast:
    """What the probe says of a technique."""
    return Forecast(
        technique=technique,
        saving_low_ratio=low_ratio,
        saving_mid_ratio=mid_ratio,
        saving_high_ratio=high_ratio,
        settings=settings,
        evidence={"repeats_count": 20},
    )


def _stats(mean_ns: int, share_ratio: float, count: int) -> PhaseStats:
    return PhaseStats(
        total_ns=mean_ns * count,
        share_ratio=share_ratio,
        mean_ns=mean_ns,
        std_ns=0,
        min_ns=mean_ns,
        median_ns=mean_ns,
        p95_ns=mean_ns,
        p99_ns=mean_ns,
        max_ns=mean_ns,
    )


def fix_of(finding: Finding) -> Fix:
    """The finding's fix with what its rule leaves to the act."""
    (filled,) = fill_fixes([finding], ACTS)
    assert filled.fix is not None
    return filled.fix


def find(rule: Rule, analysis: Analysis) -> Finding:
    """The one finding of a rule, signed as a report has it."""
    answer = rule.judge(analysis)
    assert isinstance(answer, Finding), answer
    return rule.sign(answer, analysis.unit)


def saving_of(finding: Finding) -> Saving:
    assert finding.saving is not None
    return finding.saving


Told = Mapping[str, object] | type[Skipped] | None
"""What a rule answers: nothing, Skipped, or a Finding with these values by path (``saving.mid_ratio``)."""


def check(rule: Rule, analysis: Analysis, told: Told) -> None:
    if told is None:
        assert rule.judge(analysis) is None
    elif isinstance(told, type):
        assert isinstance(rule.judge(analysis), told)
    else:
        (finding,) = fill_fixes([find(rule, analysis)], ACTS)
        assert {path: _value_at(finding, path) for path in told} == dict(told)


def _value_at(finding: Finding, path: str) -> object:
    value: Any = finding
    for part in path.split("."):
        value = (
            value[int(part)] if part.isdigit() else value[part] if isinstance(value, Mapping) else getattr(value, part)
        )
    return value
