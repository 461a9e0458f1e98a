"""Checks of how gradients are accumulated, scaled, clipped, cleared and used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript, LoopStep
from hotloop.judge.lint.python_code import constant, keyword
from hotloop.judge.lint.python_flow import LoopCall
from hotloop.judge.lint.script_words import ACCUMULATION, SHARDS

CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
CLEARED = re.compile(r"\.grad\s*=\s*None|grad(\.data)?\.(zero_|fill_)|clear_grad|grad\.detach_\(\)")
DIVIDES_ITSELF = ("accelerate", "deepspeed", "lightning", "colossalai", "fairscale", "transformers.Trainer")


@lint_rule(
    "accumulation-without-no-sync",
    "DDP exchanges gradients for each micro-batch of a step",
    reads="python",
    each="training",
)
def accumulation_without_no_sync(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient accumulation under DistributedDataParallel in a file that never uses `no_sync`, and for a
    `no_sync` around every backward call.

    ## Why it costs
    Each backward pass sends all gradients, although only their sum is needed, so one step causes N times the traffic.
    Inside `no_sync`, nothing is sent: if the last backward call is inside it too, the ranks drift apart.

    ## How to recognize it
    The file wraps a model in DistributedDataParallel, and a loop accumulates over micro-batches.

    ## What to do
    Use `with model.no_sync():` around all micro-batches except the last. The rule `sync-every-microstep` of `hotloop
    run` measures the cost.

    ## When it is wrong
    Ignore the finding if N is 1 in practice. The severity is `medium` if the file sets N above 1, otherwise `low`.
    """
    if not script.calls_of(".DistributedDataParallel", ".DDP") or not training.steps:
        return
    first = training.backwards[0]
    around = [
        one
        for one in _list_contexts(script, first.call)
        if not script.conditions(script.statement(one), training.container)
    ]
    always = any(script.name(getattr(one, "func", one)).endswith(".no_sync") for one in around)
    yield from script.report(
        always and len(training.backwards) == 1 and first,
        Severity.HIGH,
        "every backward runs under no_sync: DDP never averages the gradients, and the ranks drift apart",
        "exit no_sync for the last micro-batch of each step",
    )
    handled = any("sync" in ast.unparse(item) for item in _list_contexts(script, first.call)) or script.has(
        r"no_sync|require_backward_grad_sync|accelerate|deepspeed|FSDP|FullyShardedDataParallel"
    )
    count = None if handled else _find_accumulation(script, training)
    numbers = script.numbers(count) if count else []
    yield from script.report(
        count and first,
        Severity.MEDIUM if any(isinstance(one, int) and one > 1 for one in numbers) else Severity.LOW,
        f"DDP all-reduces all gradients in each of {script.source(count) if count else 'N'} "
        "micro-batches: once is enough",
        "use model.no_sync() for all micro-batches except the last",
    )


def _list_contexts(script: LintedScript, node: ast.AST) -> list[ast.expr]:
    """The context managers around a node."""
    return [one.context_expr for block in script.parents(node) if isinstance(block, ast.With) for one in block.items]


