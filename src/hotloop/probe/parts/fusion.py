"""Operators that a compiler would merge -> their computing alone, and what a byte costs that goes through memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hotloop.probe.clock import middle, time_arms, time_call
from hotloop.probe.operators import DTYPES, NOT_TIMED, NotReplayable, Operator, find_overload, make_inputs
from hotloop.probe.request import Part, ProbeRequest

CHUNK_ELEMENTS = 8_192
"""Operands of so many float32 elements stay in the second-level cache of every current CPU core."""
MOST_CHUNK_ELEMENTS = 65_536
MOST_CHUNKS = 150
CHUNK_ROUNDS = 7
ALONE_RATIO = 1.2
CHUNK_BUDGET_S = 0.015
STREAM_BYTES = (1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
STREAM_PIECE_BYTES = 1 << 20
STREAM_LEAST_BYTES = 1 << 23
STREAM_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """ns of a call on ``chunk_elements`` elements, in the caches, and on ``least_elements``: the call itself."""

    elements: int
    """Of the recorded shapes."""
    chunk_elements: int
    chunk_ns: float
    least_elements: int
    least_ns: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTimes:
    """ns of a call in its recorded shapes, and on a part of them (None where there was no time, or no way)."""

    index: int
    whole_ns: float
    chunk: ChunkTimes | None = None

    def to_dict(self) -> dict[str, Any]:
        chunk = {} if self.chunk is None else self.chunk.to_dict()
        return {"index": self.index, "whole_ns": self.whole_ns, **chunk}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatTimes:
    """ns of a convolution with its tensors as they are by default, and with the channels last."""

    contiguous_ns: int
    channels_last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionTimes:
    """``streams_ns_per_byte``: (bytes between two uses of a buffer, ns a byte that is read or written)."""

    threads: int
    streams_ns_per_byte: Sequence[tuple[int, float]]
    copy_in_cache: ChunkTimes
    chunks: Sequence[WholeTimes]
    convolutions: Sequence[tuple[int, FormatTimes]]
    """By place in the request."""
    left_out: int
    """Operators that could be merged and were not timed on a part."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "streams_ns_per_byte": [list(one) for one in self.streams_ns_per_byte],
            "copy_in_cache": self.copy_in_cache.to_dict(),
            "chunks": [one.to_dict() for one in self.chunks],
            "convolutions": [{"index": index, **asdict(times)} for index, times in self.convolutions],
            "left_out": self.left_out,
        }


def time_fusion(request: ProbeRequest, budget_s: float) -> FusionTimes:
    """What the operators to be merged take for computing alone, and what a byte costs that goes through memory.

    A merged operator finds its operands in registers or in the nearest cache, and the call itself is gone. So each is
    run on a part of its recorded shapes that stays in the caches, on one thread, and on hardly anything, whose time is
    the call's. Copies between buffers that lie further and further away tell what reading and writing cost.
    """
    recorded = request.ops
    deadline_s = time.perf_counter() + budget_s
    half_s = time.perf_counter() + 0.5 * budget_s
    present = torch.get_num_threads()
    whole_ns: dict[int, float] = {}
    for index in request.fusable[:MOST_CHUNKS]:
        if recorded[index].size_bytes * 8 < request.memory_bytes and time.perf_counter() < half_s:
            with contextlib.suppress(*NOT_TIMED):
                whole_ns[index] = time_whole(recorded[index])
    formats: list[tuple[int, FormatTimes]] = []
    for index in request.convolutions:
        if recorded[index].size_bytes * 8 < request.memory_bytes and time.perf_counter() < half_s:
            with contextlib.suppress(*NOT_TIMED):
                formats.append((index, time_formats(recorded[index])))
    chunks: list[WholeTimes] = []
    torch.set_num_threads(1)
    try:
        in_cache = time_chunk(
            Operator(name="aten::clone", shapes=[[1 << 20], []], dtypes=["float", ""], inputs=["", ""])
        )
        for index, ns in whole_ns.items():
            # Threads that wait for cores which others hold make a call longer than one thread alone needs for it.
            alone_ns = time_whole(recorded[index]) if present > 1 else ns
            chunks.append(WholeTimes(index=index, whole_ns=min(ns, ALONE_RATIO * alone_ns)))
            if time.perf_counter() < deadline_s:
                with contextlib.suppress(*NOT_TIMED):
                    chunks[-1] = dataclasses.replace(chunks[-1], chunk=time_chunk(recorded[index]))
    finally:
        torch.set_num_threads(present)
    return FusionTimes(
        threads=present,
        streams_ns_per_byte=[(size, round(ns, 5)) for size, ns in _time_streams(request.memory_bytes)],
        copy_in_cache=in_cache,
        chunks=chunks,
        convolutions=formats,
        left_out=len(request.fusable) - sum(one.chunk is not None for one in chunks),
    )


