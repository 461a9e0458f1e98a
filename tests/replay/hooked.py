"""The hooks around plain calls, and what the replay makes of what they note: nothing of torch is patched."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader

from hotloop.agent.observe import hooks
from hotloop.agent.observe.agent import Agent
from hotloop.agent.observe.guard import GUARD
from hotloop.agent.observe.ring import Ring
from hotloop.agent.replay.engine import Engine
from hotloop.agent.replay.memory import EventMemory
from hotloop.core.events import COPY, TEXT
from hotloop.core.recording import FIELD


@contextmanager
def no_failures() -> Iterator[None]:
    """Nothing of the agent's own may fail."""
    failures, tell, seen = GUARD.failures, GUARD.tell, GUARD._seen
    GUARD.failures, GUARD._seen = {}, {}
    try:
        yield
        assert GUARD.failures == {}
    finally:
        GUARD.failures, GUARD.tell, GUARD._seen = failures, tell, seen


class Hooked:
    """A training whose calls go through the hooks one by one."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.ring = Ring("nobody", "token", time.perf_counter_ns())
        self.memory = EventMemory(os.dup(self.ring._descriptor))
        self.ring.drop()
        self.agent = agent = Agent({"stacks": False, **options}, self.ring)
        self.kept: list[list[int]] = []
        self.told: list[dict[str, Any]] = []
        self.engine = Engine(self.ring.anchor_ns, lambda row: self.kept.append(list(row)), self.told.append)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        self.begin = hooks.wrap_loader_iter(agent)(DataLoader.__iter__)
        self.advance = hooks.wrap_loader_next(agent)(lambda iterator: next(iterator))
        self.call = hooks.wrap_module_call(agent)(nn.Module.__dict__["__call__"])
        self.run_backward = hooks.wrap_run_backward(agent)(lambda outputs, *rest: outputs.backward())
        before = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
        hooks.hook_optimizers(agent)
        self.before_step = next(reversed(optimizers._global_optimizer_pre_hooks.values()))
        self.after_step = next(reversed(optimizers._global_optimizer_post_hooks.values()))
        optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks = before

    def optimize(self, optimizer: torch.optim.Optimizer | None = None, closure: Any = None) -> None:
        optimizer = optimizer or self.optimizer
        self.before_step(optimizer, (), {})
        optimizer.step(closure)
        self.after_step(optimizer, (), {})

    def take(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader."""
        iterator = self.begin(loader)
        while True:
            try:
                yield self.advance(iterator)
            except StopIteration:
                return

    def backward(self, x: Any) -> None:
        self.run_backward(self.call(self.model, x).sum())

    def train_on(self, x: Any) -> None:
        self.backward(x)
        self.optimize()

    @property
    def rows(self) -> list[list[int]]:
        """All rows but the first two, which no step has: until an optimizer was seen a backward closes a row."""
        for code, now_ns, arguments, more in self.memory.read():
            if code == TEXT:
                self.engine.now_ns = max(self.engine.now_ns, now_ns)
                self.engine.tell(more)
            elif code == COPY:
                self.engine.copied(more, *arguments[2:6])
            else:
                self.engine.feed(code, now_ns, *arguments)
        return self.kept[2:]

    def column(self, name: str) -> list[int]:
        return [row[FIELD[name]] for row in self.rows]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        assert self.rows is not None
        return [fact for fact in self.told if fact["kind"] == kind]
