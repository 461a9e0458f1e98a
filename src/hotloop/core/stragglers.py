"""What stragglers cost a training of many workers: the operations of its steps, the report, and its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .decode import decode_contract, encode_contract
from .findings import Severity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

STRAGGLERS_SCHEMA = "hotloop.stragglers/1"

FORWARD, BACKWARD = "forward-compute", "backward-compute"
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
COLLECTIVES = (
    "params-all-gather",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
)
OPERATIONS = (FORWARD, BACKWARD, *TRANSFERS, *COLLECTIVES, "gc", "optimizer")
"""Every kind of operation. A worker is a pair of data-parallel rank and pipeline stage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationTable:
    """One row per operation of a worker in a step; all arrays have the same length. Times are seconds."""

    source: str
    step: Integers
    rank: Integers
    dp_rank: Integers
    stage: Integers
    kind: Integers
    """Place in OPERATIONS."""
    chunk: Integers
    """Model chunk within the stage; -1 where it has none."""
    model_chunk: Integers
    """Model chunk within the model, counted along the pipeline; -1 where it has none."""
    micro_batch: Integers
    start_s: Floats
    duration_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """How much longer a step takes than without stragglers, when those of one part alone are kept; 1.0 is no longer."""

    name: str
    slowdown_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlowdown:
    """The same of one worker: the lesser of its data-parallel rank's and its stage's."""

    rank: int
    dp_rank: int
    stage: int
    slowdown_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlowdown:
    """One step. ``replayed_ns`` lacks the gaps before operations, ``even_ns`` the stragglers too."""

    step: int
    recorded_ns: int
    replayed_ns: int
    even_ns: int
    slowdown_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerReport:
    """A replay of the recorded steps, as they were and with every operation of a kind as long as the others."""

    tool_version: str
    source: str
    step_count: int
    left_out_steps: tuple[int, ...]
    """Steps that were not replayed, because their sends and receives do not match."""
    worker_count: int
    operation_count: int
    recorded_ns: int
    """Mean step, from the first start to the last end."""
    replayed_ns: int
    even_ns: int
    slowdown_ratio: float
    """S of arXiv:2505.05713: replayed / even."""
    launch_slowdown_ratio: float
    """recorded / replayed: what the gaps before operations cost, and the error of the replay."""
    by_operation: tuple[Slowdown, ...]
    by_dp_rank: tuple[Slowdown, ...]
    by_stage: tuple[Slowdown, ...]
    by_worker: tuple[WorkerSlowdown, ...]
    slowest_workers: tuple[WorkerSlowdown, ...]
    """The slowest 3 % of the workers, at least one."""
    slowest_workers_ratio: float | None
    """M_W: the part of the slowdown that goes when these workers are as fast as the others; None without a slowdown."""
    last_stage_ratio: float | None
    """M_S: the same of the last stage; None with one stage too."""
    steps: tuple[StepSlowdown, ...]
    verdict: str
    severity: Severity


def stragglers_to_json(report: StragglerReport) -> dict[str, Any]:
    return encode_contract(STRAGGLERS_SCHEMA, report)


def stragglers_from_json(content: Mapping[str, Any]) -> StragglerReport:
    """The report that ``stragglers_to_json`` wrote; raises RecordingError where a value is of the wrong kind."""
    return decode_contract(StragglerReport, content)
