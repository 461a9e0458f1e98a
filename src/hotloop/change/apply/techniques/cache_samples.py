"""cache-samples: each sample is read once and kept in memory."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from hotloop.change.apply.forecasts import forecast_kept_samples
from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Saving, Value
from hotloop.core.sources import Wrapped
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Setting, Stage, Technique


class CacheSamples(Technique):
    """
    ## What it does
    Keeps each sample that `dataset[i]` returns the first time. Later epochs copy the sample from the cache and do not
    run the dataset's code. The cache is in shared memory, which forked loader workers fill and read together. Its size
    is limited (`most_bytes`); once the limit is reached, further samples are read as before. Every read from the cache
    is a new copy, so changing a sample in place does not change the cache.

    The cache stores lists, tuples, dictionaries, strings, numbers, tensors and numpy arrays. The script's dataset
    object stays the same, and its attributes, copies and pickles are not affected.

    In a script of your own, `loader = hotloop.cache_samples(loader)` does the same.

    ## When it helps
    Reading a sample (decoding, resizing, tokenizing) takes much longer than copying it, and training runs for several
    epochs. The cache pays off from the second epoch on; the first epoch also fills the cache, which adds the time of
    copying every sample once.

    ## When it does not
    In a run of one epoch, the cache saves nothing. With several ranks, each rank keeps only the samples that it read
    itself, and a sampler that shuffles over all ranks gives it other samples in the next epoch: N ranks need about N
    epochs to fill their caches. hotloop does not cache in the following cases, and reports the reason:

    - samples that draw random numbers from torch, random, numpy or a generator of the dataset: caching them would
      freeze their augmentation
    - samples that differ when they are read twice, or whose reading sets attributes of the dataset
    - samples of types that the cache cannot store, such as PIL images; iterable datasets; keys other than integers
    - workers that are not forked

    hotloop keeps watching during training. It ends the cache and reports the reason if a read draws random numbers, if
    one of the samples that it still reads twice (the first samples of each process, then one in 128) has changed, if
    the script changes the dataset, or if reading a sample takes less than twice as long as copying it.

    ## Numerics
    Exact: the samples have the same bits, and the random draws stay the same.
    """

    id = "cache-samples"
    summary = "cache the dataset's samples in shared memory for the next epochs"
    numerics = Numerics.EXACT
    stage = Stage.LOADER
    source = Wrapped(function="cache_samples", names=("most_bytes",))
    treats = ("input-bound",)
    watch_steps = True
    settings = (
        Setting(
            name="most_bytes",
            kind=int,
            default=None,
            help="size of the cache of each training process; by default its share of a quarter of the free memory",
            least=1 << 16,
        ),
    )

    def forecast(self, analysis: Analysis, settings: Mapping[str, Value]) -> Saving | None:
        """From the measured time of fetching, for the epochs of this run that read samples again."""
        return forecast_kept_samples(analysis)

    def change_loader(self, loader: Any, settings: Mapping[str, Value], context: Context) -> Effect:
        from hotloop.change.apply.sample_cache import is_read_through_cache

        if is_read_through_cache(loader.dataset):
            return None
        refused: list[tuple[Any, str]] = context.memory(self.id).setdefault("refused", [])
        why = next((why for data, why in refused if data() is loader.dataset), None)
        why = why or context.memory(self.id).get("ended", {}).get(_kind_of(loader.dataset))
        if why is None:
            effect = _keep(loader, settings, context, context.memory(self.id))
            if not isinstance(effect, NotApplicable):
                return effect
            why = effect.why
            if type(loader.dataset).__weakrefoffset__:
                refused.append((weakref.ref(loader.dataset), why))
        return NotApplicable(why=why)

    def after_step(self, context: Context) -> None:
        caches: list[Any] = context.memory(self.id).get("caches", [])
        for cache in [one for one in caches if one.why_ended]:
            caches.remove(cache)
            cache.close()  # a worker has ended it
            why = f"samples are no longer kept: {cache.why_ended}"
            context.memory(self.id).setdefault("ended", {})[cache.kind] = why
            context.report(self.id, NotApplicable(why=why))


def _keep(loader: Any, settings: Mapping[str, Value], context: Context, memory: dict[str, Any]) -> Effect:
    from hotloop.change.apply.loader_samples import Reads, read_samples
    from hotloop.change.apply.sample_cache import SampleCache, read_through_cache

    dataset = loader.dataset
    why = _why_not_readable(loader)
    if why is not None:
        return NotApplicable(why=why)
    reads = read_samples(loader, watch_operators=False)
    if not isinstance(reads, Reads):
        return NotApplicable(why=reads)
    why = _why_not_kept(reads)
    if why is not None:
        return NotApplicable(why=why)
    count, size = len(dataset), reads.record_bytes or 0
    try:
        bound, store = _open_store(count, size, settings, context, memory)
    except OSError as error:
        return NotApplicable(why=f"the cache cannot be opened: {error.strerror or error}")
    need = count * size
    if store is None:
        return NotApplicable(
            why=f"no room: {count:,} samples of {_format_size(size)}, but the limit (most_bytes) is "
            f"{_format_size(bound)}"
        )
    cache = SampleCache(dataset, store, _kind_of(dataset))
    try:
        undo = read_through_cache(dataset, cache)
    except TypeError as error:
        return NotApplicable(why=f"{type(dataset).__name__} cannot be read through a cache: {error}")
    memory.setdefault("caches", []).append(cache)
    memory["given_bytes"] = memory.get("given_bytes", 0) + min(bound, need)
    part = f", of which about {bound / need:.0%} fit" if need > bound else ""
    return Applied(
        text="keeps {samples:,} samples of about {sample_size} in memory{part}, at most {most_size}",
        values={
            "samples": count,
            "sample_bytes": size,
            "sample_size": _format_size(size),
            "most_bytes": bound,
            "most_size": _format_size(bound),
            "part": part,
        },
        numerics=Numerics.EXACT,
        undo=undo,
    )


def _kind_of(dataset: Any) -> tuple[str, int | None]:
    """State that datasets of one kind share: a script that makes one per epoch loses each cache in the same way."""
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}", len(dataset) if hasattr(dataset, "__len__") else None


def _format_size(size_bytes: int) -> str:
    """In binary units: '1.5 MiB'."""
    for unit_bytes, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} bytes"


def _why_not_readable(loader: Any) -> str | None:
    """Why samples of this loader cannot be kept, as far as hotloop can see without reading any."""
    from hotloop.change.apply.sample_cache import find_obstacle
    from hotloop.change.apply.worker_passes import start_method

    dataset = loader.dataset
    if loader._dataset_kind == 1:
        return f"{type(dataset).__name__} is iterable: its samples have no index to store them under"
    if not hasattr(type(dataset), "__getitem__") or not hasattr(dataset, "__len__"):
        return f"{type(dataset).__name__} has no __getitem__ or no length"
    if loader.num_workers:
        method = start_method(loader)
        if method != "fork":
            return f"its workers are started by {method}, and only forked ones share a cache"
    return find_obstacle(dataset)


def _why_not_kept(reads: Any) -> str | None:
    """Why samples that were read on trial must not be kept."""
    drawn = [*reads.draws, *reads.own_draws]
    if reads.error is not None:
        return f"reading samples as a trial failed: {reads.error}"
    if drawn:
        return f"samples draw random numbers ({', '.join(drawn)}), which a cache would freeze"
    if reads.unstable:
        return "reading a sample twice gives different data"
    if reads.changed:
        return f"reading a sample changes the dataset's {', '.join(reads.changed)}"
    if reads.key_kind != "int" and not reads.key_kind.startswith("int"):
        return f"the sampler's keys are of class {reads.key_kind or '(none)'}, not integers"
    unplain: str | None = reads.unplain
    return unplain


def _open_store(
    count: int, sample_bytes: int, settings: Mapping[str, Value], context: Context, memory: Mapping[str, Any]
) -> tuple[int, Any]:
    """The bound in bytes and the store; None in its place where not even one sample fits. Raises OSError."""
    from hotloop.change.apply.sample_store import SampleStore, choose_memory_bytes

    asked, index_bytes = settings["most_bytes"], 8 * count
    free_bytes = choose_memory_bytes(max(1, context.local_world_size)) - memory.get("given_bytes", 0)
    bound = asked if isinstance(asked, int) else free_bytes
    bound = min(bound, index_bytes + 4 * count * sample_bytes + (1 << 24))  # address space that could never be filled
    if bound - index_bytes < sample_bytes:
        return bound, None
    return bound, SampleStore(count, bound, sample_bytes)
