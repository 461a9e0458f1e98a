"""RankAnalysis -> the cost of making its batches, the lines that make them, and how long the training waits."""

from __future__ import annotations

import math
import re
import statistics
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hotloop.core.analysis import Line, LoaderFacts, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Where, saving_within
from hotloop.core.recording import GAP_FIELDS
from hotloop.core.worker_model import LATENCY_CPU_RATIO, LoadingWork, Overlap, best_overlap
from hotloop.judge.diagnose.lines import (
    BATCH,
    FEWEST_SAMPLES,
    WAITING,
    add_shares,
    field_lines,
    is_sleeping,
    loop_places,
    places,
    time_of_kinds,
)
from hotloop.judge.diagnose.measured import (
    MATERIAL_RUN_RATIO,
    NOISE_MULTIPLE,
    aftermath_ns,
    format_share,
    format_time,
    has_loader,
    known_mean,
    known_places,
    run_ratio,
    shorten_code,
    threshold_ratio,
)

LEAST_CORE_RATIO = 0.1
"""A guard, not a factor: a thread that seems to get less of its core than this was not ready to run."""
LEAST_COMPUTE_RATIO = 0.1
"""A guard, not a factor: a step that does little but load shows too little computation to judge its share of the cores.
Seen at 2 %: a fetch that slept, with 3.7 ms of CPU time in 68.6 ms, was taken for 37 ms of computing."""
PREPARED_LOW_RATIO, PREPARED_MID_RATIO = 0.5, 0.9
"""Part of the time to make samples that is saved by preparing them before training; the copy remains.

The fastest runs of six such forecasts in the known set saved 0.73, 1.09, 0.85, 0.53, 1.11 and 1.02 of it: mean 0.89,
all above the low part (leaf_cnn, reviews_gru, birdsong in benchmarks/results/zoo/55f64a285295.jsonl; keyword_spotter,
molnet and ppm-folder in benchmarks/results/fresh, whose twins make the same samples with less Python).
"""
COMPUTE_FIELDS = (
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "after_input_ns",
    "after_forward_ns",
    "after_backward_ns",
)
FEWEST_COLD_STEPS = 5
"""Steps after the first that are judged: workers take fewer to fill their queues."""
COLD_MULTIPLE = 2.0
"""A first epoch that waits less than this many times the later wait may be slow because the machine was busy."""
EPOCH_SLACK_RATIO = 0.1
RANDOM_NAMES = ("rand", "rng", "shuffle", "augment")
PICTURE_NAMES = (
    "imread",
    "imdecode",
    "decode_image",
    "decode_jpeg",
    "read_image",
    "pil_loader",
    "image.open",
    "resize",
)
LEAST_SAMPLES = 20
"""With fewer stack samples than this, a share of them is not a measurement."""
TEXT_NAMES = ("tokenize", "tokenizer", "encode_plus", "batch_encode", "detokenize")
SLOW_TOKENIZERS = ("transformers.tokenization_python:", "transformers.tokenization_utils:", ".tokenization_")
"""Modules of transformers' tokenizers that are written in Python; those in Rust are wrapped by ``*_fast`` and
``tokenization_utils_tokenizers``."""
FAST_TOKENIZERS = ("_fast:", "tokenization_utils_tokenizers:", "tokenization_utils_fast:", "tokenization_utils_base:")
FLOOR_RATIO = 0.02
FIELDS = ("other_ns", "after_input_ns")
"""Where a loop takes its batch: after the last optimizer step, or before the forward."""
COMPUTING = ("forward", "backward", "optimizer")
CROWDED_PARTS = (0.3, 0.6)
"""Rule of thumb: likely and largest part of the computation's time that is saved once its cores are free again."""
MOST_IDLE_CORES = 0.25
LEAST_HELD_RATIO = 0.3
HELD_PARTS = (0.05, 0.35, 0.7)
"""Rule of thumb: the saving in the time that another thread runs Python; it releases the lock every 5 ms."""
LOW_RATIO, MID_RATIO = 0.3, 0.8
"""Rule of thumb: the part of a wait that is saved by making batches fast enough, or ahead."""
CAUSES = (
    ("waits-on-purpose", re.compile(r"sleep"), "the code pauses on purpose"),
    ("slow-process", re.compile(r"^(multiprocessing|subprocess)"), "another process is too slow"),
    ("slow-machine", re.compile(r"^(socket|ssl|selectors|select|asyncio)"), "another machine or a file is too slow"),
    ("slow-producer", re.compile(r""), "its producer is too slow, or is itself waiting"),
)


