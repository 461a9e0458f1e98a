"""A training's operators, optimizer and buckets as JSON -> their times as they are and with changes, as JSON.

Run as ``python opportunities.py IN.json OUT.json``. It judges nothing: times go out, forecasts are made from them
elsewhere. Tensors are random, shapes are those recorded. Every recorded forward operator is run with its own backward,
so that casts, their backwards and autograd's work are part of what is timed. The arms of an operator take turns, so
that a machine that gets slower meanwhile slows all of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SHORT_NS = 100_000
"""Calls shorter than this are timed several in a row."""
FRESH_BYTES = 48 << 20
MOST_CALLS = 3_000
MOST_PASSES = 60
PASS_COPIES = 6
"""A pass keeps its inputs, outputs and gradients, once for each batch size."""
LEAST_PASS_RATIO = 0.8
"""Share of the calls that a pass has to hold to stand for the step."""
LARGER_FACTORS = (4, 8, 16, 32, 64)
LARGER_RUNS = 4
"""A larger pass is made (which runs its forward), run once, and timed twice."""
THREAD_ROUNDS = 8
BOTH_RATIO = 0.5
"""Part of the passes' time for the present batch and twice of it; the rest is for larger ones."""
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
DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "c10::Half": torch.float16,
    "long int": torch.int64,
    "long": torch.int64,
    "int": torch.int32,
    "short int": torch.int16,
    "signed char": torch.int8,
    "unsigned char": torch.uint8,
    "bool": torch.bool,
}
LOWERED = frozenset(
    (
        "aten::linear",
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::addbmm",
        "aten::matmul",
        "aten::conv1d",
        "aten::conv2d",
        "aten::conv3d",
        "aten::convolution",
        "aten::_convolution",
        "aten::conv_transpose1d",
        "aten::conv_transpose2d",
        "aten::conv_transpose3d",
        "aten::scaled_dot_product_attention",
    )
)
"""Operators that autocast runs in the lower precision."""
WEIGHTS_FROM = {
    "aten::linear": 1,
    "aten::conv1d": 1,
    "aten::conv2d": 1,
    "aten::conv3d": 1,
    "aten::convolution": 1,
    "aten::_convolution": 1,
    "aten::layer_norm": 1,
    "aten::group_norm": 1,
    "aten::rms_norm": 1,
    "aten::batch_norm": 1,
    "aten::prelu": 1,
}
"""Position of the first parameter among an operator's tensors: what follows does not grow with the batch."""
NOT_REPLAYED = frozenset(
    (
        "aten::view",
        "aten::reshape",
        "aten::transpose",
        "aten::t",
        "aten::permute",
        "aten::expand",
        "aten::expand_as",
        "aten::unsqueeze",
        "aten::squeeze",
        "aten::select",
        "aten::slice",
        "aten::detach",
        "aten::detach_",
        "aten::chunk",
        "aten::split",
        "aten::unbind",
        "aten::as_strided",
        "aten::flatten",
        "aten::unflatten",
        "aten::size",
        "aten::contiguous",
        "aten::item",
        "aten::_local_scalar_dense",
        "aten::is_nonzero",
        "aten::view_as",
        "aten::numpy_T",
        "aten::alias",
        "aten::empty",
        "aten::empty_like",
        "aten::broadcast_tensors",
        "aten::result_type",
    )
)
"""Views cost their call only, and copies of views need strides that were not recorded."""


STATISTICS = {"aten::batch_norm": (3, 4), "aten::instance_norm": (3, 4)}
"""Positions of running statistics, which have no gradient."""


class NotReplayable(Exception):
    """Inputs for an operator cannot be made from what was recorded; the text says why."""


