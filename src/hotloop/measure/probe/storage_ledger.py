"""Every tensor storage of a training that runs on fake tensors: when it came, what it is for, when it went.

A storage counts from the operator that returned it until nothing refers to it; what an operator allocates and frees
within itself is seen only where WORKSPACES says how much it is.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Workspace = Callable[[Sequence[Any]], int]
"""Arguments of an operator -> bytes that it holds in addition to its outputs until it returns."""
Kept = Callable[[Sequence[Any]], tuple[int, int]]
"""Arguments of an operator -> which of its outputs is larger than a fake tensor says, and its bytes."""
TORCH, OWN = str(Path(torch.__file__).parent) + os.sep, str(Path(__file__).parent) + os.sep
AT_MOST_LARGEST = 12


class StoragePlace(NamedTuple):
    """Where in the model an operator is."""

    class_name: str
    """Class of the innermost module; '' outside of all."""
    position: str
    """In relation to the repeated blocks: before | first | middle | last | after."""
    line: str
    """FILE:LINE of the innermost frame outside of torch; '' where there is none."""


class Moment(NamedTuple):
    """When an operator ran."""

    step: int
    """0 while the model is built, then 1 and on."""
    phase: str
    """build | forward | loss | backward | optimizer"""
    position: str


@dataclass(slots=True, eq=False)
class Storage:
    """``category`` is settled by how long it lives: temporary until something says more."""

    size_bytes: int
    place: StoragePlace
    moment: Moment
    category: str = "temporaries"


class StorageEvent(NamedTuple):
    """A storage that came (bytes above 0) or went, or work space that an operator holds while it runs (None)."""

    storage: Storage | None
    change_bytes: int
    moment: Moment
    op: str


@dataclass
class Walk:
    """Where the forward is: the modules that it is inside of, and the repeated blocks."""

    blocks: Mapping[int, str] = field(default_factory=dict)
    """id of a module -> its position."""
    stack: list[tuple[str, str]] = field(default_factory=list)
    outside: str = "before"

    def enter(self, module: torch.nn.Module, _args: object) -> None:
        inherited = self.stack[-1][1] if self.stack else self.outside
        position = self.blocks.get(id(module), self.outside if inherited in ("before", "after") else inherited)
        self.stack.append((type(module).__name__, position))

    def leave(self, module: torch.nn.Module, _args: object, _output: object) -> None:
        self.stack.pop()
        if id(module) in self.blocks:
            self.outside = "after"

    @property
    def here(self) -> tuple[str, str]:
        if not self.stack:
            return "", self.outside
        class_name, position = self.stack[-1]
        return class_name, self.outside if position in ("before", "after") else position


class StorageLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Entered inside FakeTensorMode, it sees every operator below autograd; ``step`` and ``phase`` are set by others.

    ``round_bytes``: the allocator's granularity, to which every storage is rounded up.
    """

    def __init__(self, round_bytes: int, workspaces: Mapping[str, Workspace], kept: Mapping[str, Kept]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.round_bytes, self.workspaces, self.kept = round_bytes, workspaces, kept
        self.events: list[StorageEvent] = []
        self.live: dict[int, tuple[weakref.ref[Any], int, Storage]] = {}
        self.step, self.phase = 0, "build"
        self.walk = Walk()
        self._by_node: dict[int, StoragePlace] = {}
        self._last = StoragePlace("", "before", "")
        self._sum: StorageEvent | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> StorageLedger:
        hooks = torch.nn.modules.module
        self._hooks = [
            hooks.register_module_forward_pre_hook(self.walk.enter),
            hooks.register_module_forward_hook(self.walk.leave, always_call=True),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.prim.device.default:  # asked of every fake tensor, often
            return output
        self._write_sum()
        place = self._last = self._find_place()
        moment, op = Moment(self.step, self.phase, place.position), func.overloadpacket.__name__
        if op in self.kept:
            index, size_bytes = self.kept[op](args)
            self._hold(output[index], place, moment, op, size_bytes)
        count = len(self.events)
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                self._hold(leaf, place, moment, op)
        is_sum = func is torch.ops.aten.add.Tensor and self.phase == "backward" and not torch.is_grad_enabled()
        if is_sum and len(self.events) > count:
            self._sum = self.events.pop()
        if op in self.workspaces:
            size_bytes = self._round(self.workspaces[op](args))
            self.events += [StorageEvent(None, size_bytes, moment, op), StorageEvent(None, -size_bytes, moment, op)]
        return output

    def mark(self, tensors: Any, category: str) -> int:
        """Say what the storages of these tensors are for; their bytes, each storage counted once."""
        found: dict[int, Storage] = {}
        for tensor in tree_leaves(tensors):
            held = self.live.get(_identity(tensor)) if isinstance(tensor, torch.Tensor) else None
            if held is not None:
                held[2].category = category
                found[id(held[2])] = held[2]
        return sum(storage.size_bytes for storage in found.values())

    def mark_held(self, phases: Sequence[str], category: str) -> None:
        """Say so of all temporaries of these phases of this step that are still there."""
        for _, _, storage in self.live.values():
            if (
                storage.category == "temporaries"
                and storage.moment.phase in phases
                and storage.moment.step == self.step
            ):
                storage.category = category

    def take_in(self, tensors: Any, category: str) -> int:
        """Tensors that no operator made here, such as those of a batch."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self._hold(tensor, StoragePlace("", "before", ""), Moment(self.step, self.phase, "before"), "")
        return self.mark(tensors, category)

    def peaks(self, least_step: int = 0) -> list[dict[str, Any]]:
        """The memory held at the peak of every moment from this step on, as plain values for JSON."""
        self._write_sum()
        highest: dict[Moment, tuple[int, int]] = {}
        total = 0
        for index, event in enumerate(self.events):
            total += event.change_bytes
            if event.change_bytes > 0 and event.moment.step >= least_step:
                highest[event.moment] = max(highest.get(event.moment, (-1, 0)), (total, -index))
        wanted = {-index for _, index in highest.values()}
        found, held, workspace = list[dict[str, Any]](), set[Storage](), 0
        for index, event in enumerate(self.events):
            if event.storage is None:
                workspace += event.change_bytes
            else:
                held ^= {event.storage}  # it comes once and goes once
            if index in wanted:
                found.append(_describe(event, held, workspace))
        return found

    def _find_place(self) -> StoragePlace:
        if not torch.is_grad_enabled():
            node = torch._C._current_autograd_node()
            known = self._by_node.get(node._sequence_nr()) if node is not None else None
            if known is not None:
                return known
            if self.phase == "backward" and not self.walk.stack:
                return self._last
        place = StoragePlace(*self.walk.here, _find_line())
        if torch.is_grad_enabled():
            # The node of an operator is made just before the operator runs.
            self._by_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place

    def _hold(
        self, tensor: torch.Tensor, place: StoragePlace, moment: Moment, op: str, true_bytes: int | None = None
    ) -> None:
        try:
            untyped = tensor.untyped_storage()
        except NotImplementedError:  # a sparse tensor: its parts are tensors of their own
            return
        key, stated_bytes = untyped._cdata, untyped.nbytes()
        held = self.live.get(key)
        if held is not None and held[1] == stated_bytes:
            return
        if held is not None:  # it was resized
            self._release(key)
        size_bytes = self._round(stated_bytes if true_bytes is None else true_bytes)
        storage = Storage(size_bytes, place, moment, held[2].category if held is not None else "temporaries")
        self.live[key] = weakref.ref(untyped, lambda _: self._release(key)), stated_bytes, storage
        self.events.append(StorageEvent(storage, size_bytes, moment, op))

    def _release(self, key: int) -> None:
        held = self.live.pop(key, None)
        if held is not None:
            moment = Moment(self.step, self.phase, self._last.position)
            self.events.append(StorageEvent(held[2], -held[2].size_bytes, moment, ""))
            if self._sum is not None and self._sum.change_bytes == held[2].size_bytes:
                self._write_sum()

    def _write_sum(self) -> None:
        """Note the sum of two gradients after the gradient that ends with it.

        Autograd adds in place where nothing else holds one of them, but never where they are fake.
        """
        if self._sum is not None:
            self.events.append(self._sum)
            self._sum = None

    def _round(self, size_bytes: int) -> int:
        return math.ceil(size_bytes / self.round_bytes) * self.round_bytes


def _identity(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _describe(event: StorageEvent, held: set[Storage], workspace_bytes: int) -> dict[str, Any]:
    """``block_by_class`` is what the first of the repeated blocks keeps for backward."""
    by_category: Counter[str] = Counter({"workspace": workspace_bytes} if workspace_bytes else {})
    by_class: Counter[str] = Counter()
    block_by_class: Counter[str] = Counter()
    for storage in held:
        by_category[storage.category] += storage.size_bytes
        if storage.category in ("activations", "temporaries"):
            by_class[storage.place.class_name or "outside of modules"] += storage.size_bytes
        if storage.category == "activations" and storage.place.position == "first":
            block_by_class[storage.place.class_name] += storage.size_bytes
    return {
        "total_bytes": by_category.total(),
        **event.moment._asdict(),
        "op": event.op,
        "by_category": dict(by_category),
        "by_class": dict(by_class),
        "block_by_class": dict(block_by_class),
        "largest": [
            {
                "size_bytes": one.size_bytes,
                "category": one.category,
                "class": one.place.class_name,
                "line": os.path.relpath(one.place.line) if one.place.line else "",
            }
            for one in sorted(held, key=lambda storage: -storage.size_bytes)[:AT_MOST_LARGEST]
        ],
    }


def _find_line() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH, OWN, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
