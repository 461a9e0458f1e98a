"""A command -> one recorded launch and its training; a recorded run and a plan -> what they say about a launch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.agent.attach.launching import launch_recorded
from hotloop.ahead.launch.request import MeasuredRun
from hotloop.ahead.plan.memory import predict_memory
from hotloop.ahead.plan.workload_file import read_workload_file
from hotloop.core.benchmarks import ScalingRun
from hotloop.core.errors import HotloopError, RecordingError, UsageError
from hotloop.evidence.analyze.measurement import measure_ranks
from hotloop.evidence.analyze.trainings import Training, analyze_run, find_lead
from hotloop.evidence.trace.recording import find_run, read_run

GIB = 1 << 30


def launch_ranks(words: Sequence[str], ranks_count: int, name: str) -> ScalingRun:
    """Launch and measure. Raises HotloopError when the command fails or trains nothing."""
    folder, end = launch_recorded(words, name, os.environ, {"deep": False})
    if end.shell_code:
        raise HotloopError(f"training with {ranks_count} ranks exited with {end.shell_code}; see its output above")
    training, _ = read_training(str(folder))
    return measure_ranks(training, ranks_count)


def read_training(run: str) -> tuple[Training, str | None]:
    """The largest training of a recorded run, and its interpreter where that can be run. Raises RecordingError."""
    recording = read_run(find_run(run, Path.cwd()))
    trainings = analyze_run(recording.processes)
    if not trainings:
        raise RecordingError(f"{run} contains no training step; see `hotloop report`")
    lead = find_lead(recording.processes, trainings[0])
    python = None if lead is None else lead.process.get("executable")
    return trainings[0], python if isinstance(python, str) and os.access(python, os.X_OK) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    nodes: int
    gpus_per_node: int
    gpu: str | None = None
    is_whole_node: bool = False


def measure_run(run: str) -> MeasuredRun:
    """Times of the run's largest training, each of the worst rank. Raises RecordingError."""
    training, _ = read_training(run)
    ranks = training.analysis.ranks
    saves = [
        took_ns
        for rank in ranks
        for columns in (rank.columns, rank.warmup_columns)
        for took_ns, count in zip(columns.get("checkpoint_ns", ()), columns.get("checkpoints", ()), strict=False)
        if count > 0 and took_ns > 0
    ]
    return MeasuredRun(
        save_s=max(saves) / 1e9 if saves else None,
        step_s=max(rank.step_mean_ns for rank in ranks) / 1e9,
    )


def shape_of_plan(path: str) -> NodeShape:
    """The nodes that a workload file plans.

    Raises UsageError where the training does not fit into its devices, or these do not fill nodes evenly.
    """
    request = read_workload_file(path)
    memory = predict_memory(request.workload, request.hardware)
    if not memory.fits:
        raise UsageError(
            f"{path} does not fit: {memory.peak_bytes / GIB:.1f} GiB of {memory.capacity_bytes / GIB:.1f} GiB per "
            "device;"
            f" `hotloop plan {path} --why-oom` ranks ways to save memory. If you have seen it fit, give --nodes and "
            "--gpus-per-node instead of --plan"
        )
    count, each = request.workload.gpus, request.hardware.gpus_per_node
    if count > each and count % each:
        raise UsageError(
            f"{path} plans {count} devices, which do not fill nodes of {each}: change hardware.count, or give --nodes "
            "and --gpus-per-node"
        )
    is_cpu = request.gpu == "cpu"
    per_node = min(count, each)
    return NodeShape(
        nodes=count // per_node,
        gpus_per_node=0 if is_cpu else per_node,
        gpu=None if is_cpu else request.gpu,
        is_whole_node=per_node == each,
    )
