"""A workload file's request, or a function that builds a module -> its PlanReport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotloop import __version__
from hotloop.ahead.plan.hardware_files import read_hardware
from hotloop.ahead.plan.module_trace import (
    OPTIMIZERS,
    PRECISIONS,
    ModuleTrace,
    describe_trace,
    find_peak,
    make_request,
    read_tensors,
)
from hotloop.ahead.plan.planner import build_plan
from hotloop.ahead.plan.search import build_search
from hotloop.ahead.plan.workload_file import PlanRequest
from hotloop.core.decode import decode
from hotloop.core.planning import PlanReport, make_memory
from hotloop.core.workload import require_choice
from hotloop.measure.bench.program import run_program, split_target

TIMEOUT_S = 600.0
USUAL_TOKENS = 10**9
"""Whose cost is stated where nobody says how many tokens the training has."""


def make_plan(
    request: PlanRequest,
    *,
    wants_remedies: bool = False,
    tokens: int | None = None,
    goal: str | None = None,
    gpu_counts: Sequence[int] | None = None,
    gpus: Sequence[str] = (),
    hours: float | None = None,
) -> PlanReport:
    """The plan, with time and cost of a training on ``tokens``.

    ``goal``: time, cost or memory, searched over ``gpu_counts`` of the request's device or of the devices named in
    ``gpus``, to end within ``hours``.
    """
    total = tokens or request.tokens or USUAL_TOKENS
    report = build_plan(request, __version__, total, wants_remedies=wants_remedies)
    if goal is None:
        return report
    return replace(report, search=build_search(request, goal, total, gpu_counts, gpus, hours))


def make_module_plan(module: str, batch: str, *, gpu: str, precision: str, optimizer: str, python: str) -> PlanReport:
    """Memory of training ``module`` (FILE:FUNCTION) on ``batch``, on one device.

    ``python`` is the interpreter that traces; it needs torch. Raises UsageError for what the user can mend.
    """
    require_choice("--precision", precision, PRECISIONS)
    require_choice("--optimizer", optimizer, OPTIMIZERS)
    hardware = read_hardware(gpu)
    tensors = read_tensors(batch)
    request = make_request(
        split_target(module),
        split_target(batch) if tensors is None else tensors,
        device="cpu" if gpu == "cpu" else "cuda",
        precision=precision,
        optimizer=optimizer,
    )
    answer = run_program("module_memory", request, python, TIMEOUT_S, what="the trace of the module")
    trace = decode(ModuleTrace, answer)
    peak, memory = find_peak(trace, hardware)
    return PlanReport(
        tool_version=__version__,
        name=module,
        gpu=gpu,
        device=hardware.name,
        gpus=1,
        params=trace.params,
        micro_batches=1,
        data_ranks=1,
        tokens_per_step=None,
        fits=memory.fits,
        memory=make_memory(memory, peak.block_by_class),
        run={
            "precision": precision,
            "optimizer": optimizer,
            "sharding": "none",
            "recompute": "as the module has it",
            "batch": batch,
        },
        basis={"memory.states": "traced", "memory.activations": "traced", "memory.context": "formula"},
        is_traced=True,
        notes=describe_trace(trace, peak),
    )