def main_loader(rank: RankAnalysis) -> LoaderFacts | None:
    """The loader that feeds the backward pass (the one with most batches); None if there is none."""
    feeding = [loader for loader in rank.loaders if loader.feeds_backward]
    candidates = feeding or [loader for loader in rank.loaders if loader.feeds_backward is None]
    return max(candidates, key=lambda loader: loader.batches or 0, default=None)


def restart_ns(rank: RankAnalysis) -> float:
    """Mean time per step, in ns, that new iterators of a loader with workers cost beyond a usual step's wait.

    A restart is over when the queue is full again: the steps that take the first ``num_workers * prefetch_factor``
    batches count with their wait beyond that of later steps. Zero if the loader has no workers, if the workers persist,
    or if the steady steps saw fewer than two iterators.
    """
    loader = main_loader(rank)
    if loader is None or not loader.num_workers or loader.persistent_workers:
        return 0.0
    iterators, waits = rank.columns["iterators"], rank.columns["input_wait_ns"]
    creations, bursts = rank.columns["iterator_ns"], rank.columns["burst_input_ns"]
    starts = [i for i, count in enumerate(iterators) if count > 0]
    if sum(iterators) < 2:
        return 0.0
    filling = _steps_to_fill(loader, starts, len(waits))
    usual = [waits[i] for i in range(len(waits)) if _is_settled(i, starts, filling)]
    usual_ns = statistics.fmean(usual) if usual else 0.0
    lost_ns = 0.0
    for i, end in zip(starts, [*starts[1:], len(waits)], strict=True):
        longer_ns = sum(waits[j] - usual_ns for j in range(i, min(i + filling, end)))
        # A validation loader starts inside the burst of no-grad forwards; that part is validation's.
        lost_ns += max(0.0, float(creations[i]) + max(0.0, longer_ns) - max(0, bursts[i]))
    return lost_ns / len(iterators)


def restart_slowdown_ns(rank: RankAnalysis) -> float:
    """Mean time per step, in ns, by which computing takes longer in the steps right after the workers were started.

    After a fork, every page of the parent is copied at its next write, so the first steps fault on all pages that they
    touch, on cores that the new workers use. Zero where `restart_ns` is.
    """
    return aftermath_ns(rank, "iterators", COMPUTE_FIELDS) if restart_ns(rank) > 0 else 0.0


def has_costly_restarts(rank: RankAnalysis) -> bool:
    """Whether worker-restart reports this rank's restarts; else their time is an ordinary wait for input."""
    lost_ns = restart_ns(rank) + restart_slowdown_ns(rank)
    return lost_ns > 0 and lost_ns >= rank.step_mean_ns * threshold_ratio(
        rank, judged_fields=("input_wait_ns", "iterator_ns")
    )


