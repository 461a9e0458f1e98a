"""A training's operators and optimizer as JSON -> their times as they are and with changes, as JSON.

It judges nothing: times go out, forecasts are made from them elsewhere. Tensors are random, shapes are those recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.core.catalogue import Catalogue
from hotloop.measure.probe.operators import NotReplayable, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOptimizer:
    """The recorded optimizer. ``foreach`` and ``fused`` are None where the training left them to torch."""

    class_name: str
    numels: Sequence[Sequence[int]]
    """[elements of a parameter, number of such parameters], for every size."""
    groups: int = 1
    foreach: bool | None = None
    fused: bool | None = None
    settings: Mapping[str, Any]
    """Arguments of the constructor; empty where they were not recorded."""

    @property
    def present(self) -> dict[str, bool]:
        """The implementation that the training chose, as arguments of the constructor."""
        return {k: v for k, v in (("foreach", self.foreach), ("fused", self.fused)) if v is not None}

    @property
    def kind(self) -> Any:
        """The class of torch.optim. Raises NotReplayable when it is not one of torch's."""
        kind = getattr(torch.optim, self.class_name, None)
        if kind is None:
            raise NotReplayable(f"{self.class_name} is not one of torch's optimizers")
        return kind

    def make_parameters(self, memory_bytes: int) -> tuple[list[torch.Tensor], float]:
        """Parameters with gradients in the recorded sizes, and their share of all elements (below 1 when too many).

        They take an eighth of the memory: gradients, states and copies come on top.
        """
        most_elements = memory_bytes // (4 * 8)
        total = sum(numel * count for numel, count in self.numels)
        share = min(1.0, most_elements / max(total, 1))
        parameters: list[torch.Tensor] = []
        for numel, count in self.numels:
            size = numel if share == 1.0 else min(numel, max(1, most_elements // 4))
            for _ in range(max(1, round(count * share))):
                parameter = torch.zeros(size, requires_grad=True)
                parameter.grad = torch.full((size,), 1e-3)
                parameters.append(parameter)
        return parameters, sum(p.numel() for p in parameters) / max(total, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """The measurement to make. ``ops`` is empty, ``optimizer`` None, where that was not recorded."""

    budget_s: float
    memory_bytes: int
    threads: int = 0
    """As many as the training has; 0 leaves torch's number."""
    cores: int = 1
    batch_size: int | None = None
    arms: Sequence[str] = ()
    ops: Sequence[Operator] = ()
    optimizer: RecordedOptimizer | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ProbeRequest:
        """A request as JSON holds it."""
        optimizer = given.get("optimizer")
        return cls(
            budget_s=float(given["budget_s"]),
            memory_bytes=int(given["memory_bytes"]),
            threads=int(given.get("threads") or 0),
            cores=int(given.get("cores") or 1),
            batch_size=given.get("batch_size"),
            arms=tuple(given.get("arms") or ()),
            ops=tuple(Operator.from_dict(one) for one in (given.get("ops") or {}).get("ops") or ()),
            optimizer=None
            if not optimizer
            else RecordedOptimizer(
                class_name=optimizer["class"],
                numels=optimizer["numels"],
                groups=int(optimizer.get("groups") or 1),
                foreach=optimizer.get("foreach"),
                fused=optimizer.get("fused"),
                settings=optimizer.get("settings") or {},
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of measurement; ``id`` is its key in the result. Parts run one after the other, by ``order``.

    ``budget_ratio``: its own share of the budget; a part that starts late (imports, first calls) takes nothing from the
    others.
    """

    id: str
    order: int
    budget_ratio: float
    is_wanted: Callable[[ProbeRequest], bool]
    measure: Callable[[ProbeRequest, float], dict[str, Any] | None]
    """(request, seconds that it may take) -> plain values for JSON, times in ns; None where the request holds nothing
    that can be measured."""


PARTS = Catalogue(Part, "hotloop.measure.probe.parts")


def measure(given: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the request asks for; what fails says why and stops nothing else."""
    begin_s = time.perf_counter()
    torch.manual_seed(0)
    request = ProbeRequest.from_dict(given)
    if request.threads:
        torch.set_num_threads(request.threads)
    result: dict[str, Any] = {"schema": "hotloop.probe-result/1", "torch": torch.__version__, "failed": {}}
    for part in sorted(PARTS.values(), key=lambda part: part.order):
        if not part.is_wanted(request):
            continue
        try:
            result[part.id] = part.measure(request, part.budget_ratio * request.budget_s)
        except Exception as error:  # one measurement that fails must not lose the others
            result["failed"][part.id] = f"{type(error).__name__}: {error}"[:300]
    result["elapsed_s"] = round(time.perf_counter() - begin_s, 3)
    return result
