"""late-signal: the signal before the time limit comes too late for a save."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.save_notice import find_notice_s
from hotloop.lint.batch import Batch


@lint_rule("late-signal", "the signal before the time limit comes too late for a save", reads="sbatch")
def late_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the seconds of `--signal=...@SECONDS` with how long a checkpoint takes, if `--save-seconds` says it.

    ## Why it costs
    The job is killed in the middle of the save: the time since the last checkpoint is lost, and perhaps the file.

    ## How to tell
    The warning comes fewer seconds before the limit than the save takes; Slurm may be up to 60 s late or early.

    ## What to do
    Ask for the signal two saves and 10 s before the end, as `hotloop launch` does.

    ## When it is wrong
    If the save that `--save-seconds` states is not the one that the handler makes.
    """
    signal = batch.signal
    option = batch.option("signal")
    if batch.save_s is not None and signal is not None and option is not None and signal[1] < batch.save_s:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=option.line,
            message=f"the signal comes {signal[1]} s before the end, and a save takes {batch.save_s:g} s",
            advice=f"--signal={signal[0]}@{find_notice_s(batch.save_s)}",
        )