def _steps_to_fill(loader: LoaderFacts, starts: Sequence[int], steps_count: int) -> int:
    """Steps after a restart that may wait for a queue that is not full yet; at most half of a pass."""
    batches = (loader.num_workers or 0) * (loader.prefetch_factor or 2)
    passes = [later - earlier for earlier, later in pairwise(starts)] or [steps_count]
    return max(1, min(batches, int(statistics.fmean(passes)) // 2))


def _is_settled(step: int, starts: Sequence[int], filling: int) -> bool:
    """Whether a step comes after the queue was refilled by the start before it (steps before the first start do)."""
    before = bisect_right(starts, step) - 1
    return before < 0 or step - starts[before] >= filling


def loading_work(rank: RankAnalysis, loader: LoaderFacts, wait_ns: float) -> LoadingWork | None:
    """The cost of making the batches of a step; None if neither the loader nor the wait shows it."""
    batches = max(1.0, known_mean(rank, "micro_batches") or known_mean(rank, "batches") or 1.0)
    if loader.fetch_ns is not None:
        collate_ns = loader.collate_ns or 0.0
        wall_ns = batches * (loader.fetch_ns + collate_ns)
        fetch_cpu_ns = min(loader.fetch_ns, fetch_work_ns(rank, loader, wait_ns))
        if not loader.num_workers and wait_ns > 0:
            # In the main process, the wait itself is the loading; the sampled parts only show how it divides.
            scale = wait_ns / wall_ns if wall_ns > 0 else 1.0
            return LoadingWork(wall_ns=wait_ns, cpu_ns=min(wait_ns, batches * (fetch_cpu_ns + collate_ns) * scale))
        return LoadingWork(wall_ns=wall_ns, cpu_ns=batches * (fetch_cpu_ns + collate_ns))
    if wait_ns <= 0:
        return None
    # Nothing was sampled inside the loader. Its workers were busy all the time, or there would be no wait.
    wall_ns = wait_ns if not loader.num_workers else loader.num_workers * rank.step_mean_ns
    return LoadingWork(wall_ns=wall_ns, cpu_ns=wall_ns)


def enough_workers(rank: RankAnalysis, loader: LoaderFacts) -> Overlap | None:
    """The fewest workers beyond which no further gain is expected; None if loading was not measured."""
    wait_ns = known_mean(rank, "input_wait_ns") or 0.0
    work, cores = loading_work(rank, loader, wait_ns), cores_per_rank(rank)
    if loader.fetch_ns is None or work is None or cores is None:
        return None
    compute_ns = max(1.0, rank.step_mean_ns - wait_ns)
    busy = min(cores, busy_cores(rank, wait_ns, 0.0 if loader.num_workers else work.cpu_ns))
    batches = max(1.0, known_mean(rank, "micro_batches") or 1.0)
    return best_overlap(compute_ns=compute_ns, work=work, batches=batches, cores=cores, busy=busy)


def most_saved_ratio(rank: RankAnalysis) -> float:
    """Largest share of a step that faster computing can save, 0..1: batches come no sooner than workers make them."""
    loader = main_loader(rank)
    if loader is None or not loader.num_workers:
        return 1.0
    work = loading_work(rank, loader, known_mean(rank, "input_wait_ns") or 0.0)
    if work is None:
        return 1.0
    return max(0.0, 1.0 - work.wall_ns / loader.num_workers / rank.step_mean_ns)


def fetch_work_ns(rank: RankAnalysis, loader: LoaderFacts, wait_ns: float) -> float:
    """Core time that fetching a batch needs: its CPU time, corrected for what other programs took from it."""
    fetch_ns = loader.fetch_ns or 0.0
    if loader.fetch_cpu_ns is None:
        return fetch_ns
    batches = max(1.0, known_mean(rank, "micro_batches") or 1.0)
    in_process_ns = 0.0 if loader.num_workers else batches * (loader.fetch_cpu_ns + (loader.collate_ns or 0.0))
    return min(fetch_ns, loader.fetch_cpu_ns / cpu_availability_ratio(rank, wait_ns, in_process_ns))


def cores_per_rank(rank: RankAnalysis) -> float | None:
    """Cores that one process of this host may count on; None if the number of cores is unknown."""
    return None if rank.cores is None else max(1.0, rank.cores / max(1, rank.local_world_size or 1))


def busy_cores(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float:
    """Cores that the step keeps busy, on average, while it does not load; at least one."""
    known = _cores_used(rank, loading_ns, loading_cpu_in_process_ns)
    return float(rank.torch_threads or 1) if known is None else max(1.0, known)


def taken_cores(rank: RankAnalysis) -> float:
    """Cores that other programs took while this process trained, on average; 0 if that is unknown.

    Whatever is neither idle nor this process's own belongs to others. Unknown if processes of the same training run on
    the same cores: loader workers and other ranks.
    """
    used = _cores_used(rank, 0.0, 0.0)
    alone = (rank.local_world_size or 1) == 1 and not any(loader.num_workers for loader in rank.loaders)
    if rank.idle_cores is None or used is None or not alone:
        return 0.0
    idle, count = rank.idle_cores
    return max(0.0, count - idle - used)


def cpu_availability_ratio(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float:
    """The part of a core that a computing thread of this process really got, 0.1..1.

    If other programs compete for the cores, even a thread that never sleeps shows less CPU time than wall time; without
    this correction, its loading would look like a wait for storage. Ranks that wait for each other and hosts that wait
    for a device sleep for other reasons, and a step that does little but load has no such thread: then nothing is
    concluded.
    """
    computes = rank.step_mean_ns - loading_ns >= LEAST_COMPUTE_RATIO * rank.step_mean_ns
    if rank.world_size > 1 or rank.device_type != "cpu" or not computes:
        return 1.0
    known = _cores_used(rank, loading_ns, loading_cpu_in_process_ns)
    return 1.0 if known is None else min(1.0, max(LEAST_CORE_RATIO, known))


def _cores_used(rank: RankAnalysis, loading_ns: float, loading_cpu_in_process_ns: float) -> float | None:
    wall_ns = rank.step_mean_ns - loading_ns
    cpu_ns = known_mean(rank, "cpu_ns")
    if cpu_ns is None or wall_ns <= 0:
        return None
    return (cpu_ns - loading_cpu_in_process_ns) / wall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Steps at the start of a run whose batches came late, without its first step, which has costs of its own."""

    steps_count: int
    """Including the first step."""
    is_epoch: bool
    """Whether they are the first pass over the data, to within a tenth of it."""
    wait_ns: float
    """Their mean per step."""
    later_wait_ns: float
    """Mean per step of the steps after them."""
    beyond_ns: float
    """Their wait beyond that of later steps, in total."""
    run_ratio: float
    """The same as a share of the run, 0..1."""
    steady_ns: float
    """The part of it in steady steps, averaged over all steady steps."""


def find_cold_start(rank: RankAnalysis) -> ColdStart | None:
    """This rank's extra wait for batches at the start; None if that is not a material part of the run.

    Compares the first epoch with later ones if both are known, else the warm-up with the steady steps.
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
    """Batches that one pass of the training takes: the loader's length, or fewer if the passes end early."""
    if loader is None:
        return None
    batches, passes = loader.batches or 0, loader.iterators or 0
    # All passes but the last are over.
    if passes > 1 and (loader.length is None or batches < (passes - 1) * loader.length):
        return batches // passes
    return loader.length


def _steps_of_first_epoch(rank: RankAnalysis) -> int | None:
    """How many steps took all their batches from the first pass; None if that is unknown, if there was no other pass,
    or if the columns were sampled from a longer run."""
    batches = batches_of_an_epoch(main_loader(rank))
    if batches is None or len(rank.columns["micro_batches"]) != rank.steady_count:
        return None
    taken = [max(0, one) for columns in (rank.warmup_columns, rank.columns) for one in columns["micro_batches"]]
    count = sum(total <= batches for total in accumulate(taken))
    return count if count < len(taken) else None


def _waits(columns: Mapping[str, Sequence[int]]) -> list[int]:
    """Each step's wait for training batches, without the waits of a burst of forwards without gradients."""
    names = ("input_wait_ns", "iterator_ns", "burst_input_ns")
    return [max(0, wait + start - burst) for wait, start, burst in zip(*(columns[n] for n in names), strict=True)]


def draws_random(rank: RankAnalysis, loader: LoaderFacts) -> bool | None:
    """Whether reading samples draws random numbers: seen, or named in their code; None if that is unknown.

    If no global generator moved, the code may name its own generator, which may or may not be seeded by the sample.
    """
    if loader.draws_random or not _calls_any(rank, RANDOM_NAMES):
        return loader.draws_random
    return None if loader.draws_random is False else True


def before_draws_ratio(rank: RankAnalysis) -> float | None:
    """Share of the wait in which a sample was read before its first random number; None if few stacks were seen."""
    lines = sample_lines(rank)
    if sum(line.samples for line in lines) < LEAST_SAMPLES:
        return None
    return min(1.0, sum(line.before_draws_ratio for line in lines))


def describe_preparation(rank: RankAnalysis) -> str:
    """What a user with such samples would do before training."""
    if _calls_any(rank, PICTURE_NAMES):
        return "decode and resize the images once, and store the results"
    if _calls_any(rank, TEXT_NAMES):
        return "tokenize the text once, and store the token ids"
    return "store everything that is the same in every epoch"


def slow_tokenizer(lines: Iterable[Line]) -> str | None:
    """The module of a tokenizer written in Python that these lines were seen in; None if there is none."""
    for line in lines:
        module = f"{line.leaf.partition(':')[0]}:"
        is_slow = module.startswith("transformers.") and any(name in module for name in SLOW_TOKENIZERS)
        if is_slow and not module.endswith(FAST_TOKENIZERS):
            return module[:-1]
    return None


def _calls_any(rank: RankAnalysis, names: tuple[str, ...]) -> bool:
    called = (call.lower() for line in sample_lines(rank) if len(line.stack) > 1 for call in line.calls)
    return any(name in call for call in called for name in names)


def sample_lines(rank: RankAnalysis) -> tuple[Line, ...]:
    """Where the main process was while it waited for a batch or made it."""
    return rank.lines.get("input_wait_ns", ())


def batch_places(rank: RankAnalysis) -> tuple[Where, ...]:
    """Where the DataLoader that feeds the training was built; without one, what the loop calls to make a batch.

    For the latter, the loop's statement is read from the source, and the line below it with stack samples comes first.
    Empty if neither is known.
    """
    loader = main_loader(rank)
    if loader is not None:
        return known_places(loader.where)
    return known_places(_sampled_maker(rank), rank.batch_where)


def _sampled_maker(rank: RankAnalysis) -> Where | None:
    """The line with most samples below the loop's own statement that makes the batch; None without samples."""
    if rank.batch_where is None:
        return None
    counts: dict[Where, int] = {}
    loop = loop_places(rank)
    for field_name in GAP_FIELDS:
        for line, kind in field_lines(rank, field_name):
            callers = {(where.file, where.line) for where in line.stack[:-1]}
            in_loop = (line.where.file, line.where.function) in loop
            if kind == BATCH and (rank.batch_where.file, rank.batch_where.line) in callers and not in_loop:
                counts[line.where] = counts.get(line.where, 0) + line.samples
    most = max(counts, key=lambda where: counts[where], default=None)
    return most if most is not None and counts[most] >= FEWEST_SAMPLES else None


def find_wait(rank: RankAnalysis) -> Finding | None:
    """The wait of a loop for batches that no DataLoader makes."""
    if has_loader(rank) or rank.step_mean_ns <= 0:
        return None
    part = add_shares(*(time_of_kinds(rank, name, WAITING) for name in FIELDS))
    cost_ratio = min(1.0, part.mean_ns / rank.step_mean_ns)
    if not part.lines or cost_ratio < threshold_ratio(rank, floor_ratio=FLOOR_RATIO, judged_fields=FIELDS):
        return _find_lock_holder(rank)
    line = part.lines[0]
    cause, text = _cause_of(line)
    sure_ratio = part.low_ns / rank.step_mean_ns
    # Making the batches on the training's own cores also slows down its computation.
    crowded_ratio = sum(map(rank.breakdown.share, COMPUTING)) if _is_crowded(rank, cause) else 0.0
    whole_ratio = min(1.0, cost_ratio + CROWDED_PARTS[1] * crowded_ratio)
    mid_ratio = MID_RATIO * cost_ratio + CROWDED_PARTS[0] * crowded_ratio
    crowd = "; this work takes cores away from the threads that compute" if crowded_ratio else ""
    shown = f"`{shorten_code(line.text)}` in {line.where.function}" if line.text.strip() else line.where.function
    return Finding(
        title=f"every step waits {format_time(part.mean_ns)} ({format_share(cost_ratio)}) for its next batch, in "
        f"{shown}: {text}{crowd}",
        phase="other",
        cost_ns=round(part.mean_ns),
        time_ns={"other": round(part.mean_ns)},
        cost_ratio=whole_ratio,
        saving=saving_within(whole_ratio, LOW_RATIO * sure_ratio, mid_ratio, whole_ratio, Basis.RULE_OF_THUMB),
        evidence={
            "cause": cause,
            "samples": part.samples_count,
            "uses_cpu_meanwhile": rank.mean.get("cpu_ns", 0.0) > LATENCY_CPU_RATIO * rank.step_mean_ns,
        },
        where=(*places(part.lines), *places(_own_lines(rank))[:2]),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _is_crowded(rank: RankAnalysis, cause: str) -> bool:
    """Whether no core is free while something on this machine makes the batches, and the computation needs all
    cores."""
    idle, threads, cores = rank.idle_cores, rank.torch_threads, rank.cores
    if cause not in ("slow-process", "slow-producer") or idle is None or not threads or not cores:
        return False
    return threads * max(1, rank.world_size) >= cores and idle[0] < MOST_IDLE_CORES


def _find_lock_holder(rank: RankAnalysis) -> Finding | None:
    """A thread of the script that runs Python, such as a producer of batches. The loop hardly waits for the batches,
    but each of its lines and operators waits for the interpreter's lock."""
    python = _own_lines(rank)
    seen = sum(line.samples for line in rank.thread_lines)
    held_ratio = (rank.threads_at_work or 0.0) * sum(line.samples for line in python) / max(1, seen)
    if held_ratio < LEAST_HELD_RATIO or sum(line.samples for line in python) < FEWEST_SAMPLES:
        return None
    held_ratio = min(1.0, held_ratio)
    low, mid, high = (part * held_ratio for part in HELD_PARTS)
    line = python[0]
    return Finding(
        title=f"one of your threads runs Python for {format_share(held_ratio)} of the time, in "
        f"{line.where.function}: the entire training loop waits for the interpreter's lock",
        cost_ratio=high,
        saving=saving_within(high, low, mid, high, Basis.RULE_OF_THUMB),
        evidence={"cause": "thread-holds-lock", "held_ratio": round(held_ratio, 3), "samples": seen},
        where=places(python),
        fix=Fix(technique="preprocess-in-workers"),
    )


def _own_lines(rank: RankAnalysis) -> tuple[Line, ...]:
    """Lines of other threads that run Python: the script's own, or the standard library's, which holds the lock too."""
    python = {"__main__", *sys.stdlib_module_names}
    return tuple(line for line in rank.thread_lines if line.leaf.partition(":")[0].partition(".")[0] in python)


def _cause_of(line: Line) -> tuple[str, str]:
    leaf = "sleep" if is_sleeping(line) else line.leaf
    return next((cause, text) for cause, pattern, text in CAUSES if pattern.search(leaf))
