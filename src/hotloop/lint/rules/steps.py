"""The static checks of what a training loop and its validation do in each step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.formats.script import FORS, FUNCTIONS, LintedScript, Loop, LoopStep

MATTERS = re.compile(r"(?i)dropout|batch_?norm|torchvision|timm|transformers|resnet")


@lint_rule(
    "eval-mode-kept", "after the first validation the model trains in eval mode", reads="python", each="training"
)
def eval_mode_kept(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `model.eval()` inside the loop over epochs or steps, of the model that is trained there, in a file that
    never calls `train()`.

    ## Why it costs
    `eval()` stays in force: from the second epoch on there is no dropout, and batch normalisation keeps its statistics.

    ## How to tell
    The optimizer has the model's parameters, `eval()` of the same name runs in the same loop as the training or in a
    function that this loop calls with the model, and no `.train(` occurs in the file. `low` where nothing in the file
    points to dropout or batch normalisation.

    ## What to do
    Call `model.train()` before each epoch's training.

    ## When it is wrong
    If the model is meant to train in eval mode, such as one whose batch normalisation is frozen: then say so once,
    before the loop.
    """
    if re.search(r"\.train\(|\.training\s*=|set_train|\btrain_mode|model_mode", script.text):
        return
    trained = _list_trained(script)
    around = script.loops_around(training.loop) if training.container is training.loop else []
    outer = (around or [training.loop])[-1]
    for call in script.calls_of(".eval"):
        model = script.receiver(call)
        if not call.args and model in trained and _runs_in(script, call, outer, training):
            yield LintFinding(
                severity=Severity.HIGH if MATTERS.search(script.text) else Severity.LOW,
                line=call.lineno,
                message=f"{model} stays in eval mode for all later epochs: nothing calls train() again",
                advice=f"call {model}.train() before each epoch's training",
            )
            return


def _list_trained(script: LintedScript) -> set[str]:
    """Names whose parameters an optimizer of this file has."""
    return {
        name.removesuffix(".parameters")
        for call, name in script.calls
        if name.endswith(".parameters")
        and any(
            isinstance(one, ast.Call) and script.name(one.func).startswith("torch.optim.")
            for one in script.parents(call)
        )
    }


def _runs_in(script: LintedScript, call: ast.Call, outer: Loop, training: LoopStep) -> bool:
    """Whether the eval runs in the loop, behind its training, or in a function that the loop calls."""
    if script.within(call, outer):
        return call.lineno > training.backwards[-1].lineno
    scope = script.scope(call)
    return isinstance(scope, FUNCTIONS) and any(script.within(one, outer) for one in script.callers(scope))


COSTS = {
    "torch.cuda.empty_cache": "gives cached memory back, which waits for the device and makes the next step ask again",
    "torch.cuda.synchronize": "waits until the device has done everything",
    "gc.collect": "looks at every Python object",
}


@lint_rule(
    "forced-wait-each-step",
    "the loop empties the cache, collects garbage or synchronises in every step",
    reads="python",
    each="training",
)
def forced_wait_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
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
    for call, name in script.calls:
        if name in COSTS and script.runs_each_time(call, training.container):
            yield LintFinding(
                severity=Severity.LOW,
                line=call.lineno,
                message=f"{name}() in every step {COSTS[name]}",
                advice="remove it, or call it once per epoch",
            )


WITHOUT = re.compile(r"no_grad|inference_mode|set_grad_enabled|requires_grad|volatile")


