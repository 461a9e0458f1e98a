"""workerless-loader: a training's DataLoader makes its batches in the training process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript, constant, has_unpacked, keyword

IN_MEMORY = re.compile(r"TensorDataset|Replay|Rollout")


@lint_rule("workerless-loader", "a training's DataLoader has no workers", reads="python")
def workerless_loader(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for the DataLoader of a training loop that has `num_workers=0`, which is also the default.

    ## Why it costs
    Batches are then made in the training process, between the steps, while the accelerator waits.

    ## How to tell
    A training loop goes through the loader, and neither a keyword nor an unpacked argument sets `num_workers`. What a
    batch costs is not known before it is measured, so this is never above `low`.

    ## What to do
    Set `num_workers`. `hotloop run` measures how long the loop waits for batches and how many workers would do;
    `hotloop bench loader` tries them.

    ## When it is wrong
    If the data is in memory already, or batches are so cheap that workers only add their own cost.
    """
    for training in script.training:
        source = script.loop_source(training.loop)
        if source is None:
            continue
        for call in (source, *script.assigned.get(script.name(source), [])):
            if not isinstance(call, ast.Call) or call not in script.loaders or has_unpacked(call):
                continue
            data = script.assigned.get(script.name(call.args[0]), []) if call.args else []
            in_memory = any(isinstance(one, ast.Call) and IN_MEMORY.search(script.name(one.func)) for one in data)
            workers = keyword(call, "num_workers")
            if in_memory or len(call.args) > 5 or (workers is not None and constant(workers) != 0):
                continue
            yield LintFinding(
                severity=Severity.LOW,
                line=call.lineno,
                message="this loader makes each batch in the training process: num_workers is 0",
                advice="set num_workers; hotloop run says what the wait for batches costs",
            )