@lint_rule(
    "clip-after-step", "gradients are clipped at a point where no step uses the result", reads="python", each="training"
)
def clip_after_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient clipping between the optimizer's step and the next backward pass.

    ## Why it costs
    The clipping has no effect: the step used the unclipped gradients, and they are cleared before the next step.

    ## How to recognize it
    In one iteration's sequence of calls, the call before the clipping is a step, not a backward pass.

    ## What to do
    Clip between `backward()` and `step()`.

    ## When it is wrong
    Ignore the finding if you deliberately keep the gradients for the next step.
    """
    order = [one for one in training.events if one in training.backwards or one in training.steps]
    for clip in training.find(*CLIPS) if training.backwards and training.steps else ():
        before = [one for one in order if training.events.index(one) < training.events.index(clip)]
        last = (before or order)[-1]
        apart = script.exclude_each_other(last.site, clip.site)
        yield from script.report(
            last in training.steps and not apart and clip,
            Severity.MEDIUM,
            f"clips gradients {'after the step' if before else 'before backward()'}: no step uses the result, so "
            "clipping has no effect",
            "clip between backward() and step()",
        )


@lint_rule(
    "clipped-scaled-gradients",
    "gradients are clipped before the GradScaler's factor is removed",
    reads="python",
    each="training",
)
def clipped_scaled_gradients(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop with a GradScaler that clips or reads gradients without `scaler.unscale_(optimizer)`.

    ## Why it costs
    The gradients are about 65,536 times too large at that point. Every step is clipped, and after the scaler divides by
    its factor, almost nothing of the step is left.

    ## How to recognize it
    Between `scaler.scale(loss).backward()` and `scaler.step(optimizer)`, clipping runs without `unscale_` before it.

    ## What to do
    Call `scaler.unscale_(optimizer)` before you clip.

    ## When it is wrong
    Ignore the finding if the scaler is disabled wherever gradients are clipped.
    """
    scaled = {one for one in training.backwards if _is_scaled_loss(script, one)}
    stepped = {one for one in training.steps if one.call.args}
    for clip in training.find("clip_grad_norm_"):
        given = getattr(clip.call.args[0], "func", clip.call) if clip.call.args else clip.call
        models = script.origins(given.value) if isinstance(given, ast.Attribute) else []
        shards = [one for one in models if isinstance(one, ast.Call) and SHARDS.search(script.name(one.func))]
        yield from script.report(
            "utils" in clip.name
            and bool(shards)
            and not script.has("NO_SHARD|use_orig_params_clip")
            and not any(script.mentions(test, SHARDS) for test in clip.tests)
            and clip,
            Severity.MEDIUM,
            "torch.nn.utils.clip_grad_norm_ uses the norm of this rank's shard: each rank clips by a different norm",
            "call FullyShardedDataParallel's model.clip_grad_norm_(max_norm)",
        )
    for clip in training.find(*CLIPS) if scaled and stepped and script.calls_of(".GradScaler") else ():
        at = training.events.index(clip)
        before, after = training.events[:at], training.events[at:]
        apart = any(script.exclude_each_other(one.site, clip.site) for one in scaled | stepped)
        unscaled = any(one.name.endswith("unscale_") for one in before)
        yield from script.report(
            not (apart or unscaled or scaled.isdisjoint(before) or stepped.isdisjoint(after))
            and not re.search("(?i)optim", script.receiver(clip.call))  # which knows its scale
            and clip,
            Severity.HIGH,
            "clips gradients that still include the scaler's factor: almost nothing of the step is left",
            "call scaler.unscale_(optimizer) before it",
        )


