"""A workload file's request -> its PlanReport. What predicts time and cost is wired here."""

from __future__ import annotations

from hotloop import __version__
from hotloop.core.planning import PlanReport, ZeroReport, ZeroStage, make_memory, make_range
from hotloop.core.prediction import CostPrediction, StepPrediction
from hotloop.plan.memory import layer_parts, predict_memory, setting_values
from hotloop.plan.remedies import find_remedies
from hotloop.plan.workload_file import PlanRequest
from hotloop.plan.zero import zero_memory


def make_plan(request: PlanRequest, *, wants_remedies: bool = False) -> PlanReport:
    """The plan; with remedies where it does not fit, or fits by less than the error of the forecast."""
    workload, hardware = request.workload, request.hardware
    memory = predict_memory(workload, hardware)
    step: StepPrediction | None = None  # the seam: plan.time and plan.cost are called here
    cost: CostPrediction | None = None
    needs_remedies = wants_remedies or not memory.fits_surely
    basis = {"memory.states": "formula", "memory.activations": "formula", "memory.context": memory.basis}
    return PlanReport(
        tool_version=__version__,
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
        remedies=find_remedies(workload, hardware) if needs_remedies else (),
        run=setting_values(workload),
        basis=basis,
    )


def make_zero_report(params: float, ranks: int, precision: str, optimizer: str) -> ZeroReport:
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
        tool_version=__version__,
        params=round(params),
        ranks=ranks,
        precision=precision,
        optimizer=optimizer,
        stages=stages,
    )