def time_chunk(op: Operator) -> ChunkTimes:
    """Times of one call on a part that stays in the caches, and on hardly anything; with the elements of each."""
    op = op.functional
    overload = find_overload(op)
    arms: dict[str, Callable[[], object]] = {}
    elements: dict[str, int] = {}
    for name, most in (("chunk", CHUNK_ELEMENTS), ("least", 1)):
        shapes = shrink_shapes(op, most)
        elements[name] = count_elements(op, shapes)
        positional, keywords = make_inputs(op, overload, shapes, False)
        arms[name] = functools.partial(overload, *positional, **keywords)
    if elements["chunk"] > MOST_CHUNK_ELEMENTS:
        raise NotReplayable(f"{op.name} cannot be run on a part of its input")
    times = time_arms(arms, CHUNK_BUDGET_S, most=CHUNK_ROUNDS)
    return ChunkTimes(
        elements=count_elements(op, op.shapes),
        chunk_elements=elements["chunk"],
        chunk_ns=round(middle(times["chunk"]), 1),
        least_elements=elements["least"],
        least_ns=round(middle(times["least"]), 1),
    )


def time_whole(op: Operator) -> float:
    """ns of one call in its recorded shapes, without gradients, with as many threads as the training has."""
    op = op.functional
    overload = find_overload(op)
    positional, keywords = make_inputs(op, overload, op.shapes, False)
    times = time_arms({"whole": functools.partial(overload, *positional, **keywords)}, CHUNK_BUDGET_S, CHUNK_ROUNDS)
    return round(middle(times["whole"]), 1)


def time_formats(op: Operator) -> FormatTimes:
    """ns of one convolution of images with its tensors as they are by default, and with the channels last."""
    overload = find_overload(op)
    positional, keywords = make_inputs(op, overload, op.shapes, False)
    channels_last = [
        one.contiguous(memory_format=torch.channels_last) if isinstance(one, torch.Tensor) and one.dim() == 4 else one
        for one in positional
    ]
    arms: dict[str, Callable[[], object]] = {
        "contiguous": functools.partial(overload, *positional, **keywords),
        "channels_last": functools.partial(overload, *channels_last, **keywords),
    }
    times = time_arms(arms, 2 * CHUNK_BUDGET_S, CHUNK_ROUNDS)
    return FormatTimes(
        contiguous_ns=round(middle(times["contiguous"])), channels_last_ns=round(middle(times["channels_last"]))
    )


def shrink_shapes(op: Operator, most: int) -> list[Any]:
    """The shapes with leading dimensions cut, the same ones in all tensors, until no more elements are left than that.

    The last dimension stays where another can be cut: norms and softmax run over it, and weights have its size.
    """
    shapes = [list(shape) if isinstance(shape, list) else shape for shape in op.shapes]
    tensors = [i for i, dtype in enumerate(op.dtypes) if dtype in DTYPES and shapes[i]]
    rank = max((len(shapes[i]) for i in tensors), default=0)
    for back in [*range(rank, 1, -1), *([1] if rank == 1 else [])]:
        size = max(shapes[i][-back] for i in tensors if len(shapes[i]) >= back)
        elements = count_elements(op, shapes)
        if elements <= most or size <= 1:
            continue
        kept = max(1, size * most // elements)
        for i in tensors:
            if len(shapes[i]) >= back and shapes[i][-back] == size:
                shapes[i][-back] = kept
    return shapes


def count_elements(op: Operator, shapes: Sequence[Any]) -> int:
    """Elements of the operands together, broadcast where they can be; else those of the largest one."""
    found = [shape for shape, dtype in zip(shapes, op.dtypes, strict=True) if dtype in DTYPES and shape]
    for shape, dtype in zip(shapes, op.dtypes, strict=True):
        if dtype == "TensorList":
            return sum(math.prod(one) for one in shape)
    largest = max((math.prod(shape) for shape in found), default=1)
    rank = max((len(shape) for shape in found), default=0)
    aligned = [[1] * (rank - len(shape)) + list(shape) for shape in found]
    sizes = [set(column) - {1} for column in zip(*aligned, strict=True)]
    return math.prod(size for column in sizes for size in column) if all(len(s) < 2 for s in sizes) else largest


def _time_streams(memory_bytes: int) -> list[tuple[int, float]]:
    """(bytes that lie between two uses of a buffer, ns a byte that is read or written), for growing distances."""
    found = []
    for footprint in STREAM_BYTES:
        if 2 * footprint > memory_bytes:
            break
        piece = min(footprint // 2, STREAM_PIECE_BYTES) // 4
        pairs = [(torch.rand(piece), torch.rand(piece)) for _ in range(max(1, footprint // (8 * piece)))]

        def copy_all(pairs: list[tuple[torch.Tensor, torch.Tensor]] = pairs) -> None:
            for source, target in pairs:
                target.copy_(source)

        tiny = torch.rand(1)
        empty_ns = min(time_call(lambda one=tiny: one.copy_(one), 20) for _ in range(3))  # type: ignore[misc]
        copy_all()
        repeats = max(1, STREAM_LEAST_BYTES // footprint)
        times = [time_call(copy_all, repeats) for _ in range(STREAM_ROUNDS)]
        found.append((footprint, max(0.0, middle(times) - len(pairs) * empty_ns) / (8 * piece * len(pairs))))
    return found


def _is_wanted(request: ProbeRequest) -> bool:
    return bool(request.ops) and bool(request.fusable)


FUSION = Part(id="fusion", order=3, budget_ratio=0.15, is_wanted=_is_wanted, measure=time_fusion)
