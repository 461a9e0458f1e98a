"""useless-non-blocking: batches are copied with non_blocking=True from memory that is not pinned."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import FORS, LintedScript, constant, has_unpacked, keyword


@lint_rule(
    "useless-non-blocking", "batches are copied with non_blocking=True from memory that is not pinned", reads="python"
)
def useless_non_blocking(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop that copies batches with `non_blocking=True` while its DataLoader has no `pin_memory`.

    ## Why it costs
    From pageable memory CUDA copies through a buffer of its own, and the host waits: `non_blocking` changes nothing.

    ## How to tell
    The loop goes through a DataLoader of this file that neither sets `pin_memory` nor takes unpacked arguments.

    ## What to do
    Build the loader with `DataLoader(..., pin_memory=True)`.

    ## When it is wrong
    If the batches are pinned elsewhere, or training is on a CPU.
    """
    for loop in script.nodes:
        source = script.loop_source(loop) if isinstance(loop, FORS) else None
        if not isinstance(loop, FORS) or source is None:
            continue
        copies = [call for call, _ in script.calls if _asks(call) and script.within(call, loop)]
        loaders = [one for one in script.assigned.get(script.name(source), []) if isinstance(one, ast.Call)]
        pinned = [one for one in loaders if has_unpacked(one) or keyword(one, "pin_memory") is not None]
        if copies and loaders and not pinned and all(one in script.loaders for one in loaders):
            yield LintFinding(
                severity=Severity.LOW,
                line=copies[0].lineno,
                message="non_blocking=True has no effect: the loader does not pin its batches",
                advice="build the loader with pin_memory=True",
            )


def _asks(call: ast.Call) -> bool:
    return constant(keyword(call, "non_blocking")) is True
