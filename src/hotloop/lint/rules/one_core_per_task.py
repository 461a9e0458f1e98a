"""one-core-per-task: a job with GPUs gets one core for a task and all its workers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("one-core-per-task", "a job with GPUs gets one core for a task and all its workers", reads="sbatch")
def one_core_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a job that asks for GPUs and says nothing about cores.

    ## Why it costs
    Slurm's default is one core per task: the training and all its DataLoader workers share it.

    ## How to tell
    There are GPUs, and no `--cpus-per-task`, `--cpus-per-gpu`, `--exclusive` or `--mincpus`. A cluster may have other
    defaults, so this is never above `low`.

    ## What to do
    `#SBATCH --cpus-per-task=N`, with a core for each worker and one for the training.

    ## When it is wrong
    If the partition gives whole nodes, or a default number of cores per GPU.
    """
    gpus = [
        one for one in batch.options if one.name.startswith(("gpus", "gres")) and re.search(r"gpu|^\d|:\d", one.value)
    ]
    cores = (
        "cpus-per-task",
        "cpus-per-gpu",
        "exclusive",
        "mincpus",
        "cores-per-socket",
        "threads-per-core",
        "ntasks-per-core",
    )
    if gpus and not any(batch.option(name) for name in cores) and batch.commands:
        yield LintFinding(
            severity=Severity.LOW,
            line=gpus[0].line,
            message="asks for GPUs but not for cores: by default a task and all its workers share one",
            advice="add #SBATCH --cpus-per-task=N",
        )
