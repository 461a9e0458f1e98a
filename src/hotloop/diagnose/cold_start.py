"""RankAnalysis -> what the first epoch, or the warm-up, waits for batches beyond the later steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hotloop.core.analysis import LoaderFacts, RankAnalysis
from hotloop.diagnose.loading import main_loader
from hotloop.diagnose.once import MATERIAL_RUN_RATIO, run_ratio
from hotloop.diagnose.thresholds import NOISE_MULTIPLE

FEWEST_COLD_STEPS = 5
"""Steps that are judged behind the first: workers that fill their queues take fewer."""
COLD_MULTIPLE = 2.0
"""A first epoch that waits less than this many times the later wait may be slow for what else the machine did."""
EPOCH_SLACK_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Steps at the start of a run whose batches came late, its first step, which has costs of its own, left out."""

    steps_count: int
    """With the first step."""
    is_epoch: bool
    """They are the first pass over the data, as far as a tenth of it."""
    wait_ns: float
    """Mean per step of them."""
    later_wait_ns: float
    """Mean per step of those behind them."""
    beyond_ns: float
    """What they wait longer than later ones, all together."""
    run_ratio: float
    """The same as a share of the run, 0..1."""
    steady_ns: float
    """The part of it that lies in steady steps, in the mean over all steady steps."""


def find_cold_start(rank: RankAnalysis) -> ColdStart | None:
    """What this rank waits for batches at the start beyond later; None where that is no material part of the run.

    The first epoch is compared with the later ones where both are known, else the warm-up with the steady steps.
    """
    if not rank.warmup_columns or not rank.columns:
        return None
    warmup, steady = _waits(rank.warmup_columns), _waits(rank.columns)
    waits = warmup + steady
    epoch_count = _steps_of_first_epoch(rank)
    count = len(warmup) if epoch_count is None else max(len(warmup), epoch_count)
    cold, later = waits[1:count], waits[count:]
    if len(cold) < FEWEST_COLD_STEPS or len(later) < FEWEST_COLD_STEPS:
        return None
    wait_ns, later_ns = statistics.fmean(cold), statistics.fmean(later)
    beyond_ns = len(cold) * (wait_ns - later_ns)
    error_ns = statistics.stdev(cold) / math.sqrt(len(cold))
    ratio = run_ratio(rank, beyond_ns)
    is_slow = wait_ns >= COLD_MULTIPLE * later_ns and wait_ns - later_ns >= NOISE_MULTIPLE * error_ns
    if ratio < MATERIAL_RUN_RATIO or not is_slow:
        return None
    in_steady = waits[max(1, len(warmup)) : count]
    return ColdStart(
        steps_count=count,
        is_epoch=epoch_count is not None and abs(count - epoch_count) <= EPOCH_SLACK_RATIO * epoch_count,
        wait_ns=wait_ns,
        later_wait_ns=later_ns,
        beyond_ns=beyond_ns,
        run_ratio=ratio,
        steady_ns=max(0.0, sum(in_steady) - len(in_steady) * later_ns) / len(steady),
    )


def batches_of_an_epoch(loader: LoaderFacts | None) -> int | None:
    """Batches that one pass of the training takes: the loader's length, or fewer where the passes end early."""
    if loader is None:
        return None
    batches, passes = loader.batches or 0, loader.iterators or 0
    # All passes but the last are over.
    if passes > 1 and (loader.length is None or batches < (passes - 1) * loader.length):
        return batches // passes
    return loader.length


def _steps_of_first_epoch(rank: RankAnalysis) -> int | None:
    """How many steps took all their batches from the first pass; None where that is not known, or there was no other
    pass. Columns that were drawn from a longer run do not tell."""
    batches = batches_of_an_epoch(main_loader(rank))
    if batches is None or len(rank.columns["micro_batches"]) != rank.steady_count:
        return None
    taken = [max(0, one) for columns in (rank.warmup_columns, rank.columns) for one in columns["micro_batches"]]
    count = sum(total <= batches for total in accumulate(taken))
    return count if count < len(taken) else None


def _waits(columns: Mapping[str, Sequence[int]]) -> list[int]:
    """What every step waits for batches of the training: those of a burst of forwards without gradients are not."""
    names = ("input_wait_ns", "iterator_ns", "burst_input_ns")
    return [max(0, wait + start - burst) for wait, start, burst in zip(*(columns[n] for n in names), strict=True)]
