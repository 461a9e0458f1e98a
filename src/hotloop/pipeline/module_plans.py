"""A function that builds a module -> its PlanReport: a child traces it, plan/module_trace.py tells what is held."""

from __future__ import annotations

from hotloop import __version__
from hotloop.attach.child import SOURCE
from hotloop.bench.program import run_ranks, split_target
from hotloop.core.planning import PlanReport, make_memory
from hotloop.core.workload import require_choice, require_count
from hotloop.plan.hardware_files import read_hardware
from hotloop.plan.module_trace import (
    OPTIMIZERS,
    PRECISIONS,
    describe_trace,
    find_peak,
    make_request,
    read_tensors,
    read_trace,
)

PROGRAM = SOURCE.parent / "hotloop" / "probe" / "module_memory.py"
TIMEOUT_S = 600.0


def make_module_plan(
    module: str, batch: str, *, gpu: str, precision: str, optimizer: str, ranks: int, extrapolate: bool, python: str
) -> PlanReport:
    """Memory of training ``module`` (FILE:FUNCTION) on ``batch``, on each of ``ranks`` devices (FSDP2 from 2 on).

    ``python`` is the interpreter that traces; it needs torch. Raises UsageError for what the user can mend.
    """
    require_choice("--precision", precision, PRECISIONS)
    require_choice("--optimizer", optimizer, OPTIMIZERS)
    require_count("--ranks", ranks)
    hardware = read_hardware(gpu)
    tensors = read_tensors(batch)
    request = make_request(
        split_target(module),
        split_target(batch) if tensors is None else tensors,
        device="cpu" if gpu == "cpu" else "cuda",
        precision=precision,
        optimizer=optimizer,
        ranks=ranks,
        extrapolate=extrapolate,
    )
    trace = read_trace(run_ranks(request, python, PROGRAM, TIMEOUT_S, ({},), what="the trace of the module"))
    peak, memory = find_peak(trace, hardware, precision, ranks)
    return PlanReport(
        tool_version=__version__,
        name=module,
        gpu=gpu,
        device=hardware.name,
        gpus=ranks,
        params=trace.params,
        micro_batches=1,
        data_ranks=ranks,
        tokens_per_step=None,
        fits=memory.fits,
        memory=make_memory(memory, peak.block_by_class),
        run={
            "precision": precision,
            "optimizer": optimizer,
            "sharding": "fsdp" if ranks > 1 else "none",
            "recompute": "as the module has it",
            "batch": batch,
        },
        basis={"memory.states": "traced", "memory.activations": "traced", "memory.context": "formula"},
        is_traced=True,
        notes=describe_trace(trace, peak, ranks),
    )
