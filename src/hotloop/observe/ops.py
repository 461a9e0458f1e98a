"""A finished torch.profiler run -> the operators of one step with shapes, counts and times, ready for JSON.

Only operators that no other counted operator called are kept, with the time of everything below them: ``aten::linear``
counts, the ``aten::addmm`` inside it does not. Operators of the optimizer and of data loading are left out.
"""

from __future__ import annotations

import math
import re
from typing import Any

MOST_SIGNATURES = 200
_OPERATOR = re.compile(r"[a-z_0-9]+::[\w.]+$")
_FOREIGN = ("autograd::", "torch::", "c10d::", "gloo::", "nccl::", "prim::", "profiler::")
_EXCLUDED = ("Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.")
_BACKWARD = "autograd::engine::evaluate_function"
_OTHER, _COUNTED, _BACKWARD_RANGE, _EXCLUDED_RANGE = range(4)


def collect_ops(prof: Any, steps: int | None = None) -> dict[str, Any]:
    """Operators per step of a stopped ``torch.profiler.profile`` that recorded shapes.

    ``steps`` defaults to the number of ``ProfilerStep`` ranges, else of optimizer steps, else 1. ``count`` and
    ``cpu_ns`` are per step; ``total_ns`` and ``total_backward_ns`` also cover the signatures that were dropped because
    there were more than MOST_SIGNATURES. A value that is no tensor stands in ``inputs``, a tensor leaves "" there.
    """
    threads: dict[int, list[Any]] = {}
    for event in prof.profiler.kineto_results.events():
        threads.setdefault(event.start_thread_id(), []).append(event)
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    profiler_steps = optimizer_steps = 0
    for events in threads.values():
        events.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
        # Ends and kinds of the ranges around the event at hand, outermost first.
        ends: list[int] = []
        kinds: list[int] = []
        for event in events:
            start_ns, duration_ns, name = event.start_ns(), event.duration_ns(), event.name()
            while ends and ends[-1] <= start_ns:
                ends.pop()
                kinds.pop()
            kind = _OTHER
            if name.startswith("ProfilerStep"):
                profiler_steps += 1
            elif name.startswith(_EXCLUDED):
                kind = _EXCLUDED_RANGE
                optimizer_steps += name.startswith("Optimizer.step")
            elif name.startswith(_BACKWARD):
                kind = _BACKWARD_RANGE
            elif _COUNTED not in kinds and _EXCLUDED_RANGE not in kinds and _is_operator(name):
                kind = _COUNTED
                _add(found, event, name, duration_ns, _BACKWARD_RANGE in kinds)
            ends.append(start_ns + duration_ns)
            kinds.append(kind)
    count = max(1, steps or profiler_steps or optimizer_steps)
    ranked = sorted(found.values(), key=lambda op: -op["cpu_ns"])
    for op in ranked:
        op["count"] /= count
        op["cpu_ns"] = round(op["cpu_ns"] / count)
    return {
        "steps": count,
        "total_ns": sum(op["cpu_ns"] for op in ranked),
        "total_backward_ns": sum(op["cpu_ns"] for op in ranked if op["backward"]),
        "signatures": len(ranked),
        "ops": ranked[:MOST_SIGNATURES],
    }


def _is_operator(name: str) -> bool:
    return not name.startswith(_FOREIGN) and _OPERATOR.match(name) is not None


def _add(found: dict[tuple[str, ...], dict[str, Any]], event: Any, name: str, duration_ns: int, backward: bool) -> None:
    shapes, dtypes, inputs = event.shapes(), event.dtypes(), event.concrete_inputs()
    key = (name, repr(shapes), repr(dtypes), repr(inputs), str(backward))
    op = found.get(key)
    if op is None:
        op = found[key] = {
            "name": name,
            "shapes": [_plain(shape) for shape in shapes],
            "dtypes": [str(dtype) for dtype in dtypes],
            "inputs": [_plain(value) for value in inputs],
            "count": 0,
            "cpu_ns": 0,
            "backward": backward,
        }
    op["count"] += 1
    op["cpu_ns"] += duration_ns


def _plain(value: Any) -> Any:
    """A concrete input as JSON: "" for none, infinities as text."""
    if value is None:
        return ""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
