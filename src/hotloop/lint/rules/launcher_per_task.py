"""launcher-per-task: srun starts a launcher for each task, and each launcher starts all processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule(
    "launcher-per-task", "srun starts a launcher for each task, and each launcher starts all processes", reads="sbatch"
)
def launcher_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `srun torchrun` (or `accelerate launch`) in a job with several tasks per node.

    ## Why it costs
    Each task starts a launcher, and each launcher starts one process per device: with 8 tasks 64 processes share 8
    devices, or the second launcher fails on a port that is taken.

    ## How to tell
    `--ntasks-per-node` is above 1, and srun's own command line does not set it to 1.

    ## What to do
    `#SBATCH --ntasks-per-node=1` with torchrun, or `srun python train.py` with one task per device.

    ## When it is wrong
    If the launcher is told to start a single process.
    """
    tasks = batch.count("ntasks-per-node") or 1
    for command in batch.find(
        r"(^|\s)srun\s[^;|&]*\b(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))\b"
    ):
        own = re.search(r"--ntasks-per-node|\s-n\s*[\d$]|--ntasks[= ]", command.text)
        single = re.search(r"nproc[-_]per[-_]node[= ]\"?1\b", command.text)
        if tasks > 1 and not own and not single:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=command.line,
                message=f"{tasks} tasks per node start {tasks} launchers, and each starts one process per device",
                advice="ask for --ntasks-per-node=1 with a launcher",
            )
