"""Steps whose phases were marked by hand -> Analysis, as far as the names identify the phases.

Everything that marks cannot show (loaders, optimizers, lines of code, operators) stays unknown, so that the rules that
need it are skipped instead of guessing.
"""

from __future__ import annotations

import socket
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hotloop.core.analysis import Analysis, CompileFacts, RankAnalysis
from hotloop.core.noise import noise_of_mean_ratio
from hotloop.core.phases import PHASES, Breakdown, PhaseStats
from hotloop.core.recording import STEP_FIELDS, TIME_FIELDS, UNKNOWN

Path = tuple[str, ...]

NAMES: Mapping[str, tuple[str, ...]] = {
    "input_wait": (
        "data", "dataload", "dataloader", "dataloading", "dataloaderwait", "datawait", "fetch", "fetchbatch",
        "getbatch", "input", "inputwait", "loadbatch", "loaddata", "loading", "nextbatch",
    ),
    "h2d": ("h2d", "hosttodevice", "todevice", "transfer", "batchtodevice", "movetodevice", "copytodevice"),
    "forward": ("forward", "forwardpass", "fwd", "loss", "computeloss"),
    "backward": ("backward", "backwardpass", "bwd"),
    "optimizer": ("optimizer", "optimizerstep", "optim", "optstep", "opt", "step", "update", "weightupdate"),
    "communication": ("communication", "comm", "allreduce", "gradientsync", "gradsync", "syncgradients", "collective"),
    "checkpoint": ("checkpoint", "checkpointing", "savecheckpoint", "save"),
    "validation": ("validation", "validate", "val", "eval", "evaluate", "evaluation"),
}  # fmt: skip
"""Names that identify a phase: lower case, without separators."""

FEWEST_STEPS = 10

