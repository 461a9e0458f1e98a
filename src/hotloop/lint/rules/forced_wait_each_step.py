"""forced-wait-each-step: the loop empties CUDA's cache or waits for the device in every step."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

COSTS = {
    "torch.cuda.empty_cache": "gives cached memory back, which waits for the device and makes the next step ask again",
    "torch.cuda.synchronize": "waits until the device has done everything",
    "gc.collect": "looks at every Python object",
}


@lint_rule(
    "forced-wait-each-step",
    "the loop empties the cache, collects garbage or synchronises in every step",
    reads="python",
)
def forced_wait_each_step(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `torch.cuda.empty_cache()`, `torch.cuda.synchronize()` and `gc.collect()` in the body of a training loop,
    outside of any test.

    ## Why it costs
    Each stops the host until the device is idle, or until all objects were looked at. After `empty_cache` the
    allocator has to ask the driver for the same memory again.

    ## How to tell
    The call runs in each iteration. Its time is not known before it is measured, so this is never above `low`.

    ## What to do
    Remove it, or do it once per epoch. A wait is needed only around a time that is measured.

    ## When it is wrong
    If steps have very different sizes and memory fragments; then try `expandable_segments:True` first.
    """
    for training in script.training:
        for call, name in script.calls:
            if name in COSTS and script.runs_each_time(call, training.container):
                yield LintFinding(
                    severity=Severity.LOW,
                    line=call.lineno,
                    message=f"{name}() in every step {COSTS[name]}",
                    advice="remove it, or call it once per epoch",
                )
