"""What a workload file asks -> PlanReport: memory, and time and cost where their models are handed in."""

from __future__ import annotations

from collections.abc import Callable

from hotloop.core.planning import PlanReport, ZeroReport, ZeroStage, make_memory, make_range
from hotloop.core.prediction import CostPrediction, StepPrediction
from hotloop.core.workload import PlannedRun, field_names

from .memory import layer_parts, predict_memory
from .remedies import PredictStep, find_remedies
from .workload_file import PlanRequest
from .zero import zero_memory

PredictCost = Callable[[StepPrediction, PlanRequest], CostPrediction | None]


def build_plan(
    request: PlanRequest,
    version: str,
    *,
    predict_step: PredictStep | None = None,
    predict_cost: PredictCost | None = None,
    wants_remedies: bool = False,
) -> PlanReport:
    """The plan; with remedies where it does not fit, or fits by less than the error of the forecast."""
    workload, hardware = request.workload, request.hardware
    memory = predict_memory(workload, hardware)
    step = None if predict_step is None else predict_step(workload, hardware)
    cost = None if predict_cost is None or step is None else predict_cost(step, request)
    wants_remedies = wants_remedies or not memory.fits_surely
    basis = {"memory.states": "formula", "memory.activations": "formula", "memory.context": memory.basis}
    if step is not None:
        basis["step"] = step.basis
    if cost is not None:
        stall = None if cost.checkpoint is None else cost.checkpoint.stall_s
        given = request.failures.checkpoint_s is not None
        basis |= {"cost": "formula", "cost.stall": "assumed" if stall is None else "measured" if given else "formula"}
    return PlanReport(
        tool_version=version,
        name=request.name,
        gpu=request.gpu,
        device=hardware.name,
        gpus=workload.gpus,
        params=workload.model.params,
        micro_batches=workload.micro_batches,
        data_ranks=workload.data_ranks,
        tokens_per_step=workload.tokens_per_step,
        fits=memory.fits,
        memory=make_memory(memory, layer_parts(workload)),
        step=None if step is None else make_range(step),
        tokens_per_s_per_gpu=None if step is None else step.tokens_per_s_per_gpu,
        mfu_ratio=None if step is None else step.mfu_ratio,
        hfu_ratio=None if step is None else step.hfu_ratio,
        cost=cost,
        remedies=find_remedies(workload, hardware, predict_step) if wants_remedies else (),
        run={name: getattr(workload.run, name) for name in field_names(PlannedRun)},
        basis=basis,
    )


def build_zero_report(params: float, ranks: int, precision: str, optimizer: str, version: str) -> ZeroReport:
    """ZeRO's table. Raises UsageError."""
    rows = zero_memory(params, ranks, precision=precision, optimizer=optimizer)
    stages = tuple(
        ZeroStage(
            stage=row.stage,
            params_bytes=row.params_bytes,
            gradients_bytes=row.gradients_bytes,
            optimizer_bytes=row.optimizer_bytes,
            total_bytes=row.total_bytes,
        )
        for row in rows
    )
    return ZeroReport(
        tool_version=version, params=round(params), ranks=ranks, precision=precision, optimizer=optimizer, stages=stages
    )
