"""undelivered-signal: the signal before the time limit does not reach what handles it."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch

PASSED_ON = frozenset({"TERM", "INT", "HUP", "QUIT"})
"""What torchrun passes on to the processes that it started (torch/distributed/elastic/multiprocessing)."""
_LAUNCHED = r"(^|\s)srun\s[^;|&]*\b(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))\b"


@lint_rule("undelivered-signal", "the signal before the time limit does not reach what handles it", reads="sbatch")
def undelivered_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares `--signal` with what could handle it: a `trap` of the batch script, or programs that srun started.

    ## Why it costs
    The last save never runs, and everything since the last checkpoint is computed again.

    ## How to tell
    With `B:` only the batch shell gets the signal; without it, only the programs that srun starts do. Medium where `B:`
    meets a script without `trap`, where `B:` is missing and the script starts its training without srun, or where srun
    starts torchrun or accelerate: they pass TERM, INT, HUP and QUIT on, and any other signal ends them.

    ## What to do
    `--signal=B:USR1@300` with a `trap` that passes it on to a background process or leaves a file that the training
    looks for, or `--signal=USR1@300` with an srun that starts one Python per rank.

    ## When it is wrong
    If a program that the script starts, such as submitit, sets the handler in another way.
    """
    signal = batch.signal
    option = batch.option("signal")
    if signal is None or option is None or batch.find(r"\bsubmitit\b|^\s*exec\s"):
        return
    traps, starts = batch.find(r"(^|[;&\s])trap\s"), batch.find(r"(^|[\s;&(\"'])(srun|mpirun)\b")
    sources = batch.find(r"^\s*(source|\.)\s")
    name, seconds, is_for_shell = signal
    problem = ""
    if is_for_shell and not traps and not sources:
        problem = f"only the batch shell gets {name} {seconds} s before the end, and it has no trap for it"
    elif not is_for_shell and not starts and batch.find(r"\b(python3?|torchrun|accelerate|deepspeed)\s"):
        problem = f"only programs under srun get {name} {seconds} s before the end, and nothing here runs under srun"
    elif not is_for_shell and name not in PASSED_ON and not batch.find(r"TORCHELASTIC_SIGNALS_TO_HANDLE"):
        launcher = batch.find(_LAUNCHED)
        if launcher:
            problem = (
                f"srun gives {name} to the launcher {seconds} s before the end, which ends by it and passes it on to "
                "no process that trains"
            )
    if problem:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=option.line,
            message=problem,
            advice="B: needs a trap in this script; without B: let srun start the training itself",
        )
