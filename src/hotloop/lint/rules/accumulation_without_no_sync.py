"""accumulation-without-no-sync: DDP sends gradients for each micro-batch, although only the last needs it."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.accumulation import find_accumulation
from hotloop.lint.script import LintedScript


@lint_rule("accumulation-without-no-sync", "DDP exchanges gradients for each micro-batch of a step", reads="python")
def accumulation_without_no_sync(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient accumulation under DistributedDataParallel in a file that never uses `no_sync`.

    ## Why it costs
    Each backward sends all gradients, although only their sum is needed: N times the traffic for one step.

    ## How to tell
    The file wraps a model in DistributedDataParallel, a loop accumulates over micro-batches, and neither `no_sync` nor
    `require_backward_grad_sync` occurs. The time depends on the network, so this is never above `low`.

    ## What to do
    `with model.no_sync():` around all micro-batches but the last. The technique `no-sync-accumulation` does it from
    outside; the rule `sync-every-microstep` of `hotloop run` measures the cost.

    ## When it is wrong
    If N is 1 in practice.
    """
    if not script.calls_of(".DistributedDataParallel", "DistributedDataParallel"):
        return
    if any(word in script.text for word in ("no_sync", "require_backward_grad_sync", "accelerate", "deepspeed")):
        return
    for training in script.training:
        count = find_accumulation(script, training)
        if count is not None:
            yield LintFinding(
                severity=Severity.LOW,
                line=training.backwards[0].lineno,
                message=f"DDP sends all gradients in each of {script.source(count)} micro-batches; once is enough",
                advice="use model.no_sync() for all micro-batches but the last",
            )
