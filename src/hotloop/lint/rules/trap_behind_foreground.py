"""trap-behind-foreground: a trap waits until the training that it should warn has ended."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("trap-behind-foreground", "a trap waits until the training that it should warn has ended", reads="sbatch")
def trap_behind_foreground(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `trap` in a script with `--signal=B:`, whose training runs in the foreground.

    ## Why it costs
    A shell runs a trap only when its foreground command has ended. The signal arrives in time, and nothing happens
    until the job is killed.

    ## How to tell
    The script traps the signal of `--signal=B:...`, and then starts srun, torchrun or Python without `&` and `wait`.

    ## What to do
    Start the training with `&`, keep its process id, pass the signal on in the trap (`kill -USR1 "$pid"`), and `wait`.

    ## When it is wrong
    If the trap only submits the job again after the training ended by itself.
    """
    signal = batch.signal
    if signal is None or not signal[2]:
        return
    waits = [one.line for one in batch.find(r"\bwait\b")]
    for trap in batch.find(rf"(^|[;\s])trap\s.*\b(SIG)?{signal[0]}\b")[:1]:
        if any(line >= trap.line for line in waits):
            continue  # what waits before it, does so in the function that the trap calls
        starts = batch.find(r"^\s*(time\s+)?(srun|torchrun|python3?|mpirun|bash)\s")
        foreground = [one for one in starts if not one.text.rstrip().endswith("&") and one.line > trap.line]
        if foreground:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=trap.line,
                message=f"this trap runs only after the command in line {foreground[0].line} has ended",
                advice="start that command with &, pass the signal on to it, and wait",
            )
