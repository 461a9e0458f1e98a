"""input-bound: the step waits for the next batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotloop.core.analysis import Analysis, LoaderFacts, RankAnalysis
from hotloop.core.findings import Basis, Finding, Fix, Numerics, Saving, Skipped, Value, Where, saving_within
from hotloop.core.rules import rule
from hotloop.core.trace_analysis import TraceAnalysis, TraceRank
from hotloop.core.worker_model import (
    LATENCY_CPU_RATIO,
    LoadingWork,
    Overlap,
    best_overlap,
    found_ratio,
    waits_for_storage,
)
from hotloop.judge.diagnose.lines import places
from hotloop.judge.diagnose.loading import (
    PREPARED_LOW_RATIO,
    PREPARED_MID_RATIO,
    ColdStart,
    batches_of_an_epoch,
    before_draws_ratio,
    busy_cores,
    cores_per_rank,
    describe_preparation,
    draws_random,
    fetch_work_ns,
    find_cold_start,
    find_wait,
    has_costly_restarts,
    loading_work,
    main_loader,
    restart_ns,
    sample_lines,
    slow_tokenizer,
    taken_cores,
)
from hotloop.judge.diagnose.measured import (
    NOISE_MULTIPLE,
    format_share,
    format_time,
    known_mean,
    known_places,
    severity_once,
    threshold_ratio,
)
from hotloop.judge.diagnose.on_trace import saving_from, window_ns

FLOOR_RATIO = 0.02
"""Every loader costs something; below two percent of the step there is nothing to save."""

PREPARED_SAMPLE_NS = 5_000.0
"""A sample cheaper than this is copied, not made: preparing it before training would still leave the copy."""

LEAST_EPOCHS = 2.0
"""From this many epochs on, the fix is to keep samples; in a shorter run, it is to prepare them before training."""
CACHE_IN_ONE_EPOCH = "too few samples were read twice in this run: a cache pays off from the second epoch on"

NO_CORE_MID_RATIO = 0.15
"""Rule of thumb: part of the wait that workers are expected to save if no core is free for them."""
LEAST_TAKEN_CORES = 0.3
CROWDED_RATIO, CROWDED_CPU_RATIO = 0.5, 0.1
"""If other programs used this share of the cores, a function that uses little of a core may have waited for one. Only a
function that uses less than the second share of its time on the CPU is then said to wait for storage."""
NO_FREE_CORE = "; training uses all cores, so workers may save nothing"
OTHERS_HAVE_CORES = "; other programs used the cores, so workers may save nothing until one is free"

WORKERS_ON_TRACE = {
    None: "the trace does not show where batches are made",
    True: "batches are made in the main process: workers could load them in parallel",
    False: "the workers are too few or too slow: more of them help while cores are free",
}

NOT_JUDGED = "not judged: no DataLoader was observed making these batches"

UNKNOWN_LOW_RATIO, UNKNOWN_MID_RATIO = 0.2, 0.6
"""Rule of thumb: part of the wait that is saved if nothing is known about the loader."""
_THUMB = Basis.RULE_OF_THUMB


def input_bound_on_trace(analysis: TraceAnalysis) -> Finding | Skipped | None:
    """From a profiler's file: the share of the steps that the main thread spends inside its DataLoader."""
    known = [rank for rank in analysis.ranks if rank.share("input_wait") is not None]
    if not known:
        return Skipped(reason="the trace contains no host steps")
    rank = max(known, key=lambda one: one.share("input_wait") or 0.0)
    cost_ratio = rank.share("input_wait") or 0.0
    if cost_ratio < FLOOR_RATIO:
        return None
    wait_ns = cost_ratio * rank.step_ns
    in_main = _loads_in_main(rank)
    idle = rank.judged_idle
    idle_ratio = None if idle is None else idle.late_data_wait_ns / window_ns(rank)
    # Without a device, the wait is certainly lost; with one, only the time that the device idles meanwhile is.
    sure = 0.5 if idle_ratio is None else min(1.0, idle_ratio / cost_ratio) * 0.5
    alike = all((one.share("input_wait") or 0.0) >= 0.6 * cost_ratio for one in known)
    workers = "" if in_main is None else " (num_workers=0)" if in_main else " despite its workers"
    return Finding(
        title=f"every step waits {format_time(wait_ns)} ({format_share(cost_ratio)}) for the next batch{workers}",
        phase="input_wait",
        cost_ns=round(wait_ns),
        time_ns={"input_wait": round(wait_ns)},
        cost_ratio=cost_ratio,
        saving=saving_from(rank.forecasts.get("no-input-wait"), cost_ratio, sure, min(0.8, 1.6 * sure), 1.0),
        evidence={
            "loads_in_main_process": in_main,
            "workers": WORKERS_ON_TRACE[in_main],
            "device_idle_meanwhile_ratio": None if idle_ratio is None else round(idle_ratio, 4),
            "steps": rank.complete_steps_count,
        },
        fix=Fix(technique="loader-workers"),
        ranks=() if alike or rank.facts.rank is None else (rank.facts.rank,),
    )