@lint_rule("misused-scaler", "GradScaler's scale, step and update do not match", reads="python", each="training")
def misused_scaler(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for an optimizer step that bypasses the scaler, for `scaler.step` without `scaler.update` or with a loss that
    was not scaled, for a scaler that is used with bfloat16, and for float16 without a scaler.

    ## Why it costs
    A scaled loss makes gradients 65,536 times too large: only `scaler.step` divides them and drops infinite ones.
    Without `update`, the second `scaler.step` raises an error. Small gradients in float16 without a scaler become zero.

    ## How to recognize it
    The rule looks at the calls of one iteration (`scale(loss).backward()`, the steps, `update()`) and the dtype that is
    passed to autocast.

    ## What to do
    Use `scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()`. bfloat16 needs no scaler.

    ## When it is wrong
    Ignore the finding if branches of the loop use the scaler under conditions that the rule cannot follow.
    """
    scaled = [one for one in training.backwards if _is_scaled_loss(script, one) and ".scale_loss" not in script.text]
    through = [
        one
        for one in training.steps
        if one.call.args
        and script.name(one.call.func).endswith("scaler.step")
        and not any(script.mentions(test, re.compile("(?i)scaler|amp")) for test in one.tests)
    ]
    bare = [one for one in training.steps if not one.call.args]
    engines = any(one.call.args for one in training.backwards)
    halves = [script.name(one).rpartition(".")[2] for one in _autocast(script)]
    halved = bool(halves) and set(halves) <= {"float16", "half"}
    mentioned = script.has(r"(?i)scaler|accelerate|deepspeed|lightning|\.scale\(")
    checks = (
        (
            bool(scaled) and not through and len(scaled) == len(training.backwards),
            bare,
            Severity.HIGH,
            "optimizer.step() bypasses the scaler: gradients include its factor, so steps are 65,536 times too large",
        ),
        (
            "scaler.update" not in script.text and not training.find("update"),
            through,
            Severity.HIGH,
            "scaler.update() is never called: the second scaler.step() raises RuntimeError, and the scale never adapts",
        ),
        (
            not any(_is_scaled_loss(script, one) for one in training.backwards) and not engines,
            through,
            Severity.HIGH,
            "scaler.step() divides by a scale that backward() never saw: the loss was not scaled",
        ),
        (
            set(halves) == {"bfloat16"},
            through,
            Severity.LOW,
            "GradScaler scales a bfloat16 loss, although bfloat16 has the range of float32: useless work",
        ),
        (
            halved and not mentioned and bool(training.steps) and bool(training.find("autocast")),
            training.backwards,
            Severity.MEDIUM,
            "float16 autocast without a GradScaler: small gradients become zero, and the model learns worse",
        ),
    )
    for holds, events, severity, message in checks:
        if holds and events:
            advice = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); none of it for bfloat16"
            yield LintFinding(severity=severity, line=script.line(events[0]), message=message, advice=advice)


def _is_scaled_loss(script: LintedScript, backward: LoopCall) -> bool:
    value = getattr(backward.call.func, "value", None)
    return not backward.call.args and isinstance(value, ast.Call) and script.name(value.func).endswith(".scale")


def _autocast(script: LintedScript) -> list[ast.expr]:
    """The dtypes that the file passes to autocast."""
    given = [keyword(call, "dtype") for call in script.calls_of(".autocast")]
    return [one for one in given if isinstance(one, ast.Attribute)]


@lint_rule("missing-zero-grad", "gradients are never cleared between steps", reads="python", each="training")
def missing_zero_grad(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop that calls `backward()` and an optimizer's `step()`, but in which nothing clears the
    gradients.

    ## Why it costs
    `backward()` adds to `.grad`. Without `zero_grad()`, each step uses the sum of all gradients since the start (or
    since the epoch began, if `zero_grad()` is before the loop): the script still runs, but the model learns badly.

    ## How to recognize it
    The optimizer comes from `torch.optim`, its step runs in the loop, and the file never clears gradients or clears
    them only outside that loop.

    ## What to do
    Call `optimizer.zero_grad()` once per step, before `backward()` or after `step()`. `hotloop lint --fix` adds it
    where the step runs in every iteration.

    ## When it is wrong
    Ignore the finding if another file clears the gradients, for example inside the model's own `forward`, or if the
    loop runs only once.
    """
    clears = script.calls_of(".zero_grad")
    inside = [*training.events, *script.events(training.loop)]
    if CLEARED.search(script.text) or any(one.name.endswith("zero_grad") for one in inside):
        return
    for step in training.steps if all(_runs_before(script, training, one) for one in clears) else ():
        value = step.call.args[0] if step.call.args else getattr(step.call.func, "value", step.call)
        name = script.stepped(step.call)
        has_closure = step.call.keywords or (step.call.args and script.name(step.call.func) == f"{name}.step")
        yield from script.report(
            not has_closure and script.role(value) == "optimizer" and step,
            Severity.HIGH,
            f"{name} steps with the sum of the gradients of all steps "
            f"{'since the loop began' if clears else 'so far'}: "
            "no zero_grad() clears them in the loop",
            f"call {name}.zero_grad() once per step",
            edits=_add_clear(script, training, step.call, name) if not clears else (),
        )


def _runs_before(script: LintedScript, training: LoopStep, clear: ast.Call) -> bool:
    """Whether a zero_grad comes before the loop that steps, in the same function."""
    around = {id(one) for one in script.loops_around(training.loop)}
    return (
        script.scope(clear) is script.scope(training.loop)
        and clear.lineno < training.loop.lineno
        and {id(one) for one in script.loops_around(clear)} <= around
    )


def _add_clear(script: LintedScript, training: LoopStep, step: ast.Call, name: str) -> tuple[LintEdit, ...]:
    """A line below the step, where the step has its own line and runs in every iteration."""
    statement, line = script.parent(step), script.lines[step.lineno - 1]
    alone = isinstance(statement, ast.Expr) and step.lineno == step.end_lineno and ";" not in line
    if not (alone and script.is_own(step) and len(training.steps) == 1 and training.steps[0].is_certain):
        return ()
    indent, at = line[: len(line) - len(line.lstrip())], step.lineno + 1
    return (LintEdit(first_line=at, first_column=1, last_line=at, last_column=1, text=f"{indent}{name}.zero_grad()\n"),)


@lint_rule("step-out-of-order", "a step does not use the gradients of its batch", reads="python", each="training")
def step_out_of_order(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `zero_grad()` between `backward()` and `step()`, and for a `step()` before the only `backward()`.

    ## Why it costs
    Gradients that are cleared before the step are never used: the parameters do not move. A step before the backward
    pass uses the gradients of the previous batch, or none.

    ## How to recognize it
    The three calls run in each iteration of one loop, in this order, for one optimizer.

    ## What to do
    Use `zero_grad()`, `backward()`, `step()`, in this order.

    ## When it is wrong
    Ignore the finding if you want delayed gradients.
    """
    clears = training.find("zero_grad")
    order = [*training.backwards, *training.steps, *clears]
    if not (len(training.backwards) == len(training.steps) == 1 >= len(clears)) or not all(
        one.is_certain for one in order
    ):
        return
    backward, step, clear = (*(training.events.index(one) for one in order), -1)[:3]
    yield from script.report(
        (step < clear < backward or backward < clear < step) and clears[0],
        Severity.HIGH,
        "zero_grad() clears the gradients between backward() and step(): the step uses none of them",
        "call zero_grad() before backward() or after step()",
    )
    yield from script.report(
        step < backward and not step < clear < backward and training.steps[0],
        Severity.HIGH,
        "step() runs before backward(): it uses gradients of the previous batch, or none if they are cleared",
        "call step() after backward()",
    )


@lint_rule("never-stepped", "backward runs but no optimizer ever steps", reads="python", each="training")
def never_stepped(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training loop with `backward()` and an optimizer that the file builds but never steps.

    ## Why it costs
    Gradients are computed but never applied: the model keeps its initial weights.

    ## How to recognize it
    The file never mentions `step` and never passes the optimizer to other code; or it calls `step()` only after the
    loop.

    ## What to do
    Call `optimizer.step()` after `backward()`, in the same loop.

    ## When it is wrong
    Ignore the finding if another file calls `step()` through the model or a global variable.
    """
    for name, values in script.assigned.items() if not training.steps and not training.backwards[0].call.args else ():
        if not any(isinstance(value, ast.Call) and script.role(value) == "optimizer" for value in values):
            continue
        uses = re.findall(rf"\b{re.escape(name)}\b(?!\.(?:zero_grad|state_dict|param_groups))", script.text)
        yield from script.report(
            len(uses) == 1 and training.backwards[0],
            Severity.HIGH,
            f"{name} never steps: backward() computes gradients that are never applied",
            f"call {name}.step() after backward()",
            is_sure=False,
        )


@lint_rule(
    "uncleared-steps",
    "the optimizer steps on each micro-batch, but gradients are cleared only every N",
    reads="python",
    each="training",
)
def uncleared_steps(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps in every iteration, while `zero_grad()` is under a test such as `i % N == 0`.

    ## Why it costs
    Each step reuses the gradients of earlier micro-batches until they are cleared, and every micro-batch costs an
    optimizer step.

    ## How to recognize it
    In one loop, the step runs in every iteration, but each `zero_grad()` of the same optimizer runs only every N
    iterations.

    ## What to do
    Put the step under the same test as `zero_grad()`, before it.

    ## When it is wrong
    Ignore the finding if gradients should decay slowly over several steps, as a kind of momentum.
    """
    clears, name = training.find("zero_grad"), _single(script, training)
    rarely = bool(clears) and all(_find_period(script, one) for one in clears)
    yield from script.report(
        bool(name) and rarely and all(one.is_certain for one in training.steps) and training.steps[0],
        Severity.HIGH,
        f"{name} steps on each micro-batch, but its gradients are cleared only every few micro-batches",
        "call step() under the same test as zero_grad(), before it",
    )


@lint_rule(
    "undivided-accumulation",
    "the mean losses of several micro-batches are added up, not averaged",
    reads="python",
    each="training",
)
def undivided_accumulation(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for gradient accumulation over N micro-batches whose mean loss is never divided by N.

    ## Why it costs
    The gradient is N times that of one large batch. The same learning rate then has a different effect for each N,
    weight decay and clipping are out of proportion, and with clipping, every step is clipped.

    ## How to recognize it
    The optimizer steps every N micro-batches, the loss comes from `torch.nn`, or from a model without a `reduction`,
    and nothing in the file divides or multiplies by N.

    ## What to do
    Divide the loss by the number of micro-batches: `(loss / N).backward()`.

    ## When it is wrong
    Ignore the finding if the learning rate was deliberately chosen for the sum, or if another file divides the loss.
    """
    count = None if any(name in script.text for name in DIVIDES_ITSELF) else _find_accumulation(script, training)
    if count is None or constant(count) == 1 or _is_scaled(script, count):
        return
    shown, loss = script.source(count), script.loss(training.backwards[0].call)
    made = script.origins(loss) if isinstance(loss, (ast.Name, ast.Attribute)) else [loss]
    parts = [one for one in script.slice(loss) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)]
    if any(constant(one.right) is ... for one in parts):
        return  # weighted by something else, such as the share of the samples
    is_mean = all(_makes_mean(script, one) for one in made)
    may_be = script.gradient(loss) == "graph" and not script.has(r"reduction\s*=|\.sum\(")
    yield from script.report(
        (is_mean or may_be) and training.backwards[0],
        Severity.MEDIUM,
        f"losses of {shown} micro-batches add up undivided: the gradient is {shown} times the gradient of their mean",
        f"divide the loss before backward: (loss / {shown}).backward()",
        is_sure=is_mean,
    )


def _is_scaled(script: LintedScript, count: ast.expr) -> bool:
    """Whether a name in ``count`` occurs in any product or quotient except those of loaders and epochs."""
    names = _names(count) - {"self", "args", "cfg", "config", "opt", "hparams"}
    number = count.value if isinstance(count, ast.Constant) else ...
    for node in (*script.of[ast.BinOp], *script.of[ast.AugAssign], *script.of[ast.Call]):
        is_scaling = isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.Mult))
        is_call = isinstance(node, ast.Call) and script.name(node.func).endswith((".div", ".div_", ".mul"))
        same = number is not ... and any(constant(one) == number for one in ast.walk(node))
        if (is_scaling or is_call) and (names & _names(node) or same):
            return True
    return False


