"""The static checks of how gradients are accumulated, clipped and cleared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.formats.script import TORCH_OPTIMIZERS, LintedScript, LoopStep, constant, keyword


@lint_rule(
    "accumulation-without-no-sync",
    "DDP exchanges gradients for each micro-batch of a step",
    reads="python",
    each="training",
)
def accumulation_without_no_sync(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
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
    count = _find_accumulation(script, training)
    if count is not None:
        yield LintFinding(
            severity=Severity.LOW,
            line=training.backwards[0].lineno,
            message=f"DDP sends all gradients in each of {script.source(count)} micro-batches; once is enough",
            advice="use model.no_sync() for all micro-batches but the last",
        )


CLIPS = tuple(
    f"torch.nn.utils.{one}"
    for one in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grad.clip_grad_norm_")
)


@lint_rule(
    "clip-after-step", "gradients are clipped when the optimizer has used them already", reads="python", each="training"
)
def clip_after_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a clipping of gradients between the optimizer's step and the next backward.

    ## Why it costs
    It comes too late: the step used the gradients as they were, and they are cleared before the next one.

    ## How to tell
    Backward, step and clipping stand in the same block, in this order, and no other backward, step or clipping does.

    ## What to do
    Move the clipping between `backward()` and `step()`.

    ## When it is wrong
    If the gradients are kept for the next step on purpose.
    """
    clips = [one for one in script.calls_of(*CLIPS) if script.within(one, training.container)]
    if not (len(clips) == len(training.backwards) == len(training.steps) == 1):
        return
    order = [training.backwards[0], training.steps[0], clips[0]]
    blocks = {id(script.block(one)) for one in order}
    if len(blocks) == 1 and order[0].lineno < order[1].lineno < order[2].lineno:
        yield LintFinding(
            severity=Severity.HIGH,
            line=clips[0].lineno,
            message="clips gradients behind the step that should use them: it has no effect",
            advice="clip between backward() and step()",
        )