@lint_rule("gradients-in-validation", "a validation builds a graph that nothing uses", reads="python")
def gradients_in_validation(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop over a loader, after `model.eval()`, that calls the model outside of `torch.no_grad()`.

    ## Why it costs
    Every forward keeps its activations for a backward that never comes: validation needs the memory of training and is
    slower.

    ## How to tell
    The function calls `eval()` of a model and that model in a loop over a loader, never goes backward, and neither it,
    its decorators nor its callers in the file turn gradients off. Its cost is not known, so this is never above `low`.

    ## What to do
    `with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function.

    ## When it is wrong
    If a caller in another file turns gradients off, or the evaluation needs them.
    """
    for call in script.calls_of(".eval"):
        scope = script.scope(call)
        if not isinstance(scope, FUNCTIONS) or call.args:
            continue
        around = "\n".join(script.lines[_first(scope) - 1 : scope.end_lineno])
        callers = [script.lines[max(0, one.lineno - 4) : one.lineno] for one in script.callers(scope)]
        if WITHOUT.search(around) or WITHOUT.search(str(callers)) or "backward" in around or "autograd" in around:
            continue
        model = script.receiver(call)
        for loop in ast.walk(scope):
            if isinstance(loop, FORS) and loop.lineno > call.lineno and script.iterates_loader(loop):
                forwards = [one for one in script.calls_of(model) if script.within(one, loop)]
                if forwards and script.loops_around(forwards[0])[:1] == [loop]:
                    yield LintFinding(
                        severity=Severity.LOW,
                        line=forwards[0].lineno,
                        message=f"{model} keeps activations for a backward that never comes",
                        advice="evaluate under torch.no_grad()",
                    )
                    break


def _first(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([scope.lineno, *(one.lineno for one in scope.decorator_list)])


READS = ("item", "tolist", "cpu", "numpy")


@lint_rule(
    "item-each-step", "the loop reads a value back from the device in every step", reads="python", each="training"
)
def item_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `.item()`, `.cpu()`, `.tolist()` and `float()` of the loss in the body of a training loop, outside of any
    test.

    ## Why it costs
    The host waits until the device has computed the value, and has nothing queued when it goes on. On a fast device
    with small kernels the gaps add up; on a CPU it costs nothing.

    ## How to tell
    The call runs in each iteration and reads what goes backward, or what was computed from it. The cost is not known
    before it is measured, so this is never above `low`.

    ## What to do
    Add up `loss.detach()` on the device, and read it every N steps. The rule `host-sync` of `hotloop run` measures it.

    ## When it is wrong
    If the value decides what the next step does, or training is on a CPU.
    """
    losses = {_receiver(script, one) for one in training.backwards} - {""}
    for call, name in script.calls:
        if _reads_one_of(script, call, name, losses) and script.runs_each_time(call, training.container):
            yield _describe(script, call)
            break  # one place a loop: the rest is found by reading on


def _receiver(script: LintedScript, backward: ast.Call) -> str:
    value = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
    if backward.args and isinstance(backward.args[0], (ast.Name, ast.Attribute)):
        value = backward.args[0]  # accelerator.backward(loss)
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]  # scaler.scale(loss).backward()
    return script.name(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""


def _reads_one_of(script: LintedScript, call: ast.Call, name: str, losses: set[str]) -> bool:
    if name in ("float", "int") and len(call.args) == 1:
        return script.name(call.args[0]) in losses
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in READS:
        return False
    value = call.func.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value  # loss.detach().cpu()
    if isinstance(value, ast.Attribute) and value.attr == "data":
        value = value.value
    return script.name(value) in losses


def _describe(script: LintedScript, call: ast.Call) -> LintFinding:
    return LintFinding(
        severity=Severity.LOW,
        line=call.lineno,
        message=f"{script.source(call)} waits for the device in every step",
        advice="add up loss.detach() on the device and read it every N steps",
    )


@lint_rule("kept-graph", "a sum of losses keeps a piece of the graph of every step", reads="python", each="training")
def kept_graph(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `total += loss` in a training loop, where `loss` goes backward in the same loop and `total` never does.

    ## Why it costs
    The sum is a tensor that needs gradients. It holds the graph's nodes of all steps so far, so memory grows step by
    step, and freeing it at the end takes a moment.

    ## How to tell
    The name that goes backward is added as it is, without `.item()`, `.detach()` or `float`, in the same iteration.

    ## What to do
    `total += loss.detach()`, which waits for nothing. `hotloop lint --fix` writes it.

    ## When it is wrong
    If `total` goes backward in another function.
    """
    for node in script.nodes:
        name = _added_loss(script, node, training)
        if name is None or not isinstance(node, ast.AugAssign):
            continue
        value = node.value
        end = (value.end_lineno or value.lineno, _column(script, value.end_lineno, value.end_col_offset))
        yield LintFinding(
            severity=Severity.LOW,
            line=node.lineno,
            message=f"{script.source(node.target)} keeps the graph of each {name}: memory grows with every step",
            advice=f"add {name}.detach()",
            edits=(
                LintEdit(
                    first_line=end[0], first_column=end[1], last_line=end[0], last_column=end[1], text=".detach()"
                ),
            ),
        )


def _added_loss(script: LintedScript, node: ast.AST, training: LoopStep) -> str | None:
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add) or not isinstance(node.value, ast.Name):
        return None
    name, total = node.value.id, script.name(node.target) if isinstance(node.target, (ast.Name, ast.Attribute)) else ""
    if not total or not script.within(node, training.container):
        return None
    own = [one for one in training.backwards if script.name(one.func) == f"{name}.backward"]
    used_backward = any(total in script.name(one.func) or total in _names(script, one) for one in script.backwards)
    rebound = [value for value in script.assigned.get(name, []) if script.within(value, training.container)]
    made_plain = any("item" in (script.source(value)) or "float(" in script.source(value) for value in rebound)
    if not own or used_backward or made_plain:
        return None
    first, last = sorted((own[0].lineno, node.lineno))
    return None if any(first < value.lineno < last for value in rebound) else name


def _names(script: LintedScript, call: ast.Call) -> set[str]:
    return {script.name(one) for one in ast.walk(call) if isinstance(one, (ast.Name, ast.Attribute))}


def _column(script: LintedScript, line: int | None, offset: int | None) -> int:
    """1-based column in characters of an offset in bytes."""
    text = script.lines[(line or 1) - 1]
    return len(text.encode()[: offset or 0].decode("utf-8", "replace")) + 1


@lint_rule("print-each-step", "the training loop prints in every step", reads="python", each="training")
def print_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `print` in the body of a training loop that steps an optimizer, outside of any test.

    ## Why it costs
    A line per step is a write per step and rank, into a terminal, a pipe or a file on a shared file system; what is
    printed is usually read back from the device first.

    ## How to tell
    The call runs in each iteration. What it costs depends on where the output goes, so this is never above `low`.

    ## What to do
    Print every N steps. The rule `logging-overhead` of `hotloop run` measures what it takes.

    ## When it is wrong
    If a step takes seconds: a line beside it is nothing.
    """
    calls = [call for call in script.calls_of("print") if script.runs_each_time(call, training.container)]
    if calls and training.steps:
        yield LintFinding(
            severity=Severity.LOW,
            line=calls[0].lineno,
            message="prints in every step",
            advice="print every N steps",
        )
