"""A model and a budget -> the same model, which measures its first forward and then keeps that share of activations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hotloop.apply.activation_plan import TOLERANCE_RATIO, Footprint, KeptStorage, RecomputePlan, UnitCall, plan_budget
from hotloop.apply.forward import wrap_forward
from hotloop.apply.recompute import watch_state

MIB = 2**20


class BudgetedRecomputation:
    """Recomputes as much of ``units`` as the budget asks for. The first forward with gradients is watched.

    In it, one unit of each shape runs as it is and shows what it keeps; further ones of the same shape are recomputed
    whole, so that the first step needs no more memory than that. ``done(plan, text)`` is called with the plan;
    ``refuse(why)`` when a unit changes state that a second forward would change again, and then all is as before.
    """

    def __init__(
        self,
        model: Any,
        units: Sequence[Any],
        budget_ratio: float,
        *,
        done: Callable[[RecomputePlan, str], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._model = model
        self._budget_ratio = budget_ratio
        self._done, self._refuse = done, refuse
        self._units = list({id(one): one for one in units}.values())
        self._undo: list[Callable[[], None]] = [wrap_forward(model, self._watch_first)]
        self._is_off = False
        self._plain_depth = 0
        self.inside = 0
        """How many of our own calls of checkpoint() are being made."""

    def undo(self) -> None:
        self._is_off = True
        while self._undo:
            self._undo.pop()()

    def checkpoint(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        self.inside += 1
        try:
            return checkpoint(functools.partial(self._call_plainly, call, **kwargs), *args, use_reentrant=False)
        finally:
            self.inside -= 1

    def _call_plainly(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Whatever the plan has become by the time that backward calls this again, it does what it did in forward."""
        self._plain_depth += 1
        try:
            return call(*args, **kwargs)
        finally:
            self._plain_depth -= 1

    def _watch_first(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import torch

        if self._is_off or not self._model.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return call(*args, **kwargs)
        watch = _Watch(self, self._model, self._units, (args, kwargs))
        try:
            with torch.autograd.graph.saved_tensors_hooks(watch.pack, _as_it_is):
                result = call(*args, **kwargs)
        finally:
            watch.end()
        self.undo()
        self._is_off = False
        if watch.changed is not None:
            self._refuse(watch.changed)
        elif not watch.footprint().calls or not watch.footprint().kept:
            self._refuse("the first forward kept no activations inside the blocks, so there is nothing to recompute")
        else:
            self._follow(plan_budget(watch.footprint(), self._budget_ratio), watch.modules)
        return result

    def _follow(self, plan: RecomputePlan, modules: Sequence[Any]) -> None:
        for index in sorted(plan.again):
            self._undo.append(wrap_forward(modules[index], functools.partial(self._run, modules[index])))
        outer = sum(any(modules[index] is one for one in self._units) for index in plan.again)
        parts = len(plan.again) - outer
        text = (
            f"{outer} of {len(self._units)} blocks{f' and {parts} parts of others' if parts else ''} are recomputed: "
            f"at most {plan.peak_ratio:.0%} of {plan.total_bytes / MIB:.1f} MiB of the model's activations are kept"
        )
        if plan.peak_ratio > self._budget_ratio + TOLERANCE_RATIO:
            text += (
                f"; a budget of {self._budget_ratio:g} cannot be reached, because each block is recomputed as a "
                "whole in backward"
            )
        self._done(plan, text)

    def _run(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import torch

        if self._is_off or self._plain_depth or not module.training or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return self.checkpoint(call, args, kwargs)


class _Watch:
    """One forward in which every unit, and every part of one, is seen."""

    def __init__(self, owner: BudgetedRecomputation, model: Any, units: Sequence[Any], given: Any) -> None:
        import torch

        self._owner = owner
        self.modules: list[Any] = []
        self.changed: str | None = None
        self._numbers: dict[int, int] = {}
        self._path: list[int] = []
        self._position = 0
        self._is_copied = False
        self._kept: list[KeptStorage] = []
        self._calls: list[UnitCall] = []
        self._seen: dict[Any, tuple[int, tuple[KeptStorage, ...], tuple[UnitCall, ...], list[int], list[int]]] = {}
        self._held: list[Any] = []  # so that no address is used twice while this lasts
        self._next_key = -1
        # Neither parameters nor the batch are activations: they are there in any case.
        self._not_ours = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
        self._not_ours |= {key for key, _ in self._storages(given)}
        self._undo: list[Callable[[], None]] = []
        for unit in units:
            for part in unit.modules():
                if id(part) not in self._numbers and not isinstance(part, torch.jit.ScriptModule):
                    self._numbers[id(part)] = len(self.modules)
                    self.modules.append(part)
                    self._undo.append(wrap_forward(part, functools.partial(self._enter, part)))

    def end(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._held.clear()

    def footprint(self) -> Footprint:
        return Footprint(kept=tuple(self._kept), calls=tuple(self._calls))

    def pack(self, tensor: Any) -> Any:
        if not self._is_copied:
            for key, size_bytes in self._storages(tensor, hold=False):
                if key not in self._not_ours:
                    self._kept.append(KeptStorage(key, size_bytes, tuple(self._path), self._position))
        return tensor

    def _enter(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        import torch

        if self._is_copied or not module.training or not torch.is_grad_enabled():
            return call(*args, **kwargs)
        number = self._numbers[id(module)]
        inputs = [entry for entry in self._storages((args, kwargs)) if entry[0] not in self._not_ours]
        if self._path:
            return self._go_inside(number, inputs, call, args, kwargs)
        shape = _shape_of(module, (args, kwargs))
        known = self._seen.get(shape)
        if known is not None and self.changed is None:
            return self._copy(number, module, known, inputs, call, args, kwargs)
        before = watch_state(module, args, kwargs)
        kept_count, calls_count = len(self._kept), len(self._calls)
        result = self._go_inside(number, inputs, call, args, kwargs)
        after = watch_state(module, args, kwargs)
        if self.changed is None and after != before:
            what = next((key for key in before if after.get(key) != before[key]), "an attribute")
            self.changed = (
                f"reverted: a forward of {type(module).__name__} changes {what}, and recomputation would repeat "
                "the change"
            )
        self._seen[shape] = (
            number,
            tuple(self._kept[kept_count:]),
            tuple(self._calls[calls_count:]),
            [key for key, _ in inputs],
            [key for key, _ in self._storages(result)],
        )
        return result

    def _go_inside(
        self, number: int, inputs: Sequence[tuple[int, int]], call: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        self._position += 1
        self._path.append(number)
        self._calls.append(UnitCall(tuple(self._path), self._position, tuple(inputs)))
        try:
            return call(*args, **kwargs)
        finally:
            self._path.pop()

    def _copy(
        self,
        number: int,
        module: Any,
        known: tuple[int, tuple[KeptStorage, ...], tuple[UnitCall, ...], list[int], list[int]],
        inputs: Sequence[tuple[int, int]],
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """A unit of a shape that was seen: recomputed whole in this first forward, and noted as the one before was."""
        like, kept, calls, like_inputs, like_outputs = known
        self._is_copied = True
        try:
            result = self._owner.checkpoint(call, args, kwargs)
        finally:
            self._is_copied = False
        keys = dict(zip(like_outputs, (key for key, _ in self._storages(result)), strict=False))
        keys |= dict(zip(like_inputs, (key for key, _ in inputs), strict=False))
        numbers = {
            self._numbers[id(one)]: self._numbers[id(mine)]
            for one, mine in zip(self.modules[like].modules(), module.modules(), strict=False)
            if id(one) in self._numbers and id(mine) in self._numbers
        }

        def key_of(key: int) -> int:
            if key not in keys:
                keys[key] = self._next_key
                self._next_key -= 1
            return keys[key]

        def path_of(path: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(numbers.get(part, number) for part in path)

        start, begun = self._position + 1, calls[0].position
        for one in kept:
            position = one.position - begun + start
            self._kept.append(KeptStorage(key_of(one.key), one.size_bytes, path_of(one.path), position))
        for seen in calls:
            entries = tuple((key_of(key), size_bytes) for key, size_bytes in seen.inputs)
            self._calls.append(UnitCall(path_of(seen.path), seen.position - begun + start, entries))
        self._position += max(one.position for one in calls) - begun + 1
        return result

    def _storages(self, value: Any, hold: bool = True) -> list[tuple[int, int]]:
        """(address, bytes) of the storages of the tensors in a nested value, each once."""
        import torch

        found: dict[int, int] = {}
        for tensor in _tensors(value):
            local = getattr(tensor, "_local_tensor", tensor)
            if isinstance(local, torch.Tensor) and local.layout == torch.strided and not local.is_meta:
                storage = local.untyped_storage()
                if storage.nbytes():
                    found[storage.data_ptr()] = storage.nbytes()
                    if hold:
                        self._held.append(storage)
        return list(found.items())


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [one for part in value.values() for one in _tensors(part)]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in _tensors(part)]
    if hasattr(value, "__dataclass_fields__"):
        return [one for name in value.__dataclass_fields__ for one in _tensors(getattr(value, name, None))]
    return []


def _shape_of(module: Any, given: Any) -> Any:
    """What two calls must have in common to keep the same."""
    sizes = tuple((tuple(one.shape), one.dtype, one.requires_grad) for one in module.parameters())
    parts = tuple((type(one), _plain_attributes(one)) for one in module.modules())
    inputs = tuple((tuple(one.shape), one.dtype, one.requires_grad, one.stride()) for one in _tensors(given))
    return (sizes, parts, inputs)


def _plain_attributes(module: Any) -> str:
    """A stride or a switch changes what is kept as much as a shape does."""
    plain = (bool, int, float, str, type(None))
    return repr(
        [
            (key, value)
            for key, value in sorted(vars(module).items())
            if isinstance(value, plain)
            or (isinstance(value, (tuple, list)) and all(isinstance(one, plain) for one in value))
        ]
    )


def _as_it_is(tensor: Any) -> Any:
    return tensor
