"""A strategy, or an ablation -> the environment of a trial's process, and what its recording measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.agent.attach.launching import prepare_environment
from hotloop.agent.attach.run_folder import write_manifest
from hotloop.agent.replay.collector import Collector
from hotloop.change.apply import TECHNIQUES
from hotloop.change.tune.quality import excuse_norms
from hotloop.change.tune.supervisor import CORES_FILE
from hotloop.change.tune.trials import read_left
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from hotloop.evidence.analyze.measurement import measure_training
from hotloop.evidence.analyze.trainings import analyze_run
from hotloop.evidence.telemetry.host_load import read_others_ratio
from hotloop.evidence.trace.recording import read_run


def measure_run(folder: Path) -> Measurement | None:
    """A trial's run folder -> what its largest training measured; None when none was seen."""
    processes = read_run(folder).processes
    training = next(iter(analyze_run(processes)), None)
    if training is None:
        return None
    left = read_left(folder, training.lead.rank.pid)
    others = partial(read_others_ratio, folder / CORES_FILE)
    return excuse_norms(measure_training(training, processes, left, others), TECHNIQUES)


@contextmanager
def attach_trial(
    command: Sequence[str],
    variables: Mapping[str, str],
    strategy: Strategy,
    run_folder: Path,
    trial: Mapping[str, Any],
    *,
    deep: bool,
    ablation: str = "",
) -> Iterator[dict[str, str]]:
    """The environment that makes a command train under a strategy, recorded into a folder; without the cost that
    ``ablation`` takes away."""
    write_manifest(run_folder, command, [])
    options = {"deep": deep, "trace": None, "nvtx": False, "trial": dict(trial), "ablation": ablation}
    collector = Collector(run_folder / "processes")
    collector.start()
    try:
        yield prepare_environment(variables, run_folder, options, collector, strategy or None)
    finally:
        collector.stop()
