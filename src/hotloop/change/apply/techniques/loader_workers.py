"""loader-workers: batches are made in other processes, alongside the computation."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hotloop.change.apply.forecasts import forecast_workers
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.sources import Arguments, WrittenArgument
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique

MOST_WORKERS = 8
"""The most that hotloop chooses on its own: more rarely help, and each worker holds a copy of what it touches."""
LOW_PRIORITY = 19
"""The niceness that gives way most; at 10 a third of the gain was seen that 19 gave."""

_LOWER = "at a lower priority (nice {niceness})"
UNWRITTEN = "the workers' lower priority needs a worker_init_fn, forked workers and a file that imports os"


class LoaderWorkers(Technique):
    """
    ## What it does
    Gives the training DataLoader worker processes that live as long as the loader. The order of samples stays the same,
    and so does every random draw of the main process: shuffling, dropout and the seeds of later passes match the script
    without workers. Passes without gradients (validation) still load in the main process (`passes = "all"` changes
    that), and so does a second iterator over the same loader while the first is active.

    If compute threads and workers together outnumber the cores, the workers run at a lower priority (`niceness`): they
    fill the gaps in the computation, and use all cores while the computation waits for them. This also applies to
    workers that the script itself chose.

    Before adding workers, hotloop reads a few samples in a temporary forked process (for about 1 s at most, or 10 s if
    a single sample takes longer), and searches the dataset for objects that a forked process must not share.

    ## When it helps
    It helps if the step waits for its batches while cores are free, or if loading waits for storage: batches of 16
    samples that took 5 ms each arrived at 74 to 89 samples per second without workers and at 378 with two workers (2
    CPU cores, torch 2.13). On two cores that two compute threads kept busy (a transformer of 10 million parameters that
    tokenizes during training), two workers at the same priority saved nothing (431 to 490 ms per step, compared with
    433 to 466 ms without workers), but at the lowest priority, the step took 315 to 355 ms (3 runs each).

    ## When it does not
    If all cores compute all the time, make the loading itself cheaper instead. If other programs want the cores,
    low-priority workers get them last (`niceness = 0` leaves the workers' priority alone). hotloop does not add workers
    in the following cases, and reports the reason:

    - an IterableDataset, which has to split itself among its workers;
    - data pipes, and open files, databases, sockets and threads inside the dataset;
    - accelerator tensors in samples, and batches that cannot be sent between processes;
    - a dataset that has its own random generator (every worker would repeat its draws), or that sets its own attributes
      when it is read;
    - a start method other than fork, if the script has no workers;
    - too little shared memory, and a sampler whose position is saved in checkpoints.

    If the script chose more workers than the strategy, the script's number stays unless the strategy sets `override =
    true`.

    If the script changes the dataset between passes, new workers get the changed dataset, unless the dataset has since
    opened something that a forked process must not share. If the change comes during a pass, the main process loads the
    rest of that pass. hotloop does not notice if elements are replaced inside a list, or if the script writes to a
    numpy array.

    ## Numerics
    Exact if reading and collating draw no random numbers. hotloop checks this by comparing the states of torch, random
    and numpy before and after a few reads. Reordered if samples are computed by operators that torch spreads over
    threads (a worker has one). In all other cases, resampled: workers draw from their own seeds.
    """

    id = "loader-workers"
    summary = (
        "load batches in worker processes, or in more worker processes: `num_workers`, `persistent_workers`, "
        "`prefetch_factor`"
    )
    numerics = Numerics.RESAMPLED
    stage = Stage.LOADER
    source = Arguments(
        names=("num_workers", "prefetch_factor", "persistent_workers"),
        written={
            "niceness": WrittenArgument(
                name="worker_init_fn", code="lambda _: os.nice({})", module="os", why_not=UNWRITTEN
            )
        },
    )
    treats = ("input-bound", "worker-restart")
    settings = (
        Setting(
            name="num_workers",
            kind=int,
            default=None,
            help="worker processes per training process; by default its share of the host's cores (minus one if the "
            f"workers keep their priority), from 1 to {MOST_WORKERS}",
            least=1,
            most=256,
        ),
        Setting(
            name="prefetch_factor", kind=int, default=2, help="batches that each worker loads ahead", least=1, most=1024
        ),
        Setting(name="persistent_workers", kind=bool, default=True, help="keep the workers alive between passes"),
        Setting(
            name="niceness",
            kind=int,
            default=None,
            help=f"niceness of the workers; by default {LOW_PRIORITY} if compute threads and workers outnumber the "
            "cores, else 0",
            least=0,
            most=19,
        ),
        Setting(
            name="passes",
            kind=str,
            default="training",
            help="passes that use workers: those with gradients, or all",
            choices=("training", "all"),
        ),
    )

    def why_no_source(self, values: Mapping[str, Value]) -> str | None:
        # What a worker runs first must be sent to it where it is spawned, which a lambda cannot be.
        return UNWRITTEN if "niceness" in values and values.get("start_method") != "fork" else None

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """From the measured times of a batch, where the training process itself loads."""
        asked, rank = settings.get("num_workers"), analysis.lead
        share = (rank.cores or 0) // max(1, rank.local_world_size or 1)
        return forecast_workers(analysis, asked if isinstance(asked, int) else max(1, min(MOST_WORKERS, share)))

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.worker_passes import is_plain, start_method

        workers, niceness = _choose(loader.num_workers, settings, context)
        had = loader.num_workers
        explicit = f"num_workers={had}" if had > workers and settings["num_workers"] is not None else None
        overrides = explicit is not None and context.strategy.overrides(self.id)
        refused = None if overrides else _chosen_by_hand(loader, settings, workers)
        if refused is not None and niceness and is_plain(loader):
            return _lower(loader, niceness)
        if refused is not None:
            return NotApplicable(why=refused, explicit=explicit)
        if had and settings["num_workers"] is None:
            workers = had
        if not is_plain(loader):
            return NotApplicable(why=f"{type(loader).__name__} overrides how iterators are created")
        if loader._dataset_kind == 1:
            return NotApplicable(why=f"{type(loader.dataset).__name__} is iterable, and has to split its data itself")
        method = start_method(loader)
        refused = _refusal(loader, method)
        if refused is not None:
            return NotApplicable(why=refused)
        reads = _reads_of(loader, context.memory(self.id))

        def emit(why: str) -> None:
            context.report(self.id, NotApplicable(why=why))

        effect = _give(loader, settings, workers, niceness, method, reads, emit)
        return replace(effect, explicit=explicit) if isinstance(effect, Applied) else effect


def _reads_of(loader: Any, memory: dict[str, Any]) -> Any:
    """The effects of reading samples; already known for a loader that is rebuilt for every pass over the same data."""
    import weakref

    from hotloop.change.apply.loader_samples import fingerprint, read_samples

    data, collate = loader.dataset, loader.collate_fn
    look = (fingerprint(data), type(loader.sampler).__name__, loader.batch_size)
    last = memory.get("last")
    if last is not None and last[0]() is data and last[1]() is collate and last[2] == look:
        return last[3]
    reads = read_samples(loader)
    try:
        memory["last"] = (weakref.ref(data), weakref.ref(collate), look, reads)
    except TypeError:  # a list as dataset takes no weak reference, and must not be kept alive
        memory.pop("last", None)
    return reads


def _choose(had: int, settings: Mapping[str, Value], context: Context) -> tuple[int, int]:
    """Workers of each training process, and by how much to lower their priority."""
    import torch

    asked, niceness = settings["num_workers"], settings["niceness"]
    share = max(1, context.cores // max(1, context.local_world_size))
    workers = asked if isinstance(asked, int) else had or max(1, min(MOST_WORKERS, share - 1))
    if isinstance(niceness, int):
        return workers, niceness
    if not hasattr(os, "setpriority") or torch.get_num_threads() + workers <= share:
        return workers, 0
    if not (isinstance(asked, int) or had):
        workers = min(MOST_WORKERS, share)  # all cores are theirs while the computation waits for a batch
    return workers, LOW_PRIORITY


def _lower(loader: Any, niceness: int) -> Effect:
    """Only the priority of workers that the script has chosen."""
    from hotloop.change.apply.worker_passes import LowPriority

    def undo() -> None:
        vars(loader).pop("_get_iterator", None)

    object.__setattr__(loader, "_get_iterator", LowPriority(loader, niceness))
    return Applied(
        text=f"num_workers={{num_workers}} as in the script, {_LOWER}",
        values={"num_workers": loader.num_workers, "niceness": niceness},
        numerics=Numerics.EXACT,
        undo=undo,
    )


def _chosen_by_hand(loader: Any, settings: Mapping[str, Value], workers: int) -> str | None:
    had = loader.num_workers
    if not had:
        return None
    if had > workers and settings["num_workers"] is not None:
        return f"the script sets num_workers={had}, but the strategy sets {workers}"
    more = workers > had and settings["num_workers"] is not None
    persists = bool(settings["persistent_workers"]) and not loader.persistent_workers
    farther = int(settings["prefetch_factor"] or 2) > (loader.prefetch_factor or 2)  # type: ignore[arg-type]
    if not (more or persists or farther):
        return f"the script sets num_workers={had}; nothing to add"
    return None


def _refusal(loader: Any, method: str) -> str | None:
    """Why this loader must not get workers, as far as hotloop can see without reading samples."""
    import multiprocessing

    from hotloop.change.apply.shareable import find_unshareable

    if multiprocessing.current_process().daemon:
        return "this process is a daemon, which cannot have worker processes"
    if "torch.utils.data.datapipes" in type(loader.dataset).__module__:
        return "torch shards a data pipe among ranks and workers"
    if loader.num_workers and loader.persistent_workers and loader._iterator is not None:
        return "its workers are already running"
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name)
        if sampler is not None and not type(sampler).__module__.startswith("torch.") and hasattr(sampler, "state_dict"):
            return (
                f"the {name} {type(sampler).__name__} can be saved, and workers would read ahead of its saved position"
            )
    if loader.num_workers:
        return None  # the script's own workers share all this already
    if method != "fork":
        return f"its workers would be started by {method}, and only forked ones are known to work"
    return find_unshareable(("dataset", loader.dataset), ("collate_fn", loader.collate_fn))


def _give(
    loader: Any,
    settings: Mapping[str, Value],
    workers: int,
    niceness: int,
    method: str,
    reads: Any,
    emit: Callable[[str], None],
) -> Effect:
    from hotloop.change.apply.loader_samples import Reads
    from hotloop.change.apply.worker_passes import LowPriority, WorkerPasses, give_workers

    if not isinstance(reads, Reads):
        return NotApplicable(why=reads)
    had = loader.num_workers
    if reads.error is not None:
        return NotApplicable(why=f"reading samples in a worker failed: {reads.error}")
    if reads.unstable and not had:
        return NotApplicable(
            why="reading a sample twice gives different data without using a global generator: the dataset has its "
            "own generator, and every worker would repeat its numbers"
        )
    if reads.changed and not had:
        return NotApplicable(
            why=f"reading a sample changes the dataset's {', '.join(reads.changed)}, but workers have copies"
        )
    prefetch = max(int(settings["prefetch_factor"] or 2), loader.prefetch_factor or 1)  # type: ignore[arg-type]
    refused = _lacks_room(reads.batch_bytes or 0, workers, prefetch)
    if refused is not None:
        return NotApplicable(why=refused)
    numerics, because = _numerics(loader, reads, workers)
    before = (loader.num_workers, loader.prefetch_factor, loader.multiprocessing_context)
    if had and loader.persistent_workers:  # torch's own persistent workers stay, there are more of them
        loader.num_workers, loader.prefetch_factor = workers, prefetch
        if niceness:
            object.__setattr__(loader, "_get_iterator", LowPriority(loader, niceness))
    else:
        give_workers(
            loader,
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent=bool(settings["persistent_workers"]),
            context=None if loader.multiprocessing_context is not None else method,
            training_only=settings["passes"] == "training",
            is_resampled=numerics is Numerics.RESAMPLED,
            niceness=niceness,
            emit=emit,
        )
    _allow_open_files()
    kept = "kept between passes" if settings["persistent_workers"] else "restarted for each pass"
    was = f" (was {had})" if had else ""

    def undo() -> None:
        passes = vars(loader).pop("_get_iterator", None)
        if isinstance(passes, WorkerPasses):
            passes.drop()
        loader.num_workers, loader.prefetch_factor = before[0], before[1]
        object.__setattr__(loader, "_DataLoader__multiprocessing_context", before[2])

    values: dict[str, Value] = {
        "num_workers": workers,
        "prefetch_factor": prefetch,
        "persistent_workers": bool(settings["persistent_workers"]),
        "start_method": method,
        "because": because,
    }
    lower = _add_niceness(values, niceness)
    return Applied(
        text=f"num_workers={{num_workers}}{was}, prefetch_factor={{prefetch_factor}}, {kept}, {{start_method}}{lower}; "
        "{because}",
        values=values,
        numerics=numerics,
        undo=undo,
    )


def _numerics(loader: Any, reads: Any, workers: int) -> tuple[Numerics, str]:
    from hotloop.change.apply.shareable import uses_worker_number

    if reads.draws:
        if loader.num_workers == workers and not loader.persistent_workers:
            return Numerics.RESAMPLED, f"samples draw from {' and '.join(reads.draws)}, and workers keep their state"
        return Numerics.RESAMPLED, f"samples draw from {' and '.join(reads.draws)}, now in the workers"
    if reads.sampler_draws:
        names = " and ".join(reads.sampler_draws)
        return Numerics.RESAMPLED, f"the sampler draws from {names} during iteration, now ahead of the loop"
    if loader.worker_init_fn is not None and not loader.num_workers:
        return Numerics.RESAMPLED, "worker_init_fn now runs"
    if uses_worker_number(loader.dataset):
        return Numerics.RESAMPLED, "the dataset uses get_worker_info"
    generator = getattr(loader.sampler, "generator", None)
    if generator is not None and (getattr(loader.sampler, "replacement", False) or not _reads_once(loader.sampler)):
        return Numerics.RESAMPLED, (
            "the sampler draws from the script's generator during iteration, now ahead of the loop"
        )
    if reads.threaded and not loader.num_workers:
        return Numerics.REORDERED, f"one thread computes {', '.join(reads.threaded[:3])} in a worker"
    return Numerics.EXACT, "reading and collating use no random numbers"


def _reads_once(sampler: Any) -> bool:
    """Whether this sampler of torch draws all it needs at its first index."""
    import torch.utils.data as data

    if type(sampler) is data.RandomSampler:
        return bool(sampler.num_samples == len(sampler.data_source))
    return type(sampler) in (data.SubsetRandomSampler, data.WeightedRandomSampler)


def _lacks_room(batch_bytes: int, workers: int, prefetch: int) -> str | None:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return None
    free_bytes = room.f_bavail * room.f_frsize
    need_bytes = batch_bytes * (workers * prefetch + 2)
    if need_bytes > free_bytes // 2:
        return (
            f"{workers * prefetch} batches of {batch_bytes / 2**20:.0f} MiB ahead need {need_bytes / 2**20:.0f} MiB of "
            f"shared memory, /dev/shm has {free_bytes / 2**20:.0f} MiB free"
        )
    return None


def _allow_open_files() -> None:
    """Every tensor from a worker holds an open file: a script that keeps its batches must not run out of them."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ImportError, ValueError, OSError):
        return


def _add_niceness(values: dict[str, Value], niceness: int) -> str:
    """The workers' priority in words; empty where it is the usual one."""
    if niceness:
        values["niceness"] = niceness
    return f", {_LOWER}" if niceness else ""
