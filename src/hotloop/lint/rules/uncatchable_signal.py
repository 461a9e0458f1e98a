"""uncatchable-signal: a handler for a signal that no process can catch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.script import LintedScript

NEVER = ("signal.SIGKILL", "signal.SIGSTOP", "signal.Signals.SIGKILL", "signal.Signals.SIGSTOP")


@lint_rule("uncatchable-signal", "a handler is set for a signal that cannot be caught", reads="python")
def uncatchable_signal(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `signal.signal` with SIGKILL or SIGSTOP.

    ## Why it costs
    The kernel never delivers them: the call itself raises OSError, and the save that it promises never happens.

    ## How to tell
    The first argument names one of the two signals, and no `try` is around the call.

    ## What to do
    Handle SIGTERM, which schedulers send first, or the signal that you ask your scheduler for.

    ## When it is wrong
    It is not, on Linux and macOS.
    """
    for call in script.calls_of("signal.signal"):
        name = script.name(call.args[0]) if call.args else ""
        if name in NEVER and not any(isinstance(one, ast.Try) for one in script.parents(call)):
            yield LintFinding(
                severity=Severity.HIGH,
                line=call.lineno,
                message=f"{name} cannot be caught: this call raises OSError",
                advice="handle signal.SIGTERM, which is sent first",
            )