def _names(node: ast.AST) -> set[str]:
    words = (getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node))
    return {word for word in words if word}


def _makes_mean(script: LintedScript, value: ast.AST) -> bool:
    """Whether a call computes a torch.nn loss with its default mean."""
    if not isinstance(value, ast.Call) or keyword(value, "reduction") is not None:
        return False
    if re.match(r"torch\.nn\.functional\.\w*(entropy|loss)", script.name(value.func)):
        return True
    made = [one for one in script.origins(value.func) if isinstance(one, ast.Call)]
    return bool(made) and all(
        re.match(r"torch\.nn\.\w*Loss$", script.name(one.func)) and keyword(one, "reduction") is None for one in made
    )


@lint_rule(
    "zeroed-micro-batches",
    "accumulated gradients are cleared before the step that should use them",
    reads="python",
    each="training",
)
def zeroed_micro_batches(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop whose optimizer steps every N micro-batches, although `zero_grad()` runs for each micro-batch.

    ## Why it costs
    The gradients of all micro-batches except the last are thrown away: the loop computes N micro-batches but learns
    from only one.

    ## How to recognize it
    In one loop, `backward()` and `zero_grad()` run in every iteration, and the step of the same optimizer is under a
    test such as `(i + 1) % N == 0`.

    ## What to do
    Clear the gradients only after the step, under the same test.

    ## When it is wrong
    Ignore the finding if the step is skipped for another reason, and you want the step to use a single batch.
    """
    periods = [_find_period(script, step) for step in training.steps]
    is_each = bool(_single(script, training)) and all(one.is_certain for one in training.backwards)
    for clear in training.find("zero_grad") if is_each and periods and all(periods) else ():
        yield from script.report(
            clear.is_certain and clear,
            Severity.HIGH,
            "zero_grad() clears the gradients of each micro-batch, but the optimizer steps only if "
            f"{script.source(periods[0]) if periods[0] else 'a test holds'}",
            "move zero_grad() below the step, under the same test",
        )


def _single(script: LintedScript, training: LoopStep) -> str:
    """The name of the only optimizer of a loop, where the loop's code shows how it accumulates."""
    names = {script.stepped(step.call) for step in training.steps}
    return names.pop() if len(names) == 1 and not any(one.call.args for one in training.backwards) else ""


def _find_period(script: LintedScript, event: LoopCall) -> ast.expr | None:
    """The test with ``%`` under which a call runs every few iterations of the loop; None if there is no such test."""
    for test in event.tests:
        negated = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq)
        if isinstance(test, ast.expr) and not negated and _find_divisor(script, test) is not None:
            return test
    return None