_FIELD = {
    "input_wait": "input_wait_ns",
    "h2d": "h2d_ns",
    "forward": "forward_ns",
    "backward": "backward_ns",
    "optimizer": "optimizer_ns",
    "communication": "communication_ns",
    "checkpoint": "checkpoint_ns",
    "validation": "nograd_ns",
    "other": "other_ns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedStep:
    """One step: own ns by path of names (they sum to the step), calls by path, memory in bytes where read."""

    own_ns: Mapping[Path, int]
    calls: Mapping[Path, int]
    rss_bytes: int | None = None
    device_allocated_bytes: int | None = None


def phase_of(path: Path) -> str | None:
    """The hotloop phase that a path of names belongs to: its innermost known name; None if none is known.

    Everything inside a validation is validation.

    >>> phase_of(("train", "Data-Loading")), phase_of(("forward", "attention")), phase_of(("eval", "data"))
    ('input_wait', 'forward', 'validation')
    """
    found = [phase for phase in (_phase_named(name) for name in path) if phase is not None]
    if not found:
        return None
    return "validation" if "validation" in found else found[-1]


def analyze_marked_steps(
    steps: Sequence[MarkedStep],
    *,
    rank: int | None,
    world_size: int,
    pid: int,
    warmup_count: int,
    device_type: str,
    cores: int | None,
    memory_total_bytes: int | None,
    memory_peak_bytes: int | None,
) -> Analysis:
    """``steps`` are steady and in order; at least FEWEST_STEPS of them."""
    count = len(steps)
    parts = [_split(step) for step in steps]
    durations = [sum(part.values()) for part in parts]
    columns = _make_columns(steps, parts, durations)
    total_ns = sum(durations)
    breakdown = Breakdown({phase: _describe([part[phase] for part in parts], total_ns) for phase in PHASES})
    memory = columns["rss_bytes" if device_type == "cpu" else "device_allocated_bytes"]
    growth, growth_noise = _growth(memory)
    analysis = RankAnalysis(
        rank=rank,
        local_rank=None,
        host=socket.gethostname(),
        pid=pid,
        restart=0,
        world_size=world_size,
        local_world_size=None,
        anchor="Monitor",
        steps=count + warmup_count,
        skipped_steps=0,
        steady_count=count,
        warmup_count=warmup_count,
        step_mean_ns=total_ns / count,
        step_median_ns=float(statistics.median(durations)),
        step_noise_ratio=noise_of_mean_ratio(durations),
        breakdown=breakdown,
        mean={name: sum(column) / count for name, column in columns.items()},
        columns=columns,
        samples_per_step=None,
        tokens_per_step=None,
        padding_ratio=None,
        padding_to_longest_ratio=None,
        lines={},
        loaders=(),
        optimizers=(),
        ddp=None,
        compile=CompileFacts(),
        autocast_dtype=None,
        scaler_where=None,
        scaler_enabled=None,
        checkpointing=None,
        checkpointing_where=None,
        model=None,
        model_dtype=None,
        model_parameters=None,
        device_type=device_type,
        cores=cores,
        torch_threads=None,
        memory_total_bytes=memory_total_bytes,
        memory_peak_bytes=memory_peak_bytes,
        memory_growth_bytes_per_step=growth,
        memory_growth_noise_bytes_per_step=growth_noise,
    )
    return Analysis(ranks=(analysis,), unit="step", units_per_step=1.0, accelerator=device_type != "cpu")


def _make_columns(
    steps: Sequence[MarkedStep], parts: Sequence[Mapping[str, int]], durations: Sequence[int]
) -> dict[str, list[int]]:
    """Every field of a recorded row, one entry a step."""
    count = len(steps)
    columns: dict[str, list[int]] = {name: [UNKNOWN] * count for name in STEP_FIELDS}
    columns["index"] = list(range(count))
    columns["rows_merged"] = [1] * count
    for name in TIME_FIELDS:
        columns[name] = [0] * count
    for phase, field in _FIELD.items():
        columns[field] = [part[phase] for part in parts]
    columns["end_ns"] = list(accumulate(durations))
    columns["start_ns"] = [end - span for end, span in zip(columns["end_ns"], durations, strict=True)]
    columns["checkpoints"] = [_entries(step, "checkpoint") for step in steps]
    columns["validations"] = [min(1, _entries(step, "validation")) for step in steps]
    columns["backwards"] = [_entries(step, "backward") or UNKNOWN for step in steps]
    columns["rss_bytes"] = [UNKNOWN if s.rss_bytes is None else s.rss_bytes for s in steps]
    columns["device_allocated_bytes"] = [
        UNKNOWN if s.device_allocated_bytes is None else s.device_allocated_bytes for s in steps
    ]
    return columns


def _phase_named(name: str) -> str | None:
    bare = "".join(letter for letter in name.lower() if letter.isalnum())
    return next((phase for phase, names in NAMES.items() if bare in names), None)


def _split(step: MarkedStep) -> dict[str, int]:
    parts = dict.fromkeys(PHASES, 0)
    for path, own_ns in step.own_ns.items():
        parts[phase_of(path) or "other"] += own_ns
    return parts


def _entries(step: MarkedStep, phase: str) -> int:
    """How often the phase was entered from outside it."""
    return sum(n for path, n in step.calls.items() if phase_of(path) == phase and phase_of(path[:-1]) != phase)


def _describe(values: Sequence[int], all_ns: int) -> PhaseStats:
    percentiles = statistics.quantiles(values, n=100, method="inclusive")
    return PhaseStats(
        total_ns=sum(values),
        share_ratio=sum(values) / all_ns,
        mean_ns=round(statistics.fmean(values)),
        std_ns=round(statistics.pstdev(values)),
        min_ns=min(values),
        median_ns=round(percentiles[49]),
        p95_ns=round(percentiles[94]),
        p99_ns=round(percentiles[98]),
        max_ns=max(values),
    )


def _growth(memory: Sequence[int]) -> tuple[float | None, float | None]:
    """Bytes per step and their noise; unknown without numpy and if memory was not read."""
    if any(value < 0 for value in memory):
        return None, None
    try:
        import numpy as np
    except ImportError:
        return None, None
    from .stats import fit_slope

    slope = fit_slope(np.arange(len(memory), dtype=np.float64), np.asarray(memory, dtype=np.float64))
    return (None, None) if slope is None else (slope.per_x, slope.noise_per_x)