NOT_TIMED = (NotReplayable, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
"""What an operator raises whose recorded inputs were not enough to run it."""


# Inputs


def find_overload(op: dict[str, Any]) -> Any:
    """The torch.ops overload whose arguments fit what was recorded."""
    space, _, name = op["name"].partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet is None:
        raise NotReplayable(f"this torch has no {op['name']}")
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        arguments = overload._schema.arguments
        if overload_name.endswith("out") or len(arguments) != len(op["dtypes"]):
            continue
        if all(_fits(argument, dtype) for argument, dtype in zip(arguments, op["dtypes"], strict=True)):
            return overload
    raise NotReplayable(f"no overload of {op['name']} takes {op['dtypes']}")


def _fits(argument: Any, dtype: str) -> bool:
    kind = (
        str(argument.type).removeprefix("Optional[").removesuffix("]")
        if "Optional" in str(argument.type)
        else str(argument.type)
    )
    if dtype in DTYPES:
        return kind == "Tensor"
    if dtype == "TensorList":
        return kind.startswith("List") and "Tensor" in kind
    if dtype == "ScalarList":
        return kind.startswith("List") and "Tensor" not in kind
    if dtype == "Scalar":
        return kind in ("int", "float", "bool", "number", "Scalar", "SymInt", "ScalarType", "Layout", "MemoryFormat")
    return "Optional" in str(argument.type) or argument.has_default_value() or kind == "Generator"


def make_inputs(
    op: dict[str, Any], overload: Any, shapes: Sequence[Any], gradients: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments with random tensors of these shapes."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    bound = _index_bound(op, shapes)
    statistics_at = STATISTICS.get(op["name"], ())
    for index, (argument, shape, dtype, value) in enumerate(
        zip(overload._schema.arguments, shapes, op["dtypes"], op["inputs"], strict=True)
    ):
        if dtype in DTYPES:
            made: Any = _tensor(shape, DTYPES[dtype], bound, gradients and index not in statistics_at)
        elif dtype == "TensorList":
            if not shape or not all(isinstance(one, list) for one in shape):
                raise NotReplayable(f"{op['name']} has a list of unknown tensors")
            made = [_tensor(one, torch.float32, bound, gradients) for one in shape]
        elif dtype in ("Scalar", "ScalarList"):
            made = _scalar(value, str(argument.type))
        elif argument.has_default_value():
            made = argument.default_value
        else:
            made = None
        if argument.kwarg_only:
            keywords[argument.name] = made
        else:
            positional.append(made)
    return positional, keywords


def _index_bound(op: dict[str, Any], shapes: Sequence[Any]) -> int:
    """Exclusive bound for integer inputs that is valid as an index into the other tensors."""
    first = next((shape for shape in shapes if isinstance(shape, list) and shape), [1])
    if not all(isinstance(size, int) for size in first):
        return 1
    if op["name"] == "aten::embedding":
        return int(first[0])
    if "loss" in op["name"] and len(first) > 1:
        return int(first[1])
    sizes = [size for s in shapes if isinstance(s, list) for size in s if isinstance(size, int) and size > 0]
    return max(1, min(sizes, default=1))


def _tensor(shape: Sequence[int], dtype: torch.dtype, bound: int, gradients: bool) -> torch.Tensor:
    if dtype.is_floating_point:
        # Positive and away from zero: no NaN from logarithms or roots, no denormals.
        made = (torch.rand(tuple(shape)) + 0.1).to(dtype)
        return made.requires_grad_(gradients and len(shape) > 0)
    if dtype is torch.bool:
        return torch.rand(tuple(shape)) < 0.5
    return torch.randint(0, min(bound, torch.iinfo(dtype).max), tuple(shape)).to(dtype)


def _scalar(value: Any, kind: str) -> Any:
    if isinstance(value, str):
        if value in ("inf", "-inf", "nan"):
            return float(value)
        return None if value == "" else value
    if "ScalarType" in kind and isinstance(value, int):
        return None if value < 0 else _SCALAR_TYPES.get(value)
    if kind in ("bool", "Optional[bool]"):
        return bool(value)
    return value


_SCALAR_TYPES = {
    4: torch.int64,
    3: torch.int32,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
}


def scale_batch(op: dict[str, Any], batch: int, factor: int = 2) -> list[Any] | None:
    """The shapes with so many times the batch where a tensor's first dimension holds it; None when none does."""
    tensors = [i for i, dtype in enumerate(op["dtypes"]) if dtype in DTYPES and op["shapes"][i]]
    weights_from = WEIGHTS_FROM.get(op["name"], len(op["shapes"]))
    if op["name"] in ("aten::embedding", "aten::addmm"):
        movable = [i for i in tensors if i == 1]
    elif op["name"] == "aten::mm":
        movable = [i for i in tensors if i == 0]
    else:
        movable = [i for i in tensors if i < weights_from]
    if not movable:
        return None
    # Operands of fewer dimensions, or with another first size, are broadcast over the batch.
    rank = max(len(op["shapes"][i]) for i in movable)
    leading = max(op["shapes"][i][0] for i in movable if len(op["shapes"][i]) == rank)
    if op["name"].startswith(("aten::cross_entropy_loss", "aten::nll_loss", "aten::index_select")):
        scaled = [i for i in movable if op["shapes"][i][0] == leading]
    else:
        scaled = [i for i in movable if len(op["shapes"][i]) == rank and op["shapes"][i][0] == leading]
    if leading % batch:
        return None
    shapes = [list(shape) if isinstance(shape, list) else shape for shape in op["shapes"]]
    for i in scaled:
        shapes[i][0] *= factor
    return shapes


# Timing


def time_call(call: Callable[[], object], repeats: int, clock: Callable[[], int] | None = None) -> float:
    """Nanoseconds per call over ``repeats`` calls in a row.

    With one thread its CPU time is taken, which leaves out what other processes on the machine take; else wall time.
    """
    if clock is None:
        clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start_ns = clock()
    for _ in range(repeats):
        call()
    return (clock() - start_ns) / repeats


def time_arms(arms: dict[str, Callable[[], object]], budget_s: float, most: int = 15) -> dict[str, list[float]]:
    """Times of every arm in ns, the arms taking turns, until the budget is spent (at least two rounds)."""
    begin_s = time.perf_counter()
    repeats: dict[str, int] = {}
    for name, call in arms.items():
        call()
        repeats[name] = max(1, min(20, int(SHORT_NS / max(time_call(call, 1), 1.0))))
    times: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for turn in range(most):
        if turn >= 2 and time.perf_counter() - begin_s > budget_s:
            break
        shift = turn % len(order)
        for name in order[shift:] + order[:shift]:
            times[name].append(time_call(arms[name], repeats[name]))
    return times


def middle(values: Sequence[float]) -> float:
    """Mean of the lower half: other load on the machine only ever adds time."""
    ordered = sorted(values)
    return statistics.fmean(ordered[: max(1, (len(ordered) + 1) // 2)])


# Operators


def make_call(overload: Any, arguments: tuple[list[Any], dict[str, Any]], lower: bool) -> Callable[[], object]:
    """A call that runs the operator and, where its result can be differentiated, its backward."""
    positional, keywords = arguments
    leaves = [t for t in _flat([*positional, *keywords.values()]) if isinstance(t, torch.Tensor) and t.requires_grad]

    def forward() -> list[torch.Tensor]:
        context = (
            torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False) if lower else contextlib.nullcontext()
        )
        with context:
            out = overload(*positional, **keywords)
        return [t for t in _flat([out]) if isinstance(t, torch.Tensor) and t.requires_grad]

    outputs = forward()[:1]
    if not outputs:
        return forward
    seeds = [torch.ones_like(out) for out in outputs]

    def both() -> object:
        return torch.autograd.grad(forward()[:1], leaves, seeds, allow_unused=True)

    return both


def _flat(values: Any) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            flat += _flat(value)
        else:
            flat.append(value)
    return flat


def _lowered_inputs(
    op: dict[str, Any], arguments: tuple[list[Any], dict[str, Any]]
) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments with activations already in bfloat16, as after another lowered operator."""
    weights_from = WEIGHTS_FROM.get(op["name"], len(arguments[0]))
    if op["name"] == "aten::embedding":
        weights_from = 0

    def lower(value: Any, index: int) -> Any:
        if isinstance(value, list):
            return [lower(one, index) for one in value]
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32 and value.dim() and index < weights_from:
            return value.detach().bfloat16().requires_grad_(value.requires_grad)
        return value

    return [lower(value, i) for i, value in enumerate(arguments[0])], arguments[1]


def functional_name(name: str) -> str:
    """The operator that does not change its input, when it has one: ``aten::relu`` for ``aten::relu_``."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::linear": 0}
"""Where the activation stands among the inputs of a matrix product; the weight follows it."""


def needs_no_input_gradient(op: dict[str, Any], recorded: Sequence[dict[str, Any]]) -> bool:
    """True when the recorded backward made the gradient of this product's weight and none of its activation.

    So it is in a first layer, whose input is the data: the third product is as large as the others, and the training
    does not compute it. False where the record does not say it.
    """
    place = PRODUCTS.get(op["name"])
    shapes = op["shapes"][place : place + 2] if place is not None else []
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) != 2:
        return False
    rows, inner = math.prod(shapes[0][:-1]), shapes[0][-1]
    out = shapes[1][0] if op["name"] == "aten::linear" else shapes[1][1]
    made = {tuple(map(tuple, one["shapes"][:2])) for one in recorded if one["backward"] and one["name"] == "aten::mm"}

    def was_made(first: int, through: int, last: int) -> bool:
        # Either order of the two factors gives the same gradient, one of them transposed.
        return any(((a, through), (through, b)) in made for a, b in ((first, last), (last, first)))

    return was_made(inner, rows, out) and not was_made(rows, out, inner)


def _without_input_gradient(
    op: dict[str, Any], arguments: tuple[list[Any], dict[str, Any]]
) -> tuple[list[Any], dict[str, Any]]:
    arguments[0][PRODUCTS[op["name"]]].requires_grad_(False)
    return arguments


def replay_op(
    op: dict[str, Any],
    arms: Sequence[str],
    batch: int | None,
    gradients: bool,
    budget_s: float,
    recorded: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Times per arm of one operator with its backward, in ns per call; of a first layer without its input's gradient.

    ``recorded`` are all operators of the step, which say of a product whether it is in a first layer.
    """
    op = op | {"name": functional_name(op["name"])}
    overload = find_overload(op)
    differentiable = gradients and op["dtypes"] and not overload._schema.is_mutable
    base = make_inputs(op, overload, op["shapes"], differentiable)
    is_first_layer = bool(differentiable) and needs_no_input_gradient(op, recorded)
    if is_first_layer:
        base = _without_input_gradient(op, base)
    calls = {"base": make_call(overload, base, False)}
    if "bf16" in arms:
        flowing = _lowered_inputs(op, base)
        if op["name"] in LOWERED:
            calls["bf16_cast"] = make_call(overload, base, True)
        if any(a is not b for a, b in zip(_flat(base[0]), _flat(flowing[0]), strict=True)):
            calls["bf16_flow"] = make_call(overload, flowing, True)
    shapes = scale_batch(op, batch) if "double" in arms and batch else None
    if shapes is not None:
        doubled = make_inputs(op, overload, shapes, differentiable)
        calls["double"] = make_call(
            overload, _without_input_gradient(op, doubled) if is_first_layer else doubled, False
        )
    times = time_arms(calls, budget_s)
    return {name: round(middle(values)) for name, values in times.items()} | {
        "rounds": len(times["base"]),
        "spread_ratio": round(statistics.pstdev(times["base"]) / max(statistics.fmean(times["base"]), 1.0), 4),
    }


def size_bytes(op: dict[str, Any]) -> int:
    """Bytes of an operator's inputs as float32."""
    total = 0
    for shape in op["shapes"]:
        if isinstance(shape, list) and shape and isinstance(shape[0], list):
            total += sum(4 * math.prod(one) for one in shape)
        elif isinstance(shape, list) and shape:
            total += 4 * math.prod(shape)
    return total


def replay_ops(request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Every forward operator that can be replayed, largest first, with its times; and what could not be."""
    recorded = request["ops"]["ops"]
    forward = [op for op in recorded if not op["backward"]]
    gradients = any(op["backward"] for op in recorded)
    arms, batch = request["arms"], request.get("batch_size")
    total_ns = sum(op["cpu_ns"] for op in forward) or 1
    begin_s, replayed, skipped = time.perf_counter(), [], []
    allowed_s = max(0.5, deadline_s - begin_s)
    for index, op in enumerate(recorded):
        if op["backward"]:
            continue
        if op["name"] in NOT_REPLAYED:
            skipped.append({"index": index, "reason": "a view"})
            continue
        if size_bytes(op) * 8 > request["memory_bytes"]:
            skipped.append({"index": index, "reason": "too large for the memory allowed"})
            continue
        if time.perf_counter() > deadline_s:
            skipped.append({"index": index, "reason": "no time left"})
            continue
        # Half of the time by weight, half evenly: small operators decide how a small model scales.
        budget_s = allowed_s * (0.5 * op["cpu_ns"] / total_ns + 0.5 / len(forward))
        try:
            times = replay_op(op, arms, batch, gradients, budget_s, recorded)
        except (NotReplayable, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            skipped.append({"index": index, "reason": f"{type(error).__name__}: {error}"[:160]})
            continue
        replayed.append({"index": index, "name": op["name"], "count": op["count"], "recorded_ns": op["cpu_ns"]} | times)
    return {
        "ops": replayed,
        "skipped": skipped,
        "engine_ns": round(_engine_ns()) if gradients else 0,
        "first_touch_ns_per_byte": round(_first_touch_ns_per_byte(), 4) if "bf16" in arms else None,
        "recorded_forward_ns": sum(op["cpu_ns"] for op in forward),
        "recorded_backward_ns": sum(op["cpu_ns"] for op in recorded if op["backward"]),
    }


def _first_touch_ns_per_byte() -> float:
    """What a byte of memory that is fresh from the system costs at its first use, beyond writing it."""
    found = []
    for _ in range(3):
        # Larger than any block that the allocator keeps.
        fresh = torch.empty(FRESH_BYTES, dtype=torch.uint8)
        first, again = (time_call(fresh.zero_, 1) for _ in range(2))
        found.append(max(0.0, first - again) / FRESH_BYTES)
        del fresh
    return min(found)


def _engine_ns() -> float:
    """What one call of the autograd engine costs by itself: once a step in training, once an operator here."""
    leaf = torch.zeros(1, requires_grad=True)
    out = leaf.view(1)
    seed = torch.ones(1)
    call = lambda: torch.autograd.grad(out, leaf, seed, retain_graph=True)  # noqa: E731
    return middle([time_call(call, 50) for _ in range(9)])


def time_threads(request: dict[str, Any], deadline_s: float) -> dict[str, Any] | None:
    """A step's passes and its optimizer with the present number of threads and with as many as there are cores.

    Whole passes, with Python between the operators: threads go to sleep there and are woken late. The mean of all
    rounds counts, unlike elsewhere: an unlucky round is what too many threads cost.
    """
    present, cores = torch.get_num_threads(), request["cores"]
    pieces, whole = _pieces_for_threads(request)
    if not pieces:
        return None
    totals: dict[tuple[str, int], list[float]] = {}
    rounds = 0
    # A team of threads is built anew when its size changes, so whole rounds take turns, after a warm-up each.
    while rounds < THREAD_ROUNDS and (rounds < 2 or time.perf_counter() < deadline_s):
        rounds += 1
        for threads in (present, cores):
            torch.set_num_threads(threads)
            for name, call in pieces.items():
                call()
                totals.setdefault((name, threads), []).append(time_call(call, 2, time.perf_counter_ns))
    torch.set_num_threads(present)
    means = {key: round(statistics.fmean(values)) for key, values in totals.items()}
    found = {"present_threads": present, "cores": cores, "rounds": rounds, "whole_passes": whole}
    found |= {"present_ns": means["train", present], "cores_ns": means["train", cores]}
    if "optimizer" in pieces:
        found |= {
            "optimizer_present_ns": means["optimizer", present],
            "optimizer_cores_ns": means["optimizer", cores],
        }
    return found


def _pieces_for_threads(request: dict[str, Any]) -> tuple[dict[str, Callable[[], object]], bool]:
    """What a step calls, by name; and whether ``train`` is a whole forward and backward, else its largest operators."""
    forward = [op for op in request["ops"]["ops"] if not op["backward"] and _computes(op["name"])]
    fits = sum(op["count"] * size_bytes(op) for op in forward) * (PASS_COPIES // 2) <= request["memory_bytes"]
    pieces: dict[str, Callable[[], object]] = {}
    count = sum(op["count"] for op in forward)
    passed = Pass(order_calls(forward), request.get("batch_size") or 1) if fits and count <= MOST_CALLS else None
    whole = passed is not None and bool(passed.leaves) and passed.calls_count >= LEAST_PASS_RATIO * count
    if passed is not None and whole:
        pieces["train"] = passed.run
    else:
        calls: list[tuple[int, Callable[[], object]]] = []
        for op in sorted(forward, key=lambda o: -o["cpu_ns"])[:12]:
            if size_bytes(op) * 8 > request["memory_bytes"]:
                continue
            op = op | {"name": functional_name(op["name"])}
            with contextlib.suppress(*NOT_TIMED):
                overload = find_overload(op)
                arguments = make_inputs(op, overload, op["shapes"], not overload._schema.is_mutable)
                calls.append((round(op["count"]), make_call(overload, arguments, False)))
        if not calls:
            return {}, False
        pieces["train"] = lambda: [call() for count, call in calls for _ in range(count)]
    if request.get("optimizer"):
        with contextlib.suppress(*NOT_TIMED):
            pieces["optimizer"] = present_optimizer(request["optimizer"], request["memory_bytes"])
    return pieces, whole


def present_optimizer(facts: dict[str, Any], memory_bytes: int) -> Callable[[], object]:
    """A step of the recorded optimizer over parameters of the recorded sizes."""
    kind = getattr(torch.optim, facts["class"], None)
    if kind is None:
        raise NotReplayable(f"{facts['class']} is not one of torch's optimizers")
    parameters, share = make_parameters(facts["numels"], memory_bytes // (4 * 8))
    if share < 1.0:
        raise NotReplayable("the parameters are too large for the memory allowed")
    present = {key: facts[key] for key in ("foreach", "fused") if facts.get(key) is not None}
    step: Callable[[], object] = kind(parameters, lr=1e-6, **(facts.get("settings") or {}), **present).step
    return step


# Operators that a compiler would merge


def time_fusion(request: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """What the operators to be merged take for computing alone, and what a byte costs that goes through memory.

    A merged operator finds its operands in registers or in the nearest cache, and the call itself is gone. So each is
    run on a part of its recorded shapes that stays in the caches, on one thread, and on hardly anything, whose time is
    the call's. Copies between buffers that lie further and further away tell what reading and writing cost.
    """
    recorded = request["ops"]["ops"]
    present = torch.get_num_threads()
    half_s = 0.5 * (time.perf_counter() + deadline_s)
    whole_ns: dict[int, float] = {}
    for index in request["fusable"][:MOST_CHUNKS]:
        if size_bytes(recorded[index]) * 8 < request["memory_bytes"] and time.perf_counter() < half_s:
            with contextlib.suppress(*NOT_TIMED):
                whole_ns[index] = time_whole(recorded[index])
    formats = []
    for index in request.get("convolutions") or ():
        if size_bytes(recorded[index]) * 8 < request["memory_bytes"] and time.perf_counter() < half_s:
            with contextlib.suppress(*NOT_TIMED):
                formats.append({"index": index} | time_formats(recorded[index]))
    chunks: list[dict[str, Any]] = []
    torch.set_num_threads(1)
    try:
        copied = {"name": "aten::clone", "dtypes": ["float", ""], "inputs": ["", ""]}
        in_cache = time_chunk(copied | {"shapes": [[1 << 20], []]})
        for index, ns in whole_ns.items():
            # Threads that wait for cores which others hold make a call longer than one thread alone needs for it.
            alone_ns = time_whole(recorded[index]) if present > 1 else ns
            chunks.append({"index": index, "whole_ns": min(ns, ALONE_RATIO * alone_ns)})
            if time.perf_counter() < deadline_s:
                with contextlib.suppress(*NOT_TIMED):
                    chunks[-1] |= time_chunk(recorded[index])
    finally:
        torch.set_num_threads(present)
    return {
        "threads": present,
        "streams_ns_per_byte": [[size, round(ns, 5)] for size, ns in _time_streams(int(request["memory_bytes"]))],
        "copy_in_cache": in_cache,
        "chunks": chunks,
        "convolutions": formats,
        "left_out": len(request["fusable"]) - sum("chunk_ns" in one for one in chunks),
    }


def time_chunk(op: dict[str, Any]) -> dict[str, Any]:
    """Times of one call on a part that stays in the caches, and on hardly anything; with the elements of each."""
    op = op | {"name": functional_name(op["name"])}
    overload = find_overload(op)
    arms: dict[str, Callable[[], object]] = {}
    elements: dict[str, int] = {}
    for name, most in (("chunk", CHUNK_ELEMENTS), ("least", 1)):
        shapes = shrink_shapes(op, most)
        elements[name] = count_elements(op, shapes)
        positional, keywords = make_inputs(op, overload, shapes, False)
        arms[name] = functools.partial(overload, *positional, **keywords)
    if elements["chunk"] > MOST_CHUNK_ELEMENTS:
        raise NotReplayable(f"{op['name']} cannot be run on a part of its input")
    times = time_arms(arms, CHUNK_BUDGET_S, most=CHUNK_ROUNDS)
    return {"elements": count_elements(op, op["shapes"])} | {
        key: value
        for name in arms
        for key, value in ((f"{name}_elements", elements[name]), (f"{name}_ns", round(middle(times[name]), 1)))
    }


def time_whole(op: dict[str, Any]) -> float:
    """ns of one call in its recorded shapes, without gradients, with as many threads as the training has."""
    op = op | {"name": functional_name(op["name"])}
    overload = find_overload(op)
    positional, keywords = make_inputs(op, overload, op["shapes"], False)
    times = time_arms({"whole": functools.partial(overload, *positional, **keywords)}, CHUNK_BUDGET_S, CHUNK_ROUNDS)
    return round(middle(times["whole"]), 1)


def time_formats(op: dict[str, Any]) -> dict[str, Any]:
    """ns of one convolution of images with its tensors as they are by default, and with the channels last."""
    overload = find_overload(op)
    positional, keywords = make_inputs(op, overload, op["shapes"], False)
    channels_last = [
        one.contiguous(memory_format=torch.channels_last) if isinstance(one, torch.Tensor) and one.dim() == 4 else one
        for one in positional
    ]
    arms: dict[str, Callable[[], object]] = {
        "contiguous_ns": functools.partial(overload, *positional, **keywords),
        "channels_last_ns": functools.partial(overload, *channels_last, **keywords),
    }
    return {name: round(middle(times)) for name, times in time_arms(arms, 2 * CHUNK_BUDGET_S, CHUNK_ROUNDS).items()}


def shrink_shapes(op: dict[str, Any], most: int) -> list[Any]:
    """The shapes with leading dimensions cut, the same ones in all tensors, until no more elements are left than that.

    The last dimension stays where another can be cut: norms and softmax run over it, and weights have its size.
    """
    shapes = [list(shape) if isinstance(shape, list) else shape for shape in op["shapes"]]
    tensors = [i for i, dtype in enumerate(op["dtypes"]) if dtype in DTYPES and shapes[i]]
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


def count_elements(op: dict[str, Any], shapes: Sequence[Any]) -> int:
    """Elements of the operands together, broadcast where they can be; else those of the largest one."""
    found = [shape for shape, dtype in zip(shapes, op["dtypes"], strict=True) if dtype in DTYPES and shape]
    for shape, dtype in zip(shapes, op["dtypes"], strict=True):
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


# Whole passes


def order_calls(forward: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per call, as layers of a network make them: every operator once in turn while it has calls left."""
    ordered = sorted(forward, key=lambda op: op.get("first", 0))
    left = [round(op["count"]) for op in ordered]
    calls = []
    while any(left):
        for i, op in enumerate(ordered):
            if left[i]:
                left[i] -= 1
                calls.append(op)
    return calls


class Pass:
    """All forward calls of a step, each fed with what an earlier one made where the sizes fit, and one backward.

    Operators timed alone find their tensors in the caches. In a step they find what the steps' other operators left
    there, which is what decides how the time grows with the batch.
    """

    def __init__(self, calls: Sequence[dict[str, Any]], batch: int, factor: int = 1) -> None:
        self.leaves: list[torch.Tensor] = []
        self._fed: dict[tuple[Any, ...], torch.Tensor] = {}
        self._calls = [call for op in calls if (call := self._prepare(op, batch, factor)) is not None]

    @property
    def calls_count(self) -> int:
        return len(self._calls)

    def _prepare(
        self, op: dict[str, Any], batch: int, factor: int
    ) -> tuple[Any, list[Any], dict[str, Any], Any] | None:
        op = op | {"name": functional_name(op["name"])}
        try:
            overload = find_overload(op)
            bigger = scale_batch(op, batch)
            shapes = (scale_batch(op, batch, factor) if bigger is not None else None) or op["shapes"]
            positional, keywords = make_inputs(op, overload, shapes, not overload._schema.is_mutable)
            overload(*positional, **keywords)
        except (NotReplayable, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return None
        # What grows with the batch is data, which calls hand on; the rest are this call's own weights.
        data = [i for i, (old, new) in enumerate(zip(op["shapes"], bigger or (), strict=False)) if old != new]
        fed: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        for i, value in enumerate(positional):
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                continue
            if i in data:
                positional[i] = self._fed.setdefault((tuple(value.shape), value.dtype), value)
                fed.append((i, tuple(value.shape), value.dtype))
        self.leaves += [t for t in _flat([*positional, *keywords.values()]) if _differentiable(t)]
        return overload, positional, keywords, fed

    def run(self) -> None:
        """Forward and backward once."""
        made: dict[int, torch.Tensor] = {}
        unused: dict[int, torch.Tensor] = {}
        for overload, positional, keywords, fed in self._calls:
            arguments = list(positional)
            for i, shape, dtype in fed:
                source = made.get(math.prod(shape))
                if source is not None and source.dtype is dtype:
                    unused.pop(id(source), None)
                    arguments[i] = source.reshape(shape)
            out = overload(*arguments, **keywords)
            for one in _flat([out])[:1]:
                if _differentiable(one):
                    made[one.numel()] = one
                    unused[id(one)] = one
        ends = list(unused.values())
        if ends:
            torch.autograd.grad(ends, self.leaves, [torch.ones_like(one) for one in ends], allow_unused=True)


def _computes(name: str) -> bool:
    return name not in NOT_REPLAYED and not name.startswith("profiler::")


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def time_passes(request: dict[str, Any], deadline_s: float) -> dict[str, Any] | None:
    """Whole steps' forwards and backwards as they are and with twice the batch, taking turns; then with larger ones.

    None where that cannot be: the batch is unknown, nothing is differentiated, too many calls, too much memory.
    """
    recorded, batch = request["ops"]["ops"], request.get("batch_size")
    forward = [op for op in recorded if not op["backward"] and _computes(op["name"])]
    if not batch or not any(op["backward"] for op in recorded) or sum(op["count"] for op in forward) > MOST_CALLS:
        return None
    bytes_of_calls = sum(op["count"] * size_bytes(op) for op in forward)
    if bytes_of_calls * PASS_COPIES > request["memory_bytes"]:
        return None
    calls = order_calls(forward)
    factors = [one for one in LARGER_FACTORS if bytes_of_calls * (PASS_COPIES // 2) * one <= request["memory_bytes"]]
    # What a pass hands on from call to call may shrink until it is denormal, which slows operators down.
    torch.set_flush_denormal(True)
    try:
        found = _time_both(calls, batch, time.perf_counter() + BOTH_RATIO * (deadline_s - time.perf_counter()))
        return found and found | {"larger": _time_larger(calls, batch, factors, found["double_ns"], deadline_s)}
    finally:
        torch.set_flush_denormal(False)


def _time_both(calls: Sequence[Any], batch: int, deadline_s: float) -> dict[str, Any] | None:
    plain, doubled = Pass(calls, batch), Pass(calls, batch, 2)
    if plain.calls_count != doubled.calls_count or plain.calls_count < LEAST_PASS_RATIO * len(calls):
        return None

    arms: dict[str, Callable[[], object]] = {"base": plain.run, "double": doubled.run}
    begin_s = time.perf_counter()
    for arm in arms.values():
        arm()
    if 2.0 * (time.perf_counter() - begin_s) > deadline_s - time.perf_counter():
        return None
    times: dict[str, list[float]] = {name: [] for name in arms}
    while len(times["base"]) < MOST_PASSES and (len(times["base"]) < 2 or time.perf_counter() < deadline_s):
        for name, arm in arms.items():
            times[name].append(time_call(arm, 1))
    return {f"{name}_ns": round(middle(values)) for name, values in times.items()} | {
        "calls": plain.calls_count,
        "calls_left_out": len(calls) - plain.calls_count,
        "rounds": len(times["base"]),
    }


def _time_larger(
    calls: Sequence[Any], batch: int, factors: Sequence[int], double_ns: float, deadline_s: float
) -> list[list[int]]:
    """[factor, ns of a pass] for so many times the batch, as far as the time reaches: each is made, run, and timed."""
    found: list[list[int]] = []
    last_factor, last_ns = 2, double_ns
    for factor in factors:
        expected_s = last_ns * factor / last_factor * 1e-9
        if time.perf_counter() + LARGER_RUNS * expected_s > deadline_s:
            break
        larger = Pass(calls, batch, factor)
        larger.run()
        last_factor, last_ns = factor, min(time_call(larger.run, 1) for _ in range(LARGER_RUNS - 2))
        found.append([factor, round(last_ns)])
    return found


# Optimizer


def make_parameters(numels: Sequence[Sequence[int]], most_elements: int) -> tuple[list[torch.Tensor], float]:
    """Parameters with gradients in the recorded sizes, and their share of all elements (below 1 when too many)."""
    total = sum(numel * count for numel, count in numels)
    share = min(1.0, most_elements / max(total, 1))
    parameters: list[torch.Tensor] = []
    for numel, count in numels:
        kept = max(1, round(count * share))
        size = numel if share == 1.0 else min(numel, max(1, most_elements // 4))
        for _ in range(kept):
            parameter = torch.zeros(size, requires_grad=True)
            parameter.grad = torch.full((size,), 1e-3)
            parameters.append(parameter)
    made = sum(p.numel() for p in parameters)
    return parameters, made / max(total, 1)


def time_optimizer(facts: dict[str, Any], memory_bytes: int, budget_s: float) -> dict[str, Any]:
    """One step of the present optimizer, fused and with foreach; and clipping by a loop and by foreach."""
    kind = getattr(torch.optim, facts["class"], None)
    if kind is None:
        raise NotReplayable(f"{facts['class']} is not one of torch's optimizers")
    settings = dict(facts.get("settings") or {})
    if facts["class"] == "SGD":
        settings.setdefault("momentum", 0.9)
    parameters, share = make_parameters(facts["numels"], memory_bytes // (4 * 8))
    groups = max(1, min(int(facts.get("groups") or 1), len(parameters)))
    present = {key: facts[key] for key in ("foreach", "fused") if facts.get(key) is not None}
    variants: dict[str, dict[str, Any]] = {"present": present, "fused": {"fused": True}, "foreach": {"foreach": True}}
    arms: dict[str, Callable[[], object]] = {}
    for name, flags in variants.items():
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            split = [{"params": parameters[i::groups]} for i in range(groups)]
            optimizer = kind(split, lr=1e-6, **settings, **flags)
            optimizer.step()
            arms[name] = optimizer.step
    if "present" not in arms:
        raise NotReplayable(f"{facts['class']} cannot be built with what was recorded")

    def clip_by_hand() -> None:
        total = 0.0
        for p in parameters:
            if p.grad is not None:
                total += p.grad.detach().norm(2).item() ** 2
        scale = min(1.0, 1e9 / (total**0.5 + 1e-6))
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(scale)

    arms["clip_by_hand"] = clip_by_hand
    arms["clip_foreach"] = lambda: torch.nn.utils.clip_grad_norm_(parameters, 1e9, foreach=True)
    times = time_arms(arms, budget_s, most=25)
    return {f"{name}_ns": round(middle(values)) for name, values in times.items()} | {
        "share_ratio": round(share, 4),
        "tensors": len(parameters),
        "rounds": len(times["present"]),
        "assumed_settings": {} if facts.get("settings") else settings,
    }


# Buckets


def time_buckets(ddp: dict[str, Any], ranks: int, timeout_s: float) -> dict[str, Any]:
    """All-reduces of the present buckets and of default ones between this many processes on this host."""
    with tempfile.TemporaryDirectory() as folder:
        plan = {"sizes": ddp["bucket_sizes"], "ranks": ranks, "store": os.path.join(folder, "store")}
        environment = {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | {"OMP_NUM_THREADS": "1"}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        children = [
            subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--buckets", json.dumps(plan | {"rank": rank})],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            for rank in range(ranks)
        ]
        try:
            outputs = [child.communicate(timeout=timeout_s)[0] for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    if any(child.returncode for child in children):
        raise NotReplayable("the processes for the bucket measurement failed")
    result: dict[str, Any] = json.loads(outputs[0])
    return result


def run_buckets(plan: dict[str, Any]) -> dict[str, Any]:
    """One rank of the bucket measurement."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{plan['store']}", rank=plan["rank"], world_size=plan["ranks"])
    sizes = [max(1, size // 4) for size in plan["sizes"]]
    total = sum(sizes)
    cap = 25 * (1 << 20) // 4
    large = [min(cap, total - begin) for begin in range(0, total, cap)]

    def reduce_all(tensors: list[torch.Tensor]) -> None:
        for work in [dist.all_reduce(one, async_op=True) for one in tensors]:
            work.wait()

    arms = {name: [torch.zeros(n) for n in parts] for name, parts in (("present", sizes), ("large", large))}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(9):
        for name, tensors in arms.items():
            dist.barrier()
            begin_ns = time.perf_counter_ns()
            reduce_all(tensors)
            taken = time.perf_counter_ns() - begin_ns
            if turn:
                times[name].append(taken)
    dist.destroy_process_group()
    counts = {"buckets": len(sizes), "large_buckets": len(large), "ranks": int(plan["ranks"])}
    return counts | {f"{name}_ns": round(middle(values)) for name, values in times.items()}


# Program


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Everything that the request asks for; what fails says why and stops nothing else."""
    begin_s = time.perf_counter()
    torch.manual_seed(0)
    if request.get("threads"):
        torch.set_num_threads(int(request["threads"]))
    budget_s = float(request["budget_s"])
    result: dict[str, Any] = {"schema": "hotloop.probe-result/1", "torch": torch.__version__, "failed": {}}
    # Each part has its own share of the budget: one that starts late (imports, first calls) takes nothing from others.
    parts: dict[str, Callable[[], Any]] = {}
    if request.get("ops"):
        parts["replay"] = lambda: replay_ops(request, time.perf_counter() + 0.45 * budget_s)
        if "threads" in request["arms"]:
            parts["threads"] = lambda: time_threads(request, time.perf_counter() + 0.2 * budget_s)
        if request.get("fusable"):
            parts["fusion"] = lambda: time_fusion(request, time.perf_counter() + 0.15 * budget_s)
        parts["passes"] = lambda: time_passes(request, time.perf_counter() + 0.25 * budget_s)
    if request.get("optimizer"):
        parts["optimizer"] = lambda: time_optimizer(request["optimizer"], request["memory_bytes"], 0.15 * budget_s)
    if request.get("ddp"):
        parts["buckets"] = lambda: time_buckets(request["ddp"], request["ddp"]["ranks"], max(20.0, 2.0 * budget_s))
    for name, part in parts.items():
        try:
            result[name] = part()
        except Exception as error:  # one measurement that fails must not lose the others
            result["failed"][name] = f"{type(error).__name__}: {error}"[:300]
    result["elapsed_s"] = round(time.perf_counter() - begin_s, 3)
    return result


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--buckets":
        print(json.dumps(run_buckets(json.loads(arguments[1]))))
        return 0
    if len(arguments) != 2:
        print("usage: opportunities.py IN.json OUT.json", file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        request = json.load(file)
    result = measure(request)
    partial = arguments[1] + ".part"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(partial, arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