def _find_divisor(script: LintedScript, test: ast.AST) -> ast.expr | None:
    """N of a test such as ``(i + 1) % N == 0``, or of the flag to which it was assigned."""
    mods = (one for one in script.said(test) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod))
    return next((one.right for one in mods if not isinstance(one.left, (ast.Constant, ast.JoinedStr))), None)


def _find_accumulation(script: LintedScript, training: LoopStep) -> ast.expr | None:
    """How many micro-batches a step has, as the source says; None for a loop that does not accumulate.

    Either the step is under a test on that number, or the backward call is in a loop over its range in the step's loop.
    """
    for step in training.steps if training.backwards else ():
        test = _find_period(script, step)
        if test is not None and all(one.is_certain for one in training.backwards):
            divisor = _find_divisor(script, test)
            named = divisor is not None and script.mentions(divisor, ACCUMULATION)
            clears = [_find_period(script, one) for one in training.find("zero_grad")]
            return divisor if named or (clears and all(clears)) else None
    for backward in training.backwards if training.steps else ():
        inner = next((one for one in script.loops_around(backward.call) if one is not training.container), None)
        if isinstance(inner, ast.For) and script.within(inner, training.container) and isinstance(inner.iter, ast.Call):
            count = inner.iter.args[0] if len(inner.iter.args) == 1 else None
            if script.name(inner.iter.func) == "range" and count is not None and script.mentions(count, ACCUMULATION):
                return count
    return None


