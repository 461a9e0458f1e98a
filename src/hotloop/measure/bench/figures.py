"""Sizes, rates and parts, as the user gives them or a probe measured them -> what tables of ``hotloop bench`` state."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.core.benchmarks import ScalingRun
from hotloop.core.errors import UsageError

WORKERS = (0, 1, 2, 4, 8, 16, 32)


def choose_workers(cores_count: int) -> list[int]:
    """Those of WORKERS for which there are cores."""
    return [count for count in WORKERS if count <= cores_count]


def wait_share(batch_ns: float | None, compute_ns: float, *, workers: int) -> float | None:
    """Share of a step that waits when a batch takes ``batch_ns`` to come and everything else ``compute_ns``.

    Workers load while the step computes; without them the step loads by itself.
    """
    if batch_ns is None:
        return None
    if workers == 0:
        return batch_ns / (batch_ns + compute_ns)
    return max(0.0, batch_ns - compute_ns) / max(batch_ns, compute_ns)


SAME_RATIO = 0.01
POOR_EFFICIENCY_RATIO = 0.7
"""Below it, more ranks are poorly used. A choice."""


def under_torchrun(words: Sequence[str], size: int) -> list[str]:
    """The words of a resolved command under torchrun of the Python that it names. Raises UsageError without Python."""
    if not os.path.basename(words[0]).startswith("python"):
        raise UsageError(
            f"{words[0]} is a launcher; give the training command without it: hotloop bench scaling -- train.py"
        )
    return [words[0], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), *words[1:]]


def fill_ranks(word: str, size: int) -> str:
    """``{ranks}`` and ``{64/ranks}`` in a word as numbers. Raises UsageError for what cannot be split.

    >>> fill_ranks("--batch={64/ranks}", 4)
    '--batch=16'
    """

    def number(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return str(size)
        total = int(match.group(1))
        if total % size:
            raise UsageError(f"{match.group(0)}: {total} cannot be split over {size} ranks; choose other --ranks")
        return str(total // size)

    return re.sub(r"\{(?:(\d{1,12})/)?ranks\}", number, word)


def summarize_scaling(runs: Sequence[ScalingRun]) -> tuple[list[dict[str, Any]], str, list[str]]:
    """Rows by number of ranks, the kind of scaling, and notes.

    Speed-up is of the rate of all ranks together over that of the fewest ranks, so that it means the same in weak
    scaling (each rank keeps its batch) and strong (all together keep it). The fastest launch of each size is compared.
    """
    sizes = sorted({run.ranks for run in runs})
    by_size = {size: [run for run in runs if run.ranks == size] for size in sizes}
    kind, notes = _find_kind(by_size), []
    rows: list[dict[str, Any]] = []
    base: float | None = None
    for size in sizes:
        held = by_size[size]
        best = min(held, key=lambda run: run.step_ns)
        rate = _rate(best, best.step_ns)
        base = rate if base is None else base
        exposed = best.exposed_ns if size > 1 else 0.0
        without = None if exposed is None else _rate(best, max(1.0, best.step_ns - exposed))
        rows.append(
            {
                "ranks": size,
                "step_min_ns": round(best.step_ns),
                "step_median_ns": round(statistics.median(run.step_ns for run in held)),
                f"{best.unit if best.units_per_step else 'step'}s_per_s": rate,
                "speedup": rate / base,
                "efficiency_ratio": rate / base / (size / sizes[0]),
                "exposed_comm_ns": None if exposed is None else round(exposed),
                "efficiency_without_sync_ratio": None if without is None else without / base / (size / sizes[0]),
                "threads": best.threads,
                "n": len(held),
            }
        )
    threads = {run.ranks: run.threads for run in runs if run.threads}
    if len(set(threads.values())) > 1:
        counts = ", ".join(f"{count} in each of {size}" for size, count in sorted(threads.items()))
        notes.append(f"thread counts differ ({counts} ranks); set OMP_NUM_THREADS so that only the ranks differ")
    if min(len(held) for held in by_size.values()) < 3:
        notes.append("fewer than 3 launches per size: variation between launches is unknown (use --repeats 3)")
    notes.append("without sync: the step minus its exposed communication, not a run without it")
    if kind == "unknown":
        notes.append("samples per step are unknown: assuming the same batch per rank (weak scaling)")
    return rows, kind, notes


def judge_scaling(runs: Sequence[ScalingRun], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Numbers of ranks at which the model is too small: little efficiency, and all-reduces whose latency alone is more
    than what the step computes. Nothing where either is unknown."""
    for row in rows:
        held = [run for run in runs if run.ranks == row["ranks"]]
        best = min(held, key=lambda run: run.step_ns)
        if best.latency_ns is None or best.exposed_ns is None or row["efficiency_ratio"] >= POOR_EFFICIENCY_RATIO:
            continue
        computed_ns = max(0.0, best.step_ns - best.exposed_ns)
        if best.latency_ns > computed_ns:
            return [
                f"model too small for {row['ranks']} ranks: efficiency {row['efficiency_ratio']:.0%}; the latency of a "
                f"step's all-reduces (at least {best.latency_ns / 1e6:.2g} ms) exceeds its computation "
                f"({computed_ns / 1e6:.2g} ms); use fewer ranks, or a larger batch on each"
            ]
    return []


def _rate(run: ScalingRun, step_ns: float) -> float:
    """Units a second of all ranks; where units are unknown, steps of all ranks."""
    units = run.units_per_step if run.units_per_step else float(run.ranks)
    return units * 1e9 / step_ns


def _find_kind(by_size: dict[int, list[ScalingRun]]) -> str:
    units = {size: held[0].units_per_step for size, held in by_size.items()}
    known = {size: value for size, value in units.items() if value}
    if len(known) < len(units):
        return "unknown"
    if len(known) == 1:
        return "one size"
    if _same(list(known.values())):
        return "strong"
    return "weak" if _same([value / size for size, value in known.items()]) else "mixed"


def _same(values: list[float]) -> bool:
    return max(values) - min(values) <= SAME_RATIO * max(values)