def _loads_in_main(rank: TraceRank) -> bool | None:
    """Whether batches are made in the main process, by the iterator's class in the trace; None if it is not named."""
    names = [row.name for row in rank.timeline.anatomy.ranges] + [row.name for row in rank.timeline.ops]
    iterators = [name for name in names if "DataLoader" in name]
    if any("_SingleProcess" in name for name in iterators):
        return True
    return False if any("_MultiProcessing" in name for name in iterators) else None


@rule(
    "input-bound",
    "the step waits for the next batch",
    on_trace=input_bound_on_trace,
    asks=("no-input-wait",),
    ablation="replay-batches",
)
def input_bound(analysis: Analysis) -> Sequence[Finding] | Finding | None:
    """## What it does
    Measures how long the training loop waits inside its DataLoader (`input_wait`), and why: slow samples
    (`__getitem__`), a slow `collate_fn`, slow storage, or too few workers. In a loop without a DataLoader, measures the
    calls that block while the loop gets its batch: waiting for a queue, a future, a socket or another process, or
    sleeping.

    ## Why it costs
    Nothing is computed while the loop waits. Loading can nearly always run in parallel with computation.

    ## How to recognize it
    `input_wait` is a substantial part of the step. Without workers, all of the loading time is waiting time. Each
    worker makes one batch in `fetch + collate` time, so W workers deliver one batch every `(fetch + collate) / W`. If
    that is longer than the computation in a step, there are too few workers. If the CPU time inside `__getitem__` is
    far below the wall time, storage is slow.

    If the steps of the first epoch (or of the warm-up, if no epoch was seen to end) wait on average more than twice as
    long as later steps, and the extra wait adds up to at least 5 % of the run, something fills up at the start, such as
    a cache. The cost of this start is a share of this run only: no saving is forecast, the severity is one level lower
    than if the same share were lost in every step, and the wait reported for steady steps excludes the start.

    ## What to do
    Give the DataLoader `num_workers`, with `persistent_workers=True` and `prefetch_factor=2` or more. If all cores are
    busy, workers compete with the computation: make the samples cheaper instead. Decode and resize images once,
    tokenize text once, cache all work that is the same in every epoch, and vectorize the collate function. Keep random
    augmentation in `__getitem__`: if it is prepared in advance, every epoch gets the same random values. If a cache
    fills in the first epoch (`cold-cache`), fill it once before training and keep it on disk. If the cache is part of
    the data set object, every worker has to fill it again at every start.

    A tokenizer written in Python is reported as `slow_tokenizer`; `use_fast=True` selects the Rust version.

    `cache-samples` keeps the samples of the first epoch in memory for the later epochs. It is the fix if the samples
    draw no random numbers and this run had two epochs or more. Its forecast covers the epochs of this run, and the
    first epoch saves nothing; the saving in a longer run approaches `saving_in_later_epochs_ratio`.

    The forecast for preparing samples in advance counts the part of `__getitem__` that runs before its first random
    draw. Stack samples show that part, and function names in the source identify random draws; without stack samples,
    the saving is unknown. Samples of a few microseconds are already copies: with all cores busy, no saving is forecast
    for them. If no core was free, because this run or other programs used all cores, the low forecast for workers is
    zero, and the title says that they may save nothing.

    ## When it is wrong
    On an accelerator, the host may wait for a batch while the device still has queued work; that wait costs nothing.
    Random augmentation draws different numbers in workers than in the main process. You must split an IterableDataset
    among its workers yourself. A data set that cannot be pickled needs the fork start method.
    """
    starts = [find_cold_start(rank) for rank in analysis.ranks]
    cold = [(start.run_ratio, rank, start) for rank, start in zip(analysis.ranks, starts, strict=True) if start]
    _, coldest, start = max(cold, key=lambda one: one[0], default=(0.0, None, None))
    once = None if coldest is None or start is None else _report_cold_start(coldest, start)
    # In synchronous training, the others in turn wait for the rank that waits longest for input.
    rank = max(analysis.ranks, key=lambda one: one.breakdown.share("input_wait"))
    own = starts[analysis.ranks.index(rank)]
    steady = _judge_steady(analysis, rank, 0.0 if own is None else own.steady_ns)
    found = [one for one in (steady, find_wait(analysis.lead), once) if one is not None]
    return found[0] if len(found) == 1 else found or None


