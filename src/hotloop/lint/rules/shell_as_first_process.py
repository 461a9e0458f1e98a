"""shell-as-first-process: a shell that does not pass signals on is process 1 of the container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild

COMPOUND = re.compile(r"&&|\|\||;|\|")
TRAINS = re.compile(r"(?i)train|torchrun|accelerate\s+launch|deepspeed|torch\.distributed|finetune|pretrain")


@lint_rule(
    "shell-as-first-process", "a shell that passes no signals on is the container's first process", reads="dockerfile"
)
def shell_as_first_process(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training that an image starts by several shell commands in `CMD` or `ENTRYPOINT`, without `exec`.

    ## Why it costs
    `docker stop` and Kubernetes send SIGTERM to process 1. A shell does not pass it on, and as process 1 it ignores it:
    the training's handler does not run, and after the grace period everything is killed without a checkpoint.

    ## How to tell
    The instruction is in shell form, or runs `sh -c`, with `&&`, `;` or `|`. Some shells replace themselves by their
    last command, so this is never above `low`.

    ## What to do
    Give the command as a JSON array, or put `exec` before the last command.

    ## When it is wrong
    If an init such as tini is the entry point, or nothing is to be saved at the end.
    """
    if build.final is None:
        return
    commands = [one for one in build.final.instructions if one.name in ("CMD", "ENTRYPOINT")]
    for one in commands[-1:]:
        words = one.exec_form
        text = one.arguments if words is None else words[2] if len(words) > 2 and words[1] in ("-c", "-lc") else ""
        if COMPOUND.search(text) and TRAINS.search(text) and not re.search(r"\b(exec|tini|dumb-init)\b", text):
            yield LintFinding(
                severity=Severity.LOW,
                line=one.first_line,
                message="the shell is process 1 and passes no SIGTERM on: a save at the end cannot run",
                advice="use a JSON array, or exec before the last command",
            )