@lint_rule(
    "clipped-scaled-gradients",
    "gradients are clipped before the GradScaler's factor is taken out",
    reads="python",
    each="training",
)
def clipped_scaled_gradients(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop with a GradScaler that clips gradients without `scaler.unscale_(optimizer)` before it.

    ## Why it costs
    The gradients are some 65,536 times too large at that moment. Each step is clipped, and after the scaler divides by
    its factor almost nothing is left of it.

    ## How to tell
    `scaler.scale(loss).backward()`, a clipping of `torch.nn.utils` and `scaler.step(optimizer)` run in one loop, and
    `unscale_` occurs nowhere in the file.

    ## What to do
    Call `scaler.unscale_(optimizer)` before the clipping.

    ## When it is wrong
    If the scaler is disabled wherever gradients are clipped.
    """
    if "unscale_" in script.text or not script.calls_of(".GradScaler", "GradScaler"):
        return
    scaled = [one for one in training.backwards if "scale(" in script.source(one)]
    stepped = [one for one in training.steps if one.args]
    for call in script.calls_of(*CLIPS):
        if not script.within(call, training.container):
            continue
        before = [one for one in scaled if one.lineno < call.lineno and not script.exclude_each_other(one, call)]
        after = [one for one in stepped if one.lineno > call.lineno and not script.exclude_each_other(one, call)]
        if before and after:
            yield LintFinding(
                severity=Severity.HIGH,
                line=call.lineno,
                message="clips gradients that still hold the scaler's factor: almost nothing is left of a step",
                advice="call scaler.unscale_(optimizer) before it",
            )


CLEARED = re.compile(
    r"zero_grad|\.grad\s*=\s*None|grad(\.data)?\.(zero_|fill_)|clear_grad|set_to_none|grad\.detach_\(\)"
)


@lint_rule("missing-zero-grad", "gradients are never cleared between steps", reads="python", each="training")
def missing_zero_grad(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop that calls `backward()` and the `step()` of a `torch.optim` optimizer, while nothing in
    the loop clears the gradients.

    ## Why it costs
    `backward()` adds to `.grad`. Without `zero_grad()` each step uses the sum of all gradients since the start (or, if
    it stands in front of the loop, since the epoch began): the training still runs, and learns badly.

    ## How to tell
    The optimizer is built in the file from `torch.optim`, its step runs in the loop, and the file clears gradients
    nowhere, or only outside of that loop.

    ## What to do
    Call `optimizer.zero_grad()` once per step, before `backward()` or after `step()`. `hotloop lint --fix` writes it
    where the step runs each time.

    ## When it is wrong
    If another file clears the gradients, for example inside the model's own `forward`; a loop that runs only once.
    """
    clears = [at for at, line in enumerate(script.lines, 1) if CLEARED.search(line.partition("#")[0])]
    for step in training.steps:
        name = script.stepped(step)
        takes_closure = bool(step.keywords) or (step.args and script.name(step.func) == f"{name}.step")
        if takes_closure or not script.is_built_by(name, *TORCH_OPTIMIZERS):
            continue
        if clears and not _clears_only_before(script, training, clears):
            continue
        since = "of all steps so far" if not clears else "of all steps since the loop began"
        yield LintFinding(
            severity=Severity.HIGH,
            line=step.lineno,
            message=f"{name} steps with the sum of the gradients {since}: nothing in the loop clears them",
            advice=f"call {name}.zero_grad() once per step",
            edits=_add_clear(script, training, step, name) if not clears else (),
        )
        break


def _clears_only_before(script: LintedScript, training: LoopStep, clears: list[int]) -> bool:
    """Whether each line that clears is a zero_grad of the same function, in front of the loop that steps."""
    if training.container is not training.loop:
        return False
    calls = {call.lineno: call for call in script.calls_of(".zero_grad")}
    around = {id(one) for one in script.loops_around(training.loop)}
    return all(
        line in calls
        and line < training.loop.lineno
        and script.scope(calls[line]) is training.scope
        and {id(one) for one in script.loops_around(calls[line])} <= around
        for line in clears
    )


def _add_clear(script: LintedScript, training: LoopStep, step: ast.Call, name: str) -> tuple[LintEdit, ...]:
    """A line behind the step, where the step is a line of its own that runs each time."""
    line = script.lines[step.lineno - 1]
    statement = next(iter(script.parents(step)))
    alone = isinstance(statement, ast.Expr) and step.lineno == step.end_lineno and ";" not in line
    if not alone or len(training.steps) != 1 or not script.runs_each_time(step, training.container):
        return ()
    indent = line[: len(line) - len(line.lstrip())]
    at = step.lineno + 1
    return (LintEdit(first_line=at, first_column=1, last_line=at, last_column=1, text=f"{indent}{name}.zero_grad()\n"),)


@lint_rule(
    "uncleared-steps",
    "the optimizer steps for each micro-batch on gradients that are cleared every N",
    reads="python",
    each="training",
)
def uncleared_steps(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps each time, while `zero_grad()` stands under a test such as `i % N == 0`.

    ## Why it costs
    The gradients of old micro-batches are used again in each step until they are cleared, and every micro-batch pays
    for a step of the optimizer.

    ## How to tell
    In one loop the step runs each time, and each `zero_grad()` of the same optimizer runs only every N iterations.

    ## What to do
    Put the step under the same test as `zero_grad()`, before it.

    ## When it is wrong
    If gradients are meant to decay slowly over several steps, as a kind of momentum.
    """
    names = {script.stepped(step) for step in training.steps}
    clears = [
        call
        for call in script.calls_of(".zero_grad")
        if script.within(call, training.container) and _is_cleared(script, call, names)
    ]
    if (
        _accumulates_itself(script, training, names)
        or not clears
        or not all(_find_period(script, one, training) for one in clears)
    ):
        return
    if not all(script.runs_each_time(step, training.container) for step in training.steps):
        return
    yield LintFinding(
        severity=Severity.HIGH,
        line=training.steps[0].lineno,
        message=f"{names.pop()} steps for each micro-batch, but its gradients are cleared only every few of them",
        advice="step under the same test as zero_grad(), before it",
    )


DIVIDES_ITSELF = ("accelerate", "deepspeed", "lightning", "colossalai", "fairscale", "transformers.Trainer")


@lint_rule(
    "undivided-accumulation",
    "the mean losses of several micro-batches are added up, not averaged",
    reads="python",
    each="training",
)
def undivided_accumulation(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient accumulation over N micro-batches whose loss, a mean, is never divided by N.

    ## Why it costs
    The gradient is N times that of one large batch. The learning rate means something else for each N, weight decay
    and clipping are out of proportion, and with clipping every step is clipped.

    ## How to tell
    The optimizer steps every N micro-batches, the loss is a mean (a loss of `torch.nn` without `reduction`), and
    nothing in the file divides or multiplies by N.

    ## What to do
    Divide the loss by the number of micro-batches: `(loss / N).backward()`.

    ## When it is wrong
    If the learning rate was chosen for the sum on purpose, or another file divides.
    """
    if any(name in script.text for name in DIVIDES_ITSELF):
        return
    count = _find_accumulation(script, training)
    if count is None or constant(count) == 1:
        return
    if _is_scaled(script, count) or not all(_is_mean(script, one) for one in training.backwards):
        return
    shown = script.source(count)
    yield LintFinding(
        severity=Severity.MEDIUM,
        line=training.backwards[0].lineno,
        message=f"mean losses of {shown} micro-batches add up: the gradient is {shown} times their mean's",
        advice=f"divide the loss before backward: (loss / {shown}).backward()",
    )


def _is_scaled(script: LintedScript, count: ast.expr) -> bool:
    """Whether a name in ``count`` takes part in any product or quotient."""
    names = {one.id for one in ast.walk(count) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(count) if isinstance(one, ast.Attribute)}
    names -= {"self", "args", "cfg", "config", "opt", "hparams"}
    for node in script.nodes:
        is_scaling = isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.Mult))
        is_call = isinstance(node, ast.Call) and script.name(node.func).endswith((".div", ".div_", ".mul", ".mul_"))
        if is_scaling or is_call:
            inside = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            inside |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            if names & inside:
                return True
    return False


