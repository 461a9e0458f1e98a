"""The static checks of DataLoaders and their samplers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.formats.script import FORS, LOOPS, LintedScript, LoopStep, constant, has_unpacked, keyword


@lint_rule(
    "loader-per-step", "a DataLoader or its iterator is built again in every step", reads="python", each="training"
)
def loader_per_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `DataLoader(...)` or `next(iter(loader))` in the body of the training loop, outside of any test.

    ## Why it costs
    Each iterator starts its workers and fills its queue anew, for one batch. It also begins a new epoch each time:
    without shuffling, every step trains on the first batch.

    ## How to tell
    The call runs in each iteration of the loop that steps the optimizer, and no loop inside goes through the loader.

    ## What to do
    Build the loader once, and take batches with `for batch in loader`; for an endless stream, keep one iterator and
    make a new one when it ends.

    ## When it is wrong
    If the loop's body is a whole training of its own, such as one per client, through helper functions.
    """
    if not isinstance(training.container, LOOPS) or not training.steps:
        return
    for call, name in script.calls:
        is_loader = call in script.loaders
        drawn = _drawn_from(script, call) if name == "next" else None
        if not (is_loader or drawn) or not script.runs_each_time(call, training.container):
            continue
        if is_loader and _is_gone_through(script, call, training.container):
            continue
        what = f"next(iter({drawn})) starts the loader anew" if drawn else "a DataLoader is built"
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=call.lineno,
            message=f"{what} in every step, with its workers and its order, for one batch",
            advice="build the loader once and go through it: for batch in loader",
        )


def _drawn_from(script: LintedScript, call: ast.Call) -> str | None:
    """The loader of ``next(iter(loader))``, where the file builds it."""
    inner = call.args[0] if call.args else None
    if not isinstance(inner, ast.Call) or script.name(inner.func) != "iter" or len(inner.args) != 1:
        return None
    name = script.name(inner.args[0])
    return name if script.is_built_by(name, "DataLoader", ".DataLoader", anywhere=True) else None


def _is_gone_through(script: LintedScript, call: ast.Call, container: ast.AST) -> bool:
    """Whether a loop or comprehension inside the container takes its batches from the loader that is built here."""
    names = {name for name, values in script.assigned.items() if call in values}
    for node in ast.walk(container):
        source = node.iter if isinstance(node, (*FORS, ast.comprehension)) else None
        if source is not None and node is not container:
            inside = [one for one in ast.walk(source) if one is call or script.name(one) in names]
            if inside:
                return True
    passed = [one for one, _ in script.calls if script.within(one, container) and one is not call]
    return any(script.name(given) in names for one in passed for given in one.args)


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
    loaders = script.values(source)
    given = [keyword(one, "sampler") for one in loaders if isinstance(one, ast.Call)]
    names = [script.name(part) for one in given if one is not None for part in ast.walk(one)]
    if sampler not in names:
        return None
    around = script.loops_around(training.loop)
    if not around and isinstance(training.scope, ast.FunctionDef):
        around = [loop for call in script.callers(training.scope) for loop in script.loops_around(call)]
    return next((one for one in around if isinstance(one, ast.For) and _counts(script, one)), None)


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
    if not script.scope(sampler) is script.scope(epochs) is script.block(sampler) or sampler.lineno > epochs.lineno:
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
        copies = [
            call
            for call, _ in script.calls
            if constant(keyword(call, "non_blocking")) is True and script.within(call, loop)
        ]
        loaders = [one for one in script.values(source) if isinstance(one, ast.Call)]
        pinned = [one for one in loaders if has_unpacked(one) or keyword(one, "pin_memory") is not None]
        if copies and loaders and not pinned and all(one in script.loaders for one in loaders):
            yield LintFinding(
                severity=Severity.LOW,
                line=copies[0].lineno,
                message="non_blocking=True has no effect: the loader does not pin its batches",
                advice="build the loader with pin_memory=True",
            )


IN_MEMORY = re.compile(r"TensorDataset|Replay|Rollout")


@lint_rule("workerless-loader", "a training's DataLoader has no workers", reads="python", each="training")
def workerless_loader(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
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
    source = script.loop_source(training.loop)
    if source is None:
        return
    for call in (source, *script.values(source)):
        if not isinstance(call, ast.Call) or call not in script.loaders or has_unpacked(call):
            continue
        data = script.values(call.args[0]) if call.args else []
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
