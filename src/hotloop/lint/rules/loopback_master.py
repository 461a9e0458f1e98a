"""loopback-master: several nodes look for the master on themselves."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("loopback-master", "several nodes look for the master on themselves", reads="sbatch")
def loopback_master(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `MASTER_ADDR=localhost` (or 127.0.0.1) in a job of several nodes.

    ## Why it costs
    Each node waits for the first rank at its own address; after the timeout the job fails.

    ## How to tell
    `--nodes` is at least 2, and the address is assigned or passed as it stands.

    ## What to do
    `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.

    ## When it is wrong
    If each node is meant to train by itself.
    """
    pattern = r"(MASTER_ADDR=|--master[-_]addr[= ]|--rdzv[-_]endpoint[= ])[\"']?(localhost|127\.0\.0\.1)"
    if batch.nodes < 2 or len(batch.find(r"MASTER_ADDR=")) > 1:
        return
    for command in batch.find(pattern):
        if command.text.startswith((" ", "\t")):
            continue  # part of a branch
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=command.line,
            message=f"each of {batch.nodes} nodes looks for the master on itself",
            advice='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        )