@lint_rule("detached-loss", "the loss has no gradient when backward() is called", reads="python", each="training")
def detached_loss(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loss that, on every path from the model, passes through `.detach()`, `.item()`, `.data`, `argmax`, a
    comparison, numpy, `torch.tensor(...)` or `no_grad`.

    ## Why it costs
    No gradient flows past that point. `backward()` raises an error; or, if the code sets `requires_grad` on the loss,
    the parameters never change.

    ## How to recognize it
    The rule follows the data flow: every value that the name may hold was computed from the model and lost its history.

    ## What to do
    Compute the loss from the model's output itself; detach only copies that are logged.

    ## When it is wrong
    Ignore the finding if the loss has another input that requires gradients.
    """
    for backward in training.backwards[:1]:
        loss, block = script.loss(backward.call), script.without_gradients(backward.call)
        why = "under torch.no_grad()" if block or script.without_gradients(loss) else "from a detached value"
        yield from script.report(
            (block is not None or script.gradient(loss) == "cut") and backward,
            Severity.HIGH,
            f"{script.source(loss) or 'the loss'} is computed {why} (detach, item, data, argmax, "
            "numpy or no_grad on the "
            "path): backward() reaches no parameter",
            "compute the loss from the model's output with its graph; detach only copies that are logged",
        )


_SQUASHED = ("softmax", "Softmax", "sigmoid", "Sigmoid")
_RAW = ("Linear", "Conv1d", "Conv2d", "Conv3d")
ACTIVATED = {
    "cross_entropy": (*_SQUASHED, "log_softmax", "LogSoftmax"),
    "CrossEntropyLoss": (*_SQUASHED, "log_softmax", "LogSoftmax"),
    "binary_cross_entropy_with_logits": _SQUASHED,
    "BCEWithLogitsLoss": _SQUASHED,
    "nll_loss": (*_SQUASHED, *_RAW),
    "NLLLoss": (*_SQUASHED, *_RAW),
    "kl_div": (*_SQUASHED, *_RAW),
    "KLDivLoss": (*_SQUASHED, *_RAW),
    "binary_cross_entropy": _RAW,
    "BCELoss": _RAW,
}
"""Losses -> activations that must not precede them."""


@lint_rule("activated-loss", "a loss gets activations of the wrong kind", reads="python")
def activated_loss(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a softmax or sigmoid before a loss that applies one itself, including at the end of the model's class; for
    `NLLLoss` of something other than log-probabilities; and for a loss that gets its target first.

    ## Why it costs
    A second softmax squeezes the logits into [0, 1]: gradients vanish, the loss cannot fall below a floor, and the
    model learns more slowly and less well. `NLLLoss` of plain probabilities has no minimum.

    ## How to recognize it
    The rule traces the first argument to its origin: an activation, or a model in this file whose `forward` returns
    one.

    ## What to do
    Give `CrossEntropyLoss` and `BCEWithLogitsLoss` raw logits; give `NLLLoss` the result of `log_softmax`.

    ## When it is wrong
    Ignore the finding if you deliberately squeeze the logits.
    """
    for call, name in script.calls if any(one in script.text for one in ACTIVATED) else ():
        made = [script.name(one.func) for one in script.origins(call.func) if isinstance(one, ast.Call)]
        kinds = [one.rpartition(".")[2] for one in (made or [name])]
        if len(call.args) != 2 or not all(kind in ACTIVATED for kind in kinds):
            continue
        last = _last_operation(script, call.args[0])
        is_log = bool(re.match(r"(?i)nll|kl", kinds[0]))
        needs = "log-probabilities (log_softmax)" if is_log else "probabilities (sigmoid)" if last in _RAW else ""
        yield from script.report(
            last in ACTIVATED[kinds[0]] and call,
            Severity.HIGH if needs else Severity.MEDIUM,
            f"{kinds[0]} gets the output of {last}, "
            + (f"not {needs}" if needs else f"and applies its own to raw logits: a second {last} flattens gradients"),
            f"pass {needs}" if needs else f"pass raw logits: remove {last}",
        )
        states = [script.gradient(one) for one in call.args]
        yield from script.report(
            states == ["plain", "graph"] and call,
            Severity.HIGH,
            f"{kinds[0]} gets the target first and the model's output second: the arguments are swapped",
            "pass (input, target)",
        )


def _last_operation(script: LintedScript, value: ast.AST) -> str:
    """The activation or layer that computes a value; empty if there may be several, or if it is unknown."""
    names = {script.name(getattr(one, "func", one)).rpartition(".")[2] for one in script.ends(value)}
    return names.pop() if len(names) == 1 else ""


@lint_rule("stale-optimizer", "the optimizer does not hold the parameters that are in use", reads="python")
def stale_optimizer(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a model that is wrapped in FSDP, gets a new layer, is rebuilt or is moved after an optimizer took its
    parameters, and for modules that are used in the forward pass although no optimizer has their parameters.

    ## Why it costs
    The optimizer updates parameters that are no longer used, and never the new ones, which keep their initial values.

    ## How to recognize it
    In one function, the optimizer is built from `model.parameters()`, and the model changes below that line.

    ## What to do
    Build, move, load and wrap the model first, then build the optimizer.

    ## When it is wrong
    Ignore the finding if the optimizer gets the new parameters with `add_param_group`.
    """
    for model, optimizer in script.models.items() if "add_param_group" not in script.text else ():
        around = script.loops_around(optimizer) if script.is_own(optimizer) else None
        for node in (*script.of[ast.Call], *script.of[ast.Assign]):
            later = node.lineno > (optimizer.end_lineno or 0)
            if later and script.scope(node) is script.scope(optimizer) and script.loops_around(node) == around:
                message = _outdates(script, node, model)
                yield from script.report(
                    bool(message) and not script.exclude_each_other(node, optimizer) and node,
                    Severity.HIGH,
                    f"{message} after the optimizer on line {optimizer.lineno} took the parameters",
                    "build the optimizer after the model is built, moved and wrapped",
                )


def _outdates(script: LintedScript, node: ast.AST, model: ast.AST) -> str:
    """How a statement changes a model after its parameters were taken."""
    made = next(iter(script.origins(node.value)), node) if isinstance(node, ast.Assign) else node
    name = script.name(made.func) if isinstance(made, ast.Call) else ""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    is_layer = isinstance(target, ast.Attribute) and re.match(r"torch\.nn\.[A-Z]\w*$", name)
    if isinstance(target, ast.Attribute) and is_layer and model in script.origins(target.value, inside=True):
        return f"{script.name(target)} is a new layer that never learns: it is assigned"
    reset = getattr(getattr(made, "func", made), "value", None) if name.endswith(".reset_classifier") else None
    if reset is not None and model in script.origins(reset, inside=True):
        return f"{name}() makes a new head that never learns: it runs"
    shards = name.endswith(("FSDP", "FullyShardedDataParallel", "fully_shard"))
    if shards and isinstance(node, ast.Call) and node.args and model in script.origins(node.args[0], inside=True):
        return f"{name.rpartition('.')[2]} replaces the parameters"
    return ""
