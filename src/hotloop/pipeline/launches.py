"""A command -> one recorded launch of it, and the training that was seen in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hotloop.analyze.measurement import measure_ranks
from hotloop.analyze.trainings import Training, analyze_run, find_lead
from hotloop.attach.launching import launch_recorded
from hotloop.core.benchmarks import ScalingRun
from hotloop.core.errors import HotloopError, RecordingError
from hotloop.trace.recording import find_run, read_run


def launch_ranks(
    words: Sequence[str],
    ranks_count: int,
    name: str,
    *,
    variables: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    unsynced: bool = False,
) -> ScalingRun:
    """Launch and measure. Raises HotloopError when the command fails or trains nothing."""
    folder, end = launch_recorded(words, name, variables, {"deep": False, "unsynced": unsynced}, cwd)
    if end.shell_code:
        raise HotloopError(f"the training with {ranks_count} ranks exited with {end.shell_code}; see its output above")
    training, _ = read_training(str(folder))
    return measure_ranks(training, ranks_count, is_synced=not unsynced)


def read_training(run: str) -> tuple[Training, str | None]:
    """The largest training of a recorded run, and its interpreter where that can be run. Raises RecordingError."""
    recording = read_run(find_run(run, Path.cwd()))
    trainings = analyze_run(recording.processes)
    if not trainings:
        raise RecordingError(f"{run} contains no training step; see `hotloop report`")
    lead = find_lead(recording.processes, trainings[0])
    python = None if lead is None else lead.process.get("executable")
    return trainings[0], python if isinstance(python, str) and os.access(python, os.X_OK) else None
