"""launch-on-one-node: a job of several nodes starts its training on the first only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("launch-on-one-node", "a job of several nodes starts its training on the first only", reads="sbatch")
def launch_on_one_node(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a job of several nodes whose training is started without srun.

    ## Why it costs
    A batch script runs on the first node alone. Either the launcher waits for the others until it gives up, or the
    training runs on one node and the rest are paid for nothing.

    ## How to tell
    `--nodes` is at least 2, torchrun or Python starts a training, and no srun, mpirun, ssh, pdsh or Ray occurs.

    ## What to do
    `srun torchrun --nnodes $SLURM_NNODES --rdzv-backend c10d --rdzv-endpoint $HOST:29500 train.py`, with one task per
    node.

    ## When it is wrong
    If the Python program starts the other nodes itself.
    """
    starters = (
        r"\b(srun|mpirun|mpiexec|orterun|ssh|pdsh|clush|ray|sbatch|submitit|deepspeed|parallel|horovodrun|flux|prun)\b"
    )
    if batch.nodes < 2 or re.search(starters, "\n".join(one.text for one in batch.commands)):
        return
    for command in batch.find(
        r"^\s*(\w+=\S+\s+)*(torchrun|python3?\s+-m\s+torch\.distributed|python3?\s+\S*train\S*\.py)"
    )[:1]:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=command.line,
            message=f"starts on the first of {batch.nodes} nodes only: no srun brings it to the others",
            advice="start it with srun, one task per node",
        )
