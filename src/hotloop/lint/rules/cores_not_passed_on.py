"""cores-not-passed-on: srun does not pass the job's cores on to its tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("cores-not-passed-on", "srun does not pass the job's cores on to its tasks", reads="sbatch")
def cores_not_passed_on(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `--cpus-per-task` in a job whose `srun` does not repeat it.

    ## Why it costs
    Since Slurm 22.05 srun no longer takes it from the job: each task may get one core, whatever the job has.

    ## How to tell
    An `#SBATCH --cpus-per-task` of at least 2, an srun without the option, and no `SRUN_CPUS_PER_TASK`. It depends on
    Slurm's version and the cluster's settings, so this is never above `low`.

    ## What to do
    `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK`, or `srun --cpus-per-task=$SLURM_CPUS_PER_TASK`.

    ## When it is wrong
    With an older Slurm, or where a site restores the old behaviour.
    """
    option = batch.option("cpus-per-task")
    if option is None or (batch.count("cpus-per-task") or 1) < 2 or "SRUN_CPUS_PER_TASK" in batch.text:
        return
    for command in batch.find(r"(^|[\s;&(])srun\s")[:1]:
        if not re.search(
            r"cpus-per-task|\s-c\s*\d|\s-c\s*\$|exclusive|cpu[-_]bind=none|SRUN_ARGS|\$\{?ARGS", command.text
        ):
            yield LintFinding(
                severity=Severity.LOW,
                line=command.line,
                message="srun may give each task one core: it does not take the job's --cpus-per-task",
                advice="export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
            )
