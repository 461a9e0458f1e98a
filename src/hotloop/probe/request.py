"""What a probe of opportunities is asked for, and the form of its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hotloop.probe.operators import Operator


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBuckets:
    """The gradient buckets of DistributedDataParallel, in bytes, how many ranks of one host exchange them, and what
    backward computes meanwhile, in ns."""

    bucket_sizes: Sequence[int]
    ranks: int
    backward_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What to measure. ``ops`` is empty, ``optimizer`` and ``ddp`` None, where that was not recorded."""

    budget_s: float
    memory_bytes: int
    threads: int = 0
    """As many as the training has; 0 leaves torch's number."""
    cores: int = 1
    batch_size: int | None = None
    arms: Sequence[str] = ()
    ops: Sequence[Operator] = ()
    optimizer: RecordedOptimizer | None = None
    ddp: RecordedBuckets | None = None

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ProbeRequest:
        """A request as JSON holds it."""
        optimizer, ddp = given.get("optimizer"), given.get("ddp")
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
            ddp=None if not ddp else RecordedBuckets(**ddp),
        )


class PartTimes(Protocol):
    """What a part measured."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in ns."""


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
    measure: Callable[[ProbeRequest, float], PartTimes | None]
    """(request, seconds that it may take) -> its times; None where the request holds nothing that can be measured."""