def _is_mean(script: LintedScript, backward: ast.Call) -> bool:
    """Whether what goes backward is, as far as the file shows, the mean loss of torch.nn."""
    value = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
    if isinstance(value, ast.Call) and script.name(value.func).endswith(".scale") and value.args:
        value = value.args[0]
    if isinstance(value, (ast.Name, ast.Attribute)):
        values = script.values(value)
        return bool(values) and all(_makes_mean(script, one) for one in values)
    return _makes_mean(script, value)


def _makes_mean(script: LintedScript, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = script.name(value.func)
    if name.startswith("torch.nn.functional.") and name.endswith(("cross_entropy", "mse_loss", "l1_loss", "nll_loss")):
        return keyword(value, "reduction") is None
    built = script.values(value.func)
    return bool(built) and all(
        isinstance(one, ast.Call)
        and script.name(one.func).startswith("torch.nn.")
        and script.name(one.func).endswith("Loss")
        and keyword(one, "reduction") is None
        for one in built
    )


@lint_rule(
    "zeroed-micro-batches",
    "accumulated gradients are cleared before the step that should use them",
    reads="python",
    each="training",
)
def zeroed_micro_batches(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps every N micro-batches, while `zero_grad()` runs for each of them.

    ## Why it costs
    The gradients of all micro-batches but the last are thrown away: the loop pays for N and learns from one.

    ## How to tell
    In one loop `backward()` and `zero_grad()` run each time, and the step of the same optimizer stands under a test
    such as `(i + 1) % N == 0`.

    ## What to do
    Clear the gradients only after the step, under the same test.

    ## When it is wrong
    If the step is skipped for another reason, and the single batch of the step is what you want.
    """
    names = {script.stepped(step) for step in training.steps}
    if _accumulates_itself(script, training, names) or not all(
        script.runs_each_time(one, training.container) for one in training.backwards
    ):
        return
    periods = [_find_period(script, step, training) for step in training.steps]
    for call in script.calls_of(".zero_grad"):
        is_each = script.runs_each_time(call, training.container)
        cleared = _is_cleared(script, call, names)
        if is_each and cleared and periods and all(periods):
            period = script.source(periods[0]) if isinstance(periods[0], ast.expr) else ""
            yield LintFinding(
                severity=Severity.HIGH,
                line=call.lineno,
                message=f"gradients are cleared for each micro-batch, but the optimizer steps only if {period}",
                advice="move zero_grad() behind the step, under the same test",
            )


_PERIOD = re.compile(r"(?i)accum|update_freq|grad_acc|iter_size|micro|virtual|batch_multipl|subdivisions")


def _find_period(script: LintedScript, call: ast.Call, training: LoopStep) -> ast.expr | None:
    """The test with ``%`` under which a call runs every few iterations of the loop; None where there is none."""
    for test in script.conditions(call, training.container):
        if isinstance(test, ast.expr) and _find_divisor(test) is not None and not _is_negated(test):
            return test
    return None


def _find_divisor(test: ast.AST) -> ast.expr | None:
    """N of a test such as ``(i + 1) % N == 0``."""
    return next(
        (one.right for one in ast.walk(test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)), None
    )


def _is_negated(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)


def _accumulates_itself(script: LintedScript, training: LoopStep, optimizers: set[str]) -> bool:
    """Whether the loop may accumulate in a way that its text does not show: several optimizers, one of another library,
    or an engine that takes the loss (``accelerator.backward(loss)``)."""
    if len(optimizers) != 1 or any(one.args for one in training.backwards):
        return True
    (name,) = optimizers
    return bool(script.assigned.get(name)) and not script.is_built_by(name, *TORCH_OPTIMIZERS)


def _is_cleared(script: LintedScript, call: ast.Call, optimizers: set[str]) -> bool:
    """Whether a zero_grad is that of one of these optimizers, or of a model where there is one optimizer."""
    receiver = script.receiver(call)
    return receiver in optimizers or (len(optimizers) == 1 and receiver.split(".")[-1] in ("model", "net", "module"))


def _find_accumulation(script: LintedScript, training: LoopStep) -> ast.expr | None:
    """How many micro-batches a step has, as the source says it; None for a loop that does not accumulate.

    Either the step stands under a test on that number, or the backward in a loop over its range inside the step's loop.
    """
    if not training.steps or not training.backwards:
        return None
    for step in training.steps:
        test = _find_period(script, step, training)
        if test is not None and all(script.runs_each_time(one, training.container) for one in training.backwards):
            divisor = _find_divisor(test)
            return divisor if divisor is not None and _names_accumulation(script, divisor) else None
    for backward in training.backwards:
        inner = next((one for one in script.loops_around(backward) if one is not training.container), None)
        if isinstance(inner, ast.For) and script.within(inner, training.container) and isinstance(inner.iter, ast.Call):
            count = inner.iter.args[0] if len(inner.iter.args) == 1 else None
            if script.name(inner.iter.func) == "range" and count is not None and _names_accumulation(script, count):
                return count
    return None


def _names_accumulation(script: LintedScript, count: ast.expr) -> bool:
    """Whether an expression bears a name that people give to the number of micro-batches."""
    names = [one.id for one in ast.walk(count) if isinstance(one, ast.Name)]
    names += [one.attr for one in ast.walk(count) if isinstance(one, ast.Attribute)]
    return any(_PERIOD.search(name) for name in names)
