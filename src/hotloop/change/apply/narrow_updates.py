"""An optimizer and its bfloat16 weights -> the same optimizer, whose updates are computed and kept finer than bfloat16.

A bfloat16 has 8 significant bits: an update below a 512th of its weight is lost when it is added, and so is all that
Adam's second moment changes by in a step (a 1000th of it). Each step therefore runs on float32 copies, a few tensors at
a time; what is stored afterwards keeps the lower half of each weight's float32 alongside it, and may round the other
state up or down at random, which loses nothing on average.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

REST = "float32_rest"
"""Key of an optimizer's state: what a weight's float32 value has beyond its bfloat16, in units of its last bit."""
ROUNDINGS = "bfloat16_roundings"
"""Key of the first parameter group: how many steps were rounded at random, from which the random bits follow."""
CHUNK_ELEMENTS = 1 << 22
"""Elements that are float32 at the same time; a single tensor may have more."""
SEED = 20_260_101
"""The same on all ranks: replicas have to round alike."""
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "ASGD", "Rprop",
)  # fmt: skip
"""Optimizers of torch that update every element independently."""


def split_float32(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest bfloat16, and the rest as int16. Ties go away from zero, so that every rest fits."""
    bits = value.view(torch.int32)
    near = ((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
    near = torch.where(value.isnan(), value.to(torch.bfloat16), near)  # the sum may have left the range
    return near, (bits - (near.view(torch.int16).to(torch.int32) << 16)).to(torch.int16)


def join_float32(near: torch.Tensor, rest: torch.Tensor | None) -> torch.Tensor:
    """The float32 that ``split_float32`` was given, or the bfloat16 as it is."""
    if rest is None:
        return near.to(torch.float32)
    return ((near.view(torch.int16).to(torch.int32) << 16) + rest).view(torch.float32)


def round_at_random(value: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """The bfloat16 below or above each float32, the likelier the nearer it is; ``bits`` are int32 in 0..65535."""
    rounded = ((value.view(torch.int32) + bits) & -0x10000).view(torch.float32)
    return torch.where(value.isfinite(), rounded, value).to(torch.bfloat16)


class NarrowUpdates:
    """The hooks of one optimizer; ``remove()`` takes them away and returns the rests that it kept, by ``id``. The
    optimizer's state is float32 then, for float32 weights.

    ``rests`` has every bfloat16 weight of the optimizer; the optimizer's state keeps them, and so do its checkpoints.
    ``state_dtype`` is that in which the optimizer's own state is kept; bfloat16 state is rounded at random.
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: Sequence[Any],
        rests: Mapping[int, torch.Tensor],
        state_dtype: torch.dtype,
    ) -> None:
        self._optimizer = optimizer
        self._state_dtype = state_dtype
        self._step: Callable[..., Any] = inspect.unwrap(type(optimizer).step)  # its hooks belong to the entire step
        self._ids = {id(p) for p in parameters}
        # Not in the state before the first step: an optimizer that finds some does not begin its own.
        self._early = {key: rest for key, rest in rests.items() if key in self._ids}
        self._gradients: list[tuple[Any, torch.Tensor]] = []
        self._loading: Mapping[str, Any] | None = None
        self._generators: dict[torch.device, torch.Generator] = {}
        for p in parameters:
            kept = optimizer.state[p].pop(REST, None) if p in optimizer.state else None
            if kept is not None:  # loaded while the weight was float32: torch cast the integers, without loss
                self._early[id(p)] = kept.to(torch.int16)
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    def remove(self) -> dict[int, torch.Tensor]:
        for handle in self._handles:
            handle.remove()
        rests = dict(self._early)
        for p, state in self._optimizer.state.items():
            if id(p) in self._ids:
                if REST in state:
                    rests[id(p)] = state.pop(REST)
                state.update({key: self._widen(value, p) for key, value in state.items()})
        return rests

    @torch.no_grad()
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Update the bfloat16 weights, and hide their gradients from the step that follows."""
        given = _closure_of(args, kwargs)
        answer: Any = None
        if given is not None:
            with torch.enable_grad():
                loss = given()
            answer = ((optimizer, lambda: loss), {})
        count = int(optimizer.param_groups[0].get(ROUNDINGS, 0))
        for generator in self._generators.values():
            generator.manual_seed(SEED + count)
        groups = optimizer.param_groups
        for group in groups:
            for chunk in self._chunks(group["params"]):
                self._update(group, chunk, count)
        if self._state_dtype == torch.bfloat16:
            groups[0][ROUNDINGS] = count + 1
        for p, _ in self._gradients:
            p.grad = None
        return answer

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for p, gradient in self._gradients:
            p.grad = gradient
        self._gradients.clear()

    def _chunks(self, parameters: Sequence[Any]) -> Iterator[list[Any]]:
        chunk: list[Any] = []
        elements_count = 0
        for p in parameters:
            if id(p) not in self._ids or p.grad is None:
                continue
            if chunk and elements_count + p.numel() > CHUNK_ELEMENTS:
                yield chunk
                chunk, elements_count = [], 0
            chunk.append(p)
            elements_count += p.numel()
        if chunk:
            yield chunk

    def _update(self, group: dict[str, Any], chunk: Sequence[Any], count: int) -> None:
        """One step of these weights. float32 stand-ins take their place in the optimizer meanwhile."""  # words: ok
        optimizer, state = self._optimizer, self._optimizer.state
        parameters, groups = group["params"], optimizer.param_groups
        wide = []
        for p in chunk:
            known = state.pop(p, None)
            rest = self._early.pop(id(p), None)
            if known is not None:
                rest = known.pop(REST, rest)
            one = torch.nn.Parameter(join_float32(p.detach(), rest))
            one.grad = p.grad.to(torch.float32)
            self._gradients.append((p, p.grad))
            if known:
                state[one] = {key: self._widen(value, p) for key, value in known.items()}
            wide.append(one)
        group["params"], optimizer.param_groups = wide, [group]
        try:
            self._step(optimizer)
        finally:
            group["params"], optimizer.param_groups = parameters, groups
            for p, one in zip(chunk, wide, strict=True):
                self._store(p, one, count)

    def _widen(self, value: Any, p: Any) -> Any:
        return value.to(torch.float32) if _is_like(value, p) else value

    def _store(self, p: Any, one: Any, count: int) -> None:
        """The stand-in's value, as the weight and its state are kept."""  # words: ok
        bits = self._draw(p, count) if self._state_dtype == torch.bfloat16 else None
        found = self._optimizer.state.pop(one, {})
        near, rest = split_float32(one.detach())
        kept = {REST: rest}
        p.copy_(near)
        for index, (key, state) in enumerate(found.items(), start=1):
            if bits is not None and _is_like(state, p):
                # Shifted by as many elements, so that none is rounded by the same bits as its weight.
                shifted = bits.view(-1).roll(index).view(bits.shape)
                kept[key] = round_at_random(state.to(torch.float32), shifted)
            else:
                kept[key] = state
        self._optimizer.state[p] = kept

    def _draw(self, p: Any, count: int) -> torch.Tensor:
        """16 random bits for each element. 64 are drawn at once: drawing is what takes the time."""
        if p.device not in self._generators:
            self._generators[p.device] = torch.Generator(p.device).manual_seed(SEED + count)
        words = torch.empty(-(-p.numel() // 4), dtype=torch.int64, device=p.device)
        words.random_(-(2**63), None, generator=self._generators[p.device])
        return words.view(torch.int16)[: p.numel()].view(p.shape).to(torch.int32) & 0xFFFF

    def _before_load(self, optimizer: Any, state_dict: dict[str, Any]) -> None:
        self._loading = state_dict

    def _after_load(self, optimizer: Any) -> None:
        """torch casts loaded state to the weight's dtype: what is finer than that is taken from what was loaded."""
        loaded, self._loading = self._loading, None
        if loaded is None:
            return
        numbers = [number for group in loaded["param_groups"] for number in group["params"]]
        mine = [p for group in optimizer.param_groups for p in group["params"]]
        self._early.clear()
        for p, number in zip(mine, numbers, strict=True):
            found = loaded["state"].get(number)
            if id(p) not in self._ids or found is None:
                continue
            state = optimizer.state[p]
            for key, value in found.items():
                if key == REST:
                    state[key] = value.to(p.device, torch.int16)
                elif _is_like(value, p) and self._state_dtype != torch.bfloat16:
                    state[key] = value.to(p.device, torch.float32)


def why_not_narrow(optimizer: Any) -> str | None:
    """Why an optimizer's steps cannot be made a few tensors at a time."""
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in ELEMENTWISE:
        return f"{kind.__name__} may use several tensors at once; supported: {', '.join(sorted(ELEMENTWISE))}"
    for group in optimizer.param_groups:
        for key in ("capturable", "differentiable"):
            if group.get(key):
                return f"the script sets {key}=True"
    return None


def _closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return kwargs.get("closure") if len(args) < 2 else args[1]


def _is_like(value: Any, p: Any) -> bool:
    """Whether it is state of every element (a step count is not)."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0 and value.shape == p.shape
