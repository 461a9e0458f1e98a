"""sampler-without-set-epoch: a DistributedSampler draws the same order in every epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.script import LintedScript, LoopStep, constant, keyword

NOT_TRAINING = re.compile(r"(?i)val|test|eval|dev|infer|predict")
OTHERS_DO_IT = ("lightning", "accelerate", "ignite", "horovod", "composer", "RepeatAugSampler")


@lint_rule("sampler-without-set-epoch", "a DistributedSampler draws the same order in every epoch", reads="python")
def sampler_without_set_epoch(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a shuffling `DistributedSampler` in a training over several epochs, without any call of `set_epoch`.

    ## Why it costs
    The sampler seeds its permutation with its epoch. If nobody sets it, every epoch has the same order and the same
    samples on the same rank: batches never mix, and the model learns their order.

    ## How to tell
    The sampler, the loader that takes it and the loop over epochs are in one file, and `set_epoch` is not.

    ## What to do
    `sampler.set_epoch(epoch)` at the begin of each epoch. `hotloop lint --fix` writes it where the sampler and the
    epoch are plain names of the same function.

    ## When it is wrong
    If there is only one epoch, or another file calls `set_epoch` on the loader's sampler.
    """
    if "set_epoch" in script.text or any(name in script.text for name in OTHERS_DO_IT):
        return
    for name, values in script.assigned.items():
        samplers = [one for one in values if isinstance(one, ast.Call) and _is_sampler(script, one)]
        if not samplers or NOT_TRAINING.search(name.split(".")[-1]):
            continue
        for training in script.training:
            epochs = _find_epochs(script, training, name)
            if epochs is None:
                continue
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=samplers[0].lineno,
                message=f"{name} shuffles the same way in every epoch: set_epoch is never called",
                advice=f"call {name}.set_epoch(epoch) at the begin of each epoch",
                edits=_add_set_epoch(script, name, values, epochs),
            )
            break


def _is_sampler(script: LintedScript, call: ast.Call) -> bool:
    is_one = script.name(call.func).split(".")[-1] == "DistributedSampler"
    data = script.name(call.args[0]) if call.args else ""
    return is_one and constant(keyword(call, "shuffle")) is not False and not NOT_TRAINING.search(data)


def _find_epochs(script: LintedScript, training: LoopStep, sampler: str) -> ast.For | None:
    """The loop over epochs around a training loop whose loader takes this sampler."""
    source = script.loop_source(training.loop)
    if source is None:
        return None
    loaders = script.assigned.get(script.name(source), [])
    takes = any(
        isinstance(one, ast.Call)
        and isinstance(given := keyword(one, "sampler"), ast.expr)
        and _uses(script, given, sampler)
        for one in loaders
    )
    if not takes:
        return None
    around = script.loops_around(training.loop)
    if not around and isinstance(training.scope, ast.FunctionDef):
        around = [loop for call in script.callers(training.scope) for loop in script.loops_around(call)]
    return next((one for one in around if isinstance(one, ast.For) and _counts(script, one)), None)


def _uses(script: LintedScript, given: ast.expr, sampler: str) -> bool:
    return any(script.name(one) == sampler for one in ast.walk(given) if isinstance(one, (ast.Name, ast.Attribute)))


def _counts(script: LintedScript, loop: ast.For) -> bool:
    """Whether a loop counts epochs: over a range that is not known to be one."""
    value = script.unwrap(loop.iter)
    is_range = isinstance(value, ast.Call) and script.name(value.func).split(".")[-1] in ("range", "trange")
    single = isinstance(value, ast.Call) and len(value.args) == 1 and constant(value.args[0]) == 1
    return is_range and not single


def _add_set_epoch(script: LintedScript, name: str, values: list[ast.expr], epochs: ast.For) -> tuple[LintEdit, ...]:
    """A line at the begin of the epoch, where the names are bound there for certain."""
    sampler = values[0]
    if len(values) != 1 or "." in name or not isinstance(epochs.target, ast.Name) or epochs.target.id == "_":
        return ()
    statement = next(one for one in script.parents(sampler) if isinstance(one, ast.stmt))
    same = script.scope(sampler) is script.scope(epochs)
    around = next(iter(script.parents(statement)))
    if not same or around is not script.scope(sampler) or statement.lineno > epochs.lineno:
        return ()
    first = epochs.body[0]
    if first.lineno <= epochs.lineno:
        return ()
    indent = script.lines[first.lineno - 1][: first.col_offset]
    if indent.strip():
        return ()
    text = f"{indent}{name}.set_epoch({epochs.target.id})\n"
    line = first.lineno
    return (LintEdit(first_line=line, first_column=1, last_line=line, last_column=1, text=text),)
