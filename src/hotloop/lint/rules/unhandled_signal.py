"""unhandled-signal: the job warns its training by a signal, and nothing handles it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

HANDLE_THEMSELVES = re.compile(r"(?i)lightning|submitit|composer|determined|ignite|hotloop|ray\b")
SAVES = ("torch.save", ".save_pretrained", ".save_checkpoint", ".save_state", "torch.distributed.checkpoint.save")


@lint_rule("unhandled-signal", "the job warns its training by a signal that nothing handles", reads="python")
def unhandled_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training script that saves checkpoints and sets no signal handler, where a batch script or manifest of
    the same run starts it by its name and says that it will be warned.

    ## Why it costs
    A signal without a handler ends Python at once. The warning, which is there so that a last save can run, costs steps
    instead: everything since the last checkpoint, and the seconds that were left.

    ## How to tell
    `medium` where `--signal` without `B:` meets a script under srun; `low` where a pod runs on spot nodes or has a
    grace period above 30 s. Silent as soon as any Python file of the run mentions a signal, or the script uses a
    framework that sets handlers.

    ## What to do
    `signal.signal(signal.SIGUSR1, ...)` that sets a flag, and a save after the step that sees it, as hotloop's Trainer
    does. Or remove `--signal`.

    ## When it is wrong
    If a package that is not among these files sets the handler, or the script saves often enough.
    """
    start = script.start
    if start is None or HANDLE_THEMSELVES.search(script.text) or not script.calls_of(*SAVES):
        return
    loops = [one.loop.lineno for one in script.training]
    loops += [
        call.lineno for call, name in script.calls if "train" in name.split(".")[-1] and script.loops_around(call)
    ]
    if loops:
        yield LintFinding(
            severity=Severity.MEDIUM if start.is_asked else Severity.LOW,
            line=min(loops),
            message=f"{start.signal} ends this training {start.when} ({start.file}:{start.line}): no file handles it",
            advice=f"signal.signal(signal.SIG{start.signal.removeprefix('SIG')}, ...), then save and end",
        )