def _report_cold_start(rank: RankAnalysis, start: ColdStart) -> Finding:
    """A cache, or something like it, fills at the start: its steps wait longer for batches than later steps."""
    loader = main_loader(rank)
    return Finding(
        title=f"batches arrive more slowly {'in the first epoch' if start.is_epoch else 'at the start'}: the first "
        f"{start.steps_count} steps wait {format_time(start.beyond_ns)} ({format_share(start.run_ratio)} of this run) "
        "longer than later steps; you pay for filling a cache once per start",
        phase="input_wait",
        cost_ns=round(start.beyond_ns),
        cost_ratio=start.run_ratio,
        evidence={
            "cause": "cold-cache",
            "steps": start.steps_count,
            "wait_ns_per_step": round(start.wait_ns),
            "wait_ns_per_later_step": round(start.later_wait_ns),
            "batches_of_an_epoch": batches_of_an_epoch(loader),
            "num_workers": None if loader is None else loader.num_workers,
        },
        where=known_places(None if loader is None else loader.fetch_where or loader.where),
        fix=Fix(technique="precompute-samples", numerics=Numerics.EXACT),
        base="run",
        severity_override=severity_once(start.run_ratio),
    )


def _judge_steady(analysis: Analysis, rank: RankAnalysis, cold_ns: float) -> Finding | None:
    """The wait of the steady steps, without ``cold_ns`` per step, which the finding about the start reports."""
    loader = main_loader(rank)
    restarts_ns = restart_ns(rank) if has_costly_restarts(rank) else 0.0
    wait_ns = max(0.0, rank.breakdown.mean_ns("input_wait") - restarts_ns - cold_ns)
    if rank.step_mean_ns <= 0:
        return None
    cost_ratio = min(1.0, wait_ns / rank.step_mean_ns)
    if cost_ratio < threshold_ratio(rank, floor_ratio=FLOOR_RATIO, judged_fields=("input_wait_ns", "iterator_ns")):
        return None
    ranks, who = _who_waits(analysis, rank)
    work = None if loader is None else loading_work(rank, loader, wait_ns)
    if loader is None or work is None:
        return Finding(
            title=f"{who} waits {format_time(wait_ns)} ({format_share(cost_ratio)}) for the next batch",
            phase="input_wait",
            cost_ns=round(wait_ns),
            time_ns={"input_wait": round(wait_ns)},
            cost_ratio=cost_ratio,
            saving=saving_within(
                cost_ratio, UNKNOWN_LOW_RATIO * cost_ratio, UNKNOWN_MID_RATIO * cost_ratio, cost_ratio, _THUMB
            ),
            evidence={"cause": "unknown", "workers": NOT_JUDGED},
            where=places(rank.lines.get("input_wait_ns", ())),
            ranks=ranks,
        )
    batches = max(1.0, known_mean(rank, "micro_batches") or 1.0)
    compute_ns = max(1.0, rank.step_mean_ns - wait_ns)
    cores = _count_cores(rank, loader, work, wait_ns)
    crowded = cores.taken >= CROWDED_RATIO * cores.all
    cause = _cause_of(loader, work, compute_ns, fetch_work_ns(rank, loader, wait_ns), crowded=crowded)
    overlap = best_overlap(compute_ns=compute_ns, work=work, batches=batches, cores=cores.all, busy=cores.busy)
    lacks_cores = (cores.all - cores.own) * compute_ns < 0.5 * work.cpu_ns
    draws = draws_random(rank, loader)
    same = before_draws_ratio(rank) if draws else 1.0
    # Workers that wait for storage need no core of their own.
    waits = cause == "storage" or (waits_for_storage(work) and not crowded)
    none_free = not waits and (cores.all - cores.busy) * compute_ns < 0.5 * work.cpu_ns
    saving, fix = _forecast(rank, loader, work, overlap, cost_ratio, cause, lacks_cores, none_free, draws, same)
    title = f"{who} waits {format_time(wait_ns)} ({format_share(cost_ratio)}) for the next batch"
    if restarts_ns > 0:
        title += f", plus {format_share(restarts_ns / rank.step_mean_ns)} for restarting workers"
    title += ": " + _describe_cause(cause, loader, work, compute_ns, batches)
    if fix.technique == "loader-workers" and none_free:
        alone = best_overlap(compute_ns=compute_ns, work=work, batches=batches, cores=cores.all, busy=cores.own)
        saving = _without_a_free_core(saving, rank, alone, cost_ratio)
        if not _has_fewer_workers(fix, loader):
            title += OTHERS_HAVE_CORES if cores.taken >= LEAST_TAKEN_CORES and not lacks_cores else NO_FREE_CORE
    is_preparation = fix.technique in ("precompute-samples", "cache-samples")
    if is_preparation and draws:
        part = f" ({format_share(same)} of the wait)" if same else ""
        title += f"; samples draw random numbers, so only the work before that{part} can be prepared"
    return Finding(
        title=title,
        phase="input_wait",
        cost_ns=round(wait_ns),
        time_ns={"input_wait": round(wait_ns)},
        cost_ratio=cost_ratio,
        saving=saving,
        evidence={
            "cause": cause,
            "workers": _describe_workers(fix, loader, cause, overlap, rank),
            "to_prepare": describe_preparation(rank) if is_preparation else None,
            **(_describe_cache(rank, loader, fix, saving) if is_preparation and draws is False else {}),
            "draws_random": draws,
            "before_draws_ratio": round(same, 2) if draws and same is not None else None,
            "slow_tokenizer": slow_tokenizer(sample_lines(rank)),
            "num_workers": loader.num_workers,
            "wait_ns": round(wait_ns),
            "restarts_ns": round(restarts_ns) if restarts_ns > 0 else None,
            "compute_ns": round(compute_ns),
            **_describe_loading(rank, loader, work, cores),
            "simulated_workers": overlap.workers,
            "simulated_step_ns": round(overlap.mid_ns),
            "iterable": loader.iterable,
        },
        where=_where(rank, loader, cause),
        fix=fix,
        ranks=ranks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cores:
    """The cores of one rank: how many it may use, and how many of them are busy while it computes."""

    all: float
    own: float
    """By this training run."""
    taken: float
    """By other programs of the host."""
    busy: float
    """By both."""


def _count_cores(rank: RankAnalysis, loader: LoaderFacts, work: LoadingWork, wait_ns: float) -> _Cores:
    workers = loader.num_workers or 0
    cores = cores_per_rank(rank) or float(max(1, workers) + 1)
    own = min(cores, busy_cores(rank, wait_ns, 0.0 if workers else work.cpu_ns))
    taken = taken_cores(rank)
    # If a quota is below the number of cores, other programs have room on the cores outside it.
    beyond_quota = 0.0 if rank.idle_cores is None else rank.idle_cores[1] - cores
    busy = min(cores, own + max(0.0, taken - max(0.0, beyond_quota)))
    return _Cores(all=cores, own=own, taken=taken, busy=busy)


def _describe_loading(rank: RankAnalysis, loader: LoaderFacts, work: LoadingWork, cores: _Cores) -> dict[str, Value]:
    """Evidence: the time that making the batches takes, and the cores available for it."""
    return {
        "loading_ns_per_step": round(work.wall_ns),
        "loading_cpu_ns_per_step": round(work.cpu_ns),
        "fetch_ns": None if loader.fetch_ns is None else round(loader.fetch_ns),
        "fetch_cpu_ns": None if loader.fetch_cpu_ns is None else round(loader.fetch_cpu_ns),
        "collate_ns": None if loader.collate_ns is None else round(loader.collate_ns),
        "cores": rank.cores,
        "busy_cores": round(cores.own, 2),
        "cores_of_other_programs": None if rank.idle_cores is None else round(cores.taken, 2),
    }


def _has_fewer_workers(fix: Fix, loader: LoaderFacts) -> bool:
    wanted = fix.settings.get("num_workers")
    return isinstance(wanted, int) and wanted < (loader.num_workers or 0)


def _describe_workers(fix: Fix, loader: LoaderFacts, cause: str, overlap: Overlap, rank: RankAnalysis) -> str:
    """Why loader workers are the fix, or are not."""
    if _has_fewer_workers(fix, loader):
        return f"{loader.num_workers} workers compete with the training process for {rank.cores} cores; use fewer"
    if cause == "uneven-batches":
        return "the workers are fast enough on average: a longer queue bridges late batches"
    hands = f"{overlap.workers} worker{'s' * (overlap.workers != 1)}"
    forecast = f"{format_time(overlap.mid_ns)} per step with {hands}, {format_time(rank.step_mean_ns)} now"
    if fix.technique in ("precompute-samples", "cache-samples"):
        return f"no core is free for them: {forecast}"
    return f"they load in parallel with the computation: {forecast}"


def _who_waits(analysis: Analysis, rank: RankAnalysis) -> tuple[tuple[int, ...], str]:
    """The ranks that the finding is about (none named if all wait alike), and the subject of the title."""
    shares = [one.breakdown.share("input_wait") for one in analysis.ranks]
    most = max(shares)
    if len(shares) == 1 or min(shares) >= 0.6 * most:
        return (), "every step"
    slow = tuple(one.rank for one in analysis.ranks if one.breakdown.share("input_wait") >= 0.6 * most)
    slow_ranks = tuple(number for number in slow if number is not None)
    named = ", ".join(map(str, slow_ranks))
    return slow_ranks, f"rank {named}" if len(slow_ranks) == 1 else f"ranks {named}: every step"


def _cause_of(loader: LoaderFacts, work: LoadingWork, compute_ns: float, needs_core_ns: float, *, crowded: bool) -> str:
    """The cause of the wait: storage, slow-collate, slow-getitem, too-few-workers or uneven-batches."""
    workers = loader.num_workers or 0
    if workers and work.wall_ns / workers < 0.7 * compute_ns:
        return "uneven-batches"
    if loader.fetch_ns is None:
        return "too-few-workers" if workers else "slow-getitem"
    if (loader.collate_ns or 0.0) > loader.fetch_ns:
        return "slow-collate"
    if needs_core_ns < (CROWDED_CPU_RATIO if crowded else LATENCY_CPU_RATIO) * loader.fetch_ns:
        return "storage"
    # Samples that take less time than the computation only need more workers; slower samples are the fault themselves.
    return "too-few-workers" if workers and work.wall_ns <= 2.0 * workers * compute_ns else "slow-getitem"


def _describe_cause(cause: str, loader: LoaderFacts, work: LoadingWork, compute_ns: float, batches: float) -> str:
    workers = loader.num_workers or 0
    hands = f"{workers} worker{'s' * (workers > 1)}"
    place = f"in {hands}" if workers else "in the main process (num_workers=0)"
    period = format_time(work.wall_ns / max(1, workers) / batches)
    if cause == "storage" and loader.fetch_ns and loader.fetch_cpu_ns is not None:
        busy = format_share(loader.fetch_cpu_ns / loader.fetch_ns)
        return f"reading a batch {place} takes {format_time(loader.fetch_ns)}, only {busy} of it on the CPU"
    if cause == "slow-collate":
        return f"collate_fn takes {format_time(loader.collate_ns or 0.0)} a batch {place}"
    if cause == "uneven-batches":
        return f"{hands} could deliver one every {period}, but batches arrive unevenly or are slow to transfer"
    if cause == "too-few-workers":
        return f"{hands} can deliver one every {period}, but computing takes only {format_time(compute_ns / batches)}"
    if loader.fetch_ns is None:
        return f"samples are made {place}"
    maker = "__iter__" if loader.iterable else "__getitem__"
    return f"{maker} runs {place}, {format_time(loader.fetch_ns)} a batch"


def _forecast(
    rank: RankAnalysis,
    loader: LoaderFacts,
    work: LoadingWork,
    overlap: Overlap,
    cost_ratio: float,
    cause: str,
    lacks_cores: bool,
    none_free: bool,
    draws: bool | None,
    same: float | None,
) -> tuple[Saving, Fix]:
    workers = loader.num_workers or 0
    gains = [1.0 - step_ns / rank.step_mean_ns for step_ns in (overlap.worst_ns, overlap.mid_ns, overlap.best_ns)]
    low, mid, high = (max(0.0, gain) for gain in gains)
    # A forecast within the run's own noise is not a gain to count on.
    low = max(0.0, low - NOISE_MULTIPLE * rank.step_noise_ratio)
    if cause == "uneven-batches":
        factor = max(4, 2 * (loader.prefetch_factor or 2))
        return (
            saving_within(cost_ratio, 0.0, 0.4 * cost_ratio, 0.9 * cost_ratio, Basis.RULE_OF_THUMB),
            Fix(
                technique="loader-workers",
                settings={
                    # More workers than cores only take cores from each other.
                    "num_workers": max(1, min(workers + 1, int(cores_per_rank(rank) or workers))),
                    "persistent_workers": True,
                    "prefetch_factor": factor,
                },
            ),
        )
    may_keep = draws is False and cause != "slow-collate" and (_epochs(loader) or 0.0) >= LEAST_EPOCHS
    has_to_shrink = (mid < 0.4 * cost_ratio and lacks_cores) or (none_free and may_keep)
    if has_to_shrink and not _is_prepared(rank, work):
        # No core is free to do the work alongside the computation, so the work has to shrink. A sample that was
        # prepared ahead still costs a copy; random augmentation cannot be prepared.
        fix = Fix(technique="precompute-samples", numerics=Numerics.EXACT if draws is False else None)
        if not same:  # unknown which part of a sample comes before its random part
            return saving_within(cost_ratio, low, max(low, 0.4 * cost_ratio), cost_ratio, Basis.RULE_OF_THUMB), fix
        sure, likely = (max(low, part * same * cost_ratio) for part in (PREPARED_LOW_RATIO, PREPARED_MID_RATIO))
        if may_keep:
            # Collating the samples remains.
            fetch_ns, collate_ns = loader.fetch_ns or 0.0, loader.collate_ns or 0.0
            fetch_ratio = fetch_ns / (fetch_ns + collate_ns) if fetch_ns + collate_ns > 0 else 1.0
            found = _found_ratio(rank, loader) * fetch_ratio
            kept = saving_within(cost_ratio, found * sure, found * likely, found * cost_ratio, Basis.SIMULATED)
            return kept, Fix(technique="cache-samples")
        return saving_within(cost_ratio, sure, likely, cost_ratio, Basis.SIMULATED), fix
    return (
        saving_within(cost_ratio, low, mid, high, Basis.SIMULATED),
        Fix(
            technique="loader-workers",
            settings={"num_workers": overlap.workers, "persistent_workers": True, "prefetch_factor": 2},
        ),
    )


def _epochs(loader: LoaderFacts) -> float | None:
    """Passes over the data in this run; None if its length or its batches are unknown."""
    batches = None if loader.iterable else batches_of_an_epoch(loader)
    return None if not batches or loader.batches is None else loader.batches / batches


def _found_ratio(rank: RankAnalysis, loader: LoaderFacts) -> float:
    """Share of this run's reads that would have found their sample in a cache."""
    return found_ratio(_epochs(loader) or 0.0, max(1, rank.world_size))


def _describe_cache(rank: RankAnalysis, loader: LoaderFacts, fix: Fix, saving: Saving) -> dict[str, Value]:
    """Evidence: the epoch from which a cache of the samples pays off."""
    epochs, found = _epochs(loader), _found_ratio(rank, loader)
    told: dict[str, Value] = {"epochs": None if epochs is None else round(epochs, 1)}
    if fix.technique != "cache-samples":
        return {**told, "cache": None if epochs is None else CACHE_IN_ONE_EPOCH}
    told["found_in_cache_ratio"] = round(found, 3)
    told["saving_in_later_epochs_ratio"] = round(saving.mid_ratio / found, 3) if found else None
    return told


def _without_a_free_core(saving: Saving, rank: RankAnalysis, alone: Overlap, cost_ratio: float) -> Saving:
    """The saving from workers if no core is free for them: they take one from the computation, and may cost time.

    Measured with no core free: forecasts of 0.29 and 0.40, losses of 0.17 and 0.10 to 0.34 (2 and 5 runs). The high end
    is the saving once cores are free.
    """
    high = max(saving.high_ratio, 1.0 - alone.best_ns / rank.step_mean_ns, 0.0)
    # The expected saving in between was not measured.
    return saving_within(cost_ratio, 0.0, min(saving.mid_ratio, NO_CORE_MID_RATIO * cost_ratio), high, _THUMB)


def _is_prepared(rank: RankAnalysis, work: LoadingWork) -> bool:
    """Whether a sample costs no more than a copy, so that none of it could be done before training."""
    samples = rank.samples_per_step
    return samples is not None and samples > 0 and work.wall_ns / samples < PREPARED_SAMPLE_NS


def _where(rank: RankAnalysis, loader: LoaderFacts, cause: str) -> tuple[Where, ...]:
    """The line that makes batches, then the definition it belongs to, then the DataLoader."""
    sampled: tuple[Where, ...] = ()
    if not loader.num_workers:
        # Samples of a wait in the main process show the user's own code, unless only the loop's line was seen.
        lines = rank.lines.get("input_wait_ns", ())
        inside = tuple(line for line in lines if len(line.stack) > 1 or loader.fetch_where is None)
        sampled = places(inside, 1)
    definition = loader.collate_where if cause == "slow-collate" else loader.fetch_where
    return known_places(*sampled, definition, loader.where)
