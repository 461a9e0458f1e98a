"""One step of a training on the CPU -> its operators with shapes and times (fact ``ops``), for the probe afterwards.

A dispatch mode sees every operator below autograd: silent, without a profiler's start-up (the first start of
torch.profiler stalls a training for a second and prints to stderr), and it changes no number. It runs for one step
only, never under torch.compile, with sharded tensors, with an accelerator, or under somebody else's profiler or mode.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.agent.replay.recorder import AFTER_FORWARD, AFTER_INPUT, BACKWARD, FORWARD, OTHER, Recorder
from hotloop.core.operators import PRODUCTS

from .facts import accelerator_type
from .guard import guarded
from .local import Session

FIRST_ROW = 12
LATEST_ROW = 400
MOST_OPERATORS = 20_000
MOST_SIGNATURES = 200

_VIEWS = frozenset(
    "aten::" + name
    for name in (
        "_local_scalar_dense", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach",
        "diagonal", "empty", "empty_like", "empty_strided", "expand", "lift_fresh", "new_empty",
        "new_empty_strided", "permute", "select", "slice", "split", "squeeze", "t", "transpose", "unbind",
        "unsafe_split", "unsqueeze", "view",
    )
)  # fmt: skip
"""Operators that move no data."""
_DTYPE_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "c10::BFloat16",
    torch.float16: "c10::Half",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}
_PHASES = frozenset((FORWARD, BACKWARD, OTHER, AFTER_INPUT, AFTER_FORWARD))


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts and times operators of forward and backward; everything else passes."""

    def __init__(self, recorder: Recorder, *, products_only: bool = False) -> None:
        """``products_only``: note what multiplies matrices, and no times: those of an accelerator's are the host's."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self.products_only = products_only
        self.found: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.operators = 0
        self.passed = 0
        """Operators that were seen and not noted."""
        self.graded_backward_count = 0
        self.active = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start_ns = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        if self.active and self.operators < MOST_OPERATORS:
            self._note(func, args, kwargs or {}, result, time.perf_counter_ns() - start_ns)
        return result

    @guarded
    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, duration_ns: int) -> None:
        stack = self._recorder.stack
        if stack[-1] not in _PHASES:
            return
        name = func._schema.name
        if self.products_only and name.startswith("aten::") and name not in PRODUCTS:
            self.passed += 1
            return
        self.operators += 1
        if name in _VIEWS:
            return
        backward = BACKWARD in stack
        described = [_describe(value) for value in _all_arguments(func._schema, args, kwargs)]
        # Backward runs without autograd; what it records there is a forward that runs again, or a double backward.
        graded_backward = backward and torch.is_grad_enabled()
        self.graded_backward_count += graded_backward
        key = (name, backward, graded_backward, repr(described))
        op = self.found.get(key)
        if op is None:
            op = self.found[key] = {
                "name": name,
                "shapes": [shape for shape, _, _ in described],
                "dtypes": [dtype for _, dtype, _ in described],
                "inputs": [value for _, _, value in described],
                "count": 0,
                "cpu_ns": 0,
                "backward": backward,
                "graded": graded_backward,
                "first": len(self.found),
            }
        op["count"] += 1
        op["cpu_ns"] += duration_ns


def _all_arguments(schema: Any, args: Any, kwargs: Any) -> list[Any]:
    values = list(args)
    for argument in schema.arguments[len(values) :]:
        values.append(kwargs.get(argument.name, argument.default_value))
    return values


def _describe(value: Any) -> tuple[Any, str, Any]:
    """(shape, type name, concrete value) as the probe reads them; "" where there is none."""
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [], "nested", ""  # its samples have shapes of their own
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        return list(value.shape), f"{value.layout}", ""  # no dense tensor of the shape costs what this one does
    if isinstance(value, torch.Tensor):
        return list(value.shape), _DTYPE_NAMES.get(value.dtype, str(value.dtype)), ""
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, torch.Tensor) for one in value):
            return [list(one.shape) for one in value], "TensorList", ""
        return [], "ScalarList", [_plain(one) for one in value]
    if value is None:
        return [], "", ""
    if isinstance(value, (bool, int, float)):
        return [], "Scalar", _plain(value)
    return [], "", str(value)[:60]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)[:60]


_PURPOSE = ("operators of one step, to forecast opportunities", "matrix products of one step, to count FLOPs")


class DeepWindow:
    """Called after every row on the training thread; runs the mode for one row, once, and unsubscribes."""

    def __init__(self) -> None:
        self._mode: OperatorMode | None = None
        self._done = False
        self._first_row = 0

    @guarded
    def __call__(self, session: Session, row: list[int]) -> None:
        rows = session.recorder.rows
        if self._done:
            pass
        elif self._mode is not None:
            self._end(session, rows)
        elif rows > LATEST_ROW or rows > FIRST_ROW + 200:
            self._done = True
        elif rows >= FIRST_ROW and rows >= FIRST_ROW + 3 * len(session.steps_per_optimizer()) - 3:
            self._begin(session, rows)
        if self._done:
            session.unsubscribe(self)

    def _begin(self, session: Session, rows: int) -> None:
        reason = _reason_not_to(session)
        if reason is not None:
            self._done = True
            session.record({"kind": "deep", "steps": 0, "rows": [rows, rows], "cost_ns": 0, "reason": reason})
            return
        mode = OperatorMode(session.recorder, products_only=accelerator_type() is not None)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self._mode, self._first_row = mode, rows
        session.recorder.in_deep_window = True

    def _end(self, session: Session, rows: int) -> None:
        mode = self._mode
        if mode is None or rows < self._first_row + max(1, len(session.steps_per_optimizer())):
            return
        self._mode, self._done = None, True
        mode.active = False
        # Somebody's mode that outlives the step is on top of ours: leave ours in place, switched off.
        if _top_mode() is mode:
            mode.__exit__(None, None, None)
        session.recorder.in_deep_window = False
        found = sorted(mode.found.values(), key=lambda op: -op["cpu_ns"])
        cost_ns = mode.operators * OPERATOR_COST_NS + mode.passed * PASSED_COST_NS
        session.deep_window_ns = cost_ns
        facts = {
            "steps": 1,
            "rows": [self._first_row, rows],
            "cost_ns": cost_ns,
            "threads": torch.get_num_threads(),
        }
        session.record(
            {
                "kind": "products" if mode.products_only else "ops",
                **facts,
                "total_ns": sum(op["cpu_ns"] for op in found),
                "total_backward_ns": sum(op["cpu_ns"] for op in found if op["backward"]),
                "signatures": len(found),
                "operators": mode.operators,
                "graded_backward": mode.graded_backward_count,
                "ops": found[:MOST_SIGNATURES],
                "more_products": [op for op in found[MOST_SIGNATURES:] if op["name"] in PRODUCTS],
            }
        )
        session.record({"kind": "deep", **facts, "reason": _PURPOSE[mode.products_only]})


OPERATOR_COST_NS = 20_000
"""Cost of the mode per operator, in ns (10 to 20 us measured on small operators)."""


PASSED_COST_NS = 5_000
"""The same for an operator that is only looked at (5.2 us measured, 15 rounds of 2,000)."""


def _top_mode() -> Any:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode()


def _reason_not_to(session: Session) -> str | None:
    """Why there is no deep window; None when there may be one."""
    if not session.options.get("deep", False):
        return "not asked for (--deep)"
    if session.recorder.foreign_profiler or torch._C._autograd._profiler_enabled():
        return "another profiler is running"
    if session.compile_used or _compiled():
        return "torch.compile is in use"
    # Not before: inside a compiled optimizer step Dynamo would look at the functions that this calls.
    if accelerator_type() is not None and not session.options.get("count_flops"):
        return "an accelerator is in use, whose time host timings do not show"
    if _top_mode() is not None:
        return "another dispatch mode is active"
    if "torch.distributed.fsdp" in sys.modules and session.sharded():
        return "parameters are sharded tensors"
    rank = session.local_rank()
    if rank not in (None, 0):
        return "another rank of this host records it"
    return None


def _compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames"))
