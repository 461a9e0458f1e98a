"""Checks of what a training loop and its validation do in each step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set

from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.judge.lint.formats.script import ROLES, LintedScript, LoopStep
from hotloop.judge.lint.python_code import FORS, FUNCTIONS, constant, keyword
from hotloop.judge.lint.python_flow import LoopCall
from hotloop.judge.lint.script_words import ACCUMULATION, HIGHER, LENGTHS, LOWER, find_unit

MATTERS = re.compile(r"(?i)dropout|batch_?norm|torchvision|timm|transformers|resnet|\bsmp\b|_models?\b|from \w*model")
"""Layers that behave differently in eval mode."""


@lint_rule("eval-mode-kept", "after the first validation, the model trains in eval mode", reads="python")
def eval_mode_kept(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `model.eval()` in a training loop or in a function that the loop calls, if the optimizer's next step runs
    before anything calls `train()`.

    ## Why it costs
    `eval()` stays in effect: after the first validation, there is no dropout, and batch normalization keeps its
    statistics. Training continues without an error, but the model learns less well.

    ## How to recognize it
    The rule follows the calls of two successive iterations in the order in which they run, including calls in
    functions.

    ## What to do
    Call `model.train()` after each validation, or at the start of each step.

    ## When it is wrong
    Ignore the finding if the model should train in eval mode, for example because its batch normalization is frozen; in
    that case, call `eval()` once, before the loop.
    """
    if not script.training:
        return
    if script.has(r"\.training *=|set_train|train_mode|model_mode"):
        return
    told: set[ast.AST] = set()
    for loop, step in script.epochs:
        mode: LoopCall | None = None
        for event in (*script.events(loop), *script.events(loop)):
            kind = event.name.rpartition(".")[2]
            is_off = kind == "eval" or constant(event.call.args[0] if event.call.args else None) is False
            model = getattr(event.call.func, "value", event.call)
            if kind in ("train", "eval") and (not is_off or script.is_model(model)):
                others = [one for one in script.events(loop) if one.last == "train" and not one.call.args]
                is_phase = any(
                    script.exclude_each_other(one.site, event.site) or script.exclude_each_other(one.call, event.call)
                    for one in others
                )
                mode = event if is_off and not is_phase else None
            elif mode is not None and event.call in [one.call for one in step.steps or step.find("step")] and not told:
                model = getattr(mode.call.func, "value", mode.call)
                told.add(mode.call)
                yield from script.report(
                    not script.exclude_each_other(mode.site, event.site) and mode,
                    Severity.HIGH if script.has_modes(model) or MATTERS.search(script.text) else Severity.LOW,
                    f"{script.name(model)} stays in eval mode after this: nothing calls train() "
                    "before the next step, which "
                    "trains without dropout and with frozen batch norm statistics",
                    f"call {script.name(model)}.train() after each validation",
                )


@lint_rule("validation-in-train-mode", "validation or inference runs in train mode", reads="python")
def validation_in_train_mode(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop over a loader under `no_grad` that first calls `train()` or uses a model that is never put into
    eval mode.

    ## Why it costs
    Dropout drops activations during the measurement, and batch normalization uses and updates its statistics with the
    validation data: results are noisy and worse, and the model has seen the validation set.

    ## How to recognize it
    The model is trained or built in this file, and no `eval()` runs in the function, in its callers or anywhere else in
    the file.

    ## What to do
    Use `model.eval()` before the validation and `model.train()` after it.

    ## When it is wrong
    Ignore the finding if the model has neither dropout nor batch normalization.
    """
    is_off = not script.models or script.has(
        r"\.eval\(|\.train\(False|train\(mode=False|set_eval|\.training = False|pipeline\("
    )
    loops = [] if is_off else [one for one in script.of[ast.For] if script.without_gradients(one)]
    for loop in loops if not is_off else ():
        calls = [one.call for one in script.events(loop) if one.call is one.site and script.is_model(one.call.func)]
        owner = script.class_of(loop)  # with an imported base, which may set the mode
        foreign = owner is not None and any(script.definition(one) is None for one in owner.bases)
        yield from script.report(
            bool(calls) and not foreign and script.iterates_loader(loop) and script.has_modes(calls[0].func) and loop,
            Severity.MEDIUM,
            f"{script.source(calls[0].func) if calls else ''} is evaluated in train mode: dropout is "
            "on, and batch norm "
            "updates its statistics; eval() is never called",
            "call eval() before this loop, and train() after it",
        )


WITHOUT = re.compile(r"no_grad|inference_mode|set_grad_enabled|requires_grad|volatile|autograd")


@lint_rule("gradients-in-validation", "validation builds a graph that nothing uses", reads="python")
def gradients_in_validation(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a loop over a loader, after `model.eval()`, that calls the model outside `torch.no_grad()`.

    ## Why it costs
    Every forward keeps its activations for a backward pass that never comes: validation needs about twice the memory,
    is slower, and limits the batch size.

    ## How to recognize it
    The code calls `model.eval()`, and then a loop calls the model but never calls `backward()`. Neither the code around
    the loop nor the function's callers turn gradients off.

    ## What to do
    Use `with torch.no_grad():` around the loop, or `@torch.no_grad()` on the function.

    ## When it is wrong
    Ignore the finding if a caller in another file turns gradients off, or if the evaluation needs gradients.
    """
    if not script.has(r"\.eval\(") or script.has(r"set_grad_enabled\(False|requires_grad_?\(?\s*=?\s*False"):
        return
    for call in script.calls_of(".eval") if not script.calls_of("torch.autograd.grad") else ():
        scope, model = script.scope(call), script.receiver(call)
        callers = script.callers(scope) if isinstance(scope, FUNCTIONS) else []
        if call.args or model.startswith("?") or any(script.without_gradients(one) for one in callers):
            continue
        for loop in (one for one in script.of[ast.For] if script.scope(one) is scope):
            forwards = [one for one in script.calls_of(model) if script.loops_around(one)[:1] == [loop]]
            text = script.text_of(loop)
            trains = [one for one in script.calls_of(".train") if call.lineno < one.lineno <= loop.lineno]
            is_off = WITHOUT.search(text) or script.without_gradients(loop) or "backward" in text
            yield from script.report(
                loop.lineno > call.lineno
                and not is_off
                and not trains
                and script.iterates_loader(loop)
                and bool(forwards)
                and forwards[0],
                Severity.MEDIUM,
                f"{model} builds a graph and keeps activations for a backward pass that never comes: twice the memory",
                "evaluate under torch.no_grad() or torch.inference_mode()",
            )


EACH_STEP: dict[str, tuple[Severity, str]] = {
    "torch.cuda.empty_cache": (
        Severity.MEDIUM,
        "frees cached memory: it waits for the device, and the allocator must request the memory again",
    ),
    "torch.cuda.synchronize": (
        Severity.MEDIUM,
        "waits until the device is idle: nothing is queued when the host continues",
    ),
    "gc.collect": (Severity.MEDIUM, "visits every Python object while the device waits"),
    "torch.cuda.ipc_collect": (Severity.MEDIUM, "waits for the device"),
    "torch.distributed.barrier": (Severity.MEDIUM, "waits for the slowest rank, which the all-reduce does anyway"),
    "torch.cuda.memory_summary": (Severity.LOW, "collects the allocator's statistics"),
    "time.sleep": (Severity.MEDIUM, "keeps the device idle in the meantime"),
    "torch.save": (Severity.HIGH, "writes a checkpoint while the device waits"),
    ".save_pretrained": (Severity.HIGH, "writes the entire model while the device waits"),
    "copy.deepcopy": (Severity.MEDIUM, "copies the entire object while the device waits"),
    ".add_histogram": (Severity.MEDIUM, "copies entire tensors to the host and sorts them"),
    ".add_image": (Severity.MEDIUM, "encodes an image on the host"),
    ".add_images": (Severity.MEDIUM, "encodes images on the host"),
    ".add_figure": (Severity.MEDIUM, "draws a figure on the host"),
    ".add_graph": (Severity.MEDIUM, "traces the model again"),
    ".savefig": (Severity.MEDIUM, "draws and writes a figure on the host"),
    "torchvision.utils.save_image": (Severity.MEDIUM, "encodes and writes images on the host"),
    "cv2.imwrite": (Severity.MEDIUM, "encodes and writes an image on the host"),
    "wandb.Image": (Severity.MEDIUM, "encodes an image on the host"),
    "wandb.Histogram": (Severity.MEDIUM, "copies an entire tensor to the host"),
    "subprocess.run": (Severity.MEDIUM, "starts a process and waits for it"),
    "subprocess.check_output": (Severity.MEDIUM, "starts a process and waits for it"),
    "os.system": (Severity.MEDIUM, "starts a shell and waits for it"),
    "json.dump": (Severity.LOW, "writes a file"),
    ".to_csv": (Severity.LOW, "writes a file"),
    "torch.compile": (Severity.HIGH, "compiles anew"),
}
"""Calls that stall each step in which they run, with the severity and their effect."""
LONG_STEPS = r"(?i)\bgrpo|\bppo_?(trainer|config|full)|trajector|rollouts?_|\.generate\("
READS = ("item", "tolist", "cpu", "numpy")
CLOCKS = re.compile(r"(^|\.)(time|perf_counter\w*|elapsed_time|monotonic\w*)$")
"""Reads of a clock: the wait next to them is the measurement."""


@lint_rule(
    "forced-wait-each-step", "the loop does slow work on the host in every step", reads="python", each="training"
)
def forced_wait_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for calls that stall each step: `torch.cuda.empty_cache`, `synchronize`, `gc.collect`, `sleep`, saving a
    checkpoint, logging histograms, images or figures, and starting processes.

    ## Why it costs
    While the host is busy or waits, the device's queue runs empty, and the device idles. After `empty_cache`, the
    allocator must ask the driver for the same memory again. A checkpoint in each step takes longer than the step.

    ## How to recognize it
    The call runs unconditionally in each iteration, directly or in a function that the loop calls.

    ## What to do
    Remove the call, or make it every N steps or once per epoch. Waiting for the device is needed only around a time
    measurement.

    ## When it is wrong
    Ignore the finding if steps take minutes, or if their sizes vary so much that memory fragments. In the latter case,
    try `expandable_segments:True` first.
    """
    told: set[str] = set()
    is_long = _is_epoch(script, training) or script.has(LONG_STEPS)
    waits = any(one.is_certain and (one.last in READS or CLOCKS.search(one.name)) for one in training.events)
    for event in training.events if training.steps else ():
        known = event.name if event.name in EACH_STEP else f".{event.name.rpartition('.')[2]}"
        looped = bool(event.tests) and all(
            isinstance(one, FORS) and isinstance(script.loop_source(one), ast.Call) and not script.iterates_loader(one)
            for one in event.tests
        )
        if known in EACH_STEP and (event.is_certain or looped) and known not in told:
            told.add(known)
            yield from script.report(
                event,
                Severity.LOW if is_long or (waits and event.last == "synchronize") else EACH_STEP[known][0],
                f"{event.name}() in every step {EACH_STEP[known][1]}",
                "remove it, or call it every N steps or once per epoch",
            )


def _is_epoch(script: LintedScript, training: LoopStep) -> bool:
    """Whether each step of a loop is a whole epoch: the full batch of a small example."""
    return bool(re.search(r"(?i)epoch", script.name(getattr(training.loop, "target", training.loop))))


@lint_rule(
    "item-each-step", "the loop reads a value back from the device in every step", reads="python", each="training"
)
def item_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `.item()`, `.cpu()`, `.tolist()`, `.numpy()` and `float()` on values that a training loop computes.

    ## Why it costs
    The host waits until the device has computed the value, and when the host continues, nothing is queued. One read of
    the loss costs little; several reads, a read per parameter, or reads before `backward()` leave the device idle for a
    large part of the step.

    ## How to recognize it
    The call runs in each iteration on a value that has an autograd history. The severity is `low`, as a file does not
    show how long a step takes, and `medium` for a read of every parameter's gradient.

    ## What to do
    Add up `loss.detach()` on the device, and read it every N steps. The rule `host-sync` of `hotloop run` measures the
    cost.

    ## When it is wrong
    Ignore the finding if the next step depends on the value, or if training runs on a CPU.
    """
    reads: dict[str, list[LoopCall]] = {"loss": [], "grad": []}
    for event in training.events if training.steps and not _is_epoch(script, training) else ():
        is_float = event.name in ("float", "int") and len(event.call.args) == 1
        is_read = isinstance(event.call.func, ast.Attribute) and event.call.func.attr in READS
        inner = event.call.args[0] if is_float else getattr(event.call.func, "value", event.call)
        nested = isinstance(inner, ast.Call) and script.name(inner.func).endswith(READS)
        is_grad = (
            ".grad" in script.source(inner) and all(isinstance(one, FORS) for one in event.tests) and bool(event.tests)
        )
        if (
            (is_float or is_read)
            and not nested
            and (is_grad or (event.is_certain and script.gradient(inner) in ("graph", "cut")))
        ):
            reads["grad" if is_grad else "loss"].append(event)
    found = reads["grad"] or reads["loss"]
    times = "for every parameter in" if reads["grad"] else f"{len(found)} times in" if len(found) > 1 else "in"
    yield from script.report(
        bool(found) and found[0],
        Severity.MEDIUM if reads["grad"] else Severity.LOW,
        f"{script.source(found[0].call) if found else ''} synchronizes: the host waits for the device "
        f"{times} every step",
        "add up loss.detach() on the device and read it every N steps",
    )


def _column(script: LintedScript, line: int | None, offset: int | None) -> int:
    """The 1-based column, in characters, of an offset in bytes."""
    text = script.lines[(line or 1) - 1]
    return len(text.encode()[: offset or 0].decode("utf-8", "replace")) + 1


KEEPS = ("append", "extend", "appendleft")


@lint_rule("kept-graph", "a history keeps part of every step's graph", reads="python", each="training")
def kept_graph(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for values with an autograd history that a training loop adds to a sum, list, dict, attribute or meter that
    outlives the step.

    ## Why it costs
    The tensor holds the graph of its step: memory grows with each step. `backward()` frees the activations, so a list
    of losses that went backward grows slowly (low); without `backward()`, all activations stay until memory runs out.

    ## How to recognize it
    The rule follows the data flow: the value comes from the model without `.item()`, `.detach()` or `float`, its
    container is created outside the loop, and nothing calls `backward()` on it.

    ## What to do
    Use `total += loss.detach()`, which does not wait for the device. `hotloop lint --fix` rewrites a plain sum.

    ## When it is wrong
    Ignore the finding if another function calls `backward()` on the sum.
    """
    is_part = script.mentions(script.loop_source(training.loop) or training.loop, ACCUMULATION)  # of one step
    for target, value, node in _list_kept(script, training) if training.find("step") and not is_part else ():
        name, shown = script.name(target), script.source(value)
        gone = name in {
            script.name(part)
            for call in script.calls_of(".backward", ".manual_backward", ".grad")
            for part in script.said(call)
        }
        simple = isinstance(node, ast.AugAssign) and isinstance(value, ast.Name)
        again = [one for one in training.backwards if keyword(one.call, "retain_graph")]
        went = {part for one in training.backwards for part in script.slice(script.loss(one.call))}
        bound = {one for part in ast.walk(value) if isinstance(part, ast.Name) for one in script.origins(part)}
        appends = getattr(getattr(node, "func", node), "attr", "") in KEEPS
        is_freed = appends and not again and bool(bound) and bound <= went  # by backward()
        end = (value.end_lineno or 1, _column(script, value.end_lineno, value.end_col_offset)) if simple else (1, 1)
        edit = LintEdit(first_line=end[0], first_column=end[1], last_line=end[0], last_column=end[1], text=".detach()")
        yield from script.report(
            "?" not in name and not gone and not _is_reset(script, name, training, node) and node,
            Severity.LOW if is_freed else Severity.MEDIUM,
            f"{name} keeps the autograd graph of each {shown}: memory grows with every step",
            f"keep {shown}.detach() (or .item() every N steps)",
            edits=(edit,) if simple else (),
        )


def _list_kept(script: LintedScript, training: LoopStep) -> Iterator[tuple[ast.expr, ast.expr, ast.AST]]:
    """What a step adds to a container: the container, the value with a history, and the node."""
    pieces = dict.fromkeys((training.container, training.loop))
    for node in (one for piece in pieces for one in ast.walk(piece) if script.within(one, piece)):
        if script.without_gradients(node):
            continue
        target: ast.expr | None = None
        value = getattr(node, "value", None)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            target = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            again = isinstance(value, ast.BinOp) and script.name(node.targets[0]) in map(script.name, ast.walk(value))
            first = node.targets[0]
            adds = isinstance(first, ast.Subscript) and not isinstance(first.slice, (ast.Constant, ast.JoinedStr))
            target = first if again or adds else None  # under the same key, a value replaces the one before
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value = next((one for one in node.args[:4] if script.gradient(one) == "graph"), None)
            method = script.definition(node.func)
            keeps = _stores(script, method, node, value) if method is not None else node.func.attr in KEEPS
            target = node.func.value if value is not None and keeps else None
        while isinstance(target, ast.Subscript):
            target = target.value
        if target is not None and isinstance(value, ast.expr) and script.gradient(value) == "graph":
            yield target, value, node


def _stores(script: LintedScript, method: ast.AST, call: ast.Call, value: ast.expr | None) -> bool:
    """Whether a method adds an argument to its object unchanged."""
    if not isinstance(method, FUNCTIONS) or value is None or call.args.index(value) + 1 >= len(method.args.args):
        return False
    assumed: dict[ast.AST, str] = {method.args.args[call.args.index(value) + 1]: "graph"}
    for node in ast.walk(method):
        kept = [node.value] if isinstance(node, ast.AugAssign) else node.args if isinstance(node, ast.Call) else []
        goal = node.target if isinstance(node, ast.AugAssign) else getattr(node, "func", node)
        name = script.name(goal)
        is_kept = isinstance(node, ast.AugAssign) or name.endswith(tuple(f".{one}" for one in KEEPS))
        with_graph = is_kept and any(script.gradient(one, assumed) == "graph" for one in kept)
        if name.startswith("self.") and with_graph and not script.without_gradients(node):
            return True
    return False


def _is_reset(script: LintedScript, name: str, training: LoopStep, kept: ast.AST) -> bool:
    """Whether the container starts over in each step, or holds only the last few values."""
    inside = script.within(kept, training.container)
    if isinstance(training.container, FUNCTIONS) and "." not in name and inside:
        return True
    for node in ast.walk(training.container if inside else training.loop):
        goals = (
            node.targets
            if isinstance(node, (ast.Assign, ast.Delete))
            else [node.target]
            if isinstance(node, FORS)
            else []
        )
        parts = [part for goal in goals if not isinstance(goal, ast.Subscript) for part in ast.walk(goal)]
        again = isinstance(node, ast.Assign) and name in map(script.name, ast.walk(node.value))
        if (
            name in map(script.name, parts)
            and not again
            and (node in (training.container, training.loop) or script.loops_around(node) or inside)
        ):
            return True
    return any(
        one.name in {f"{name}.{end}" for end in ("clear", "zero_", "backward", "reset")} for one in training.events
    )


@lint_rule("carried-state", "a hidden state carries its graph to the next step", reads="python", each="training")
def carried_state(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a state that the model returns and gets as input in the next step, without `detach()` in between.

    ## Why it costs
    The second `backward()` reaches the graph of the first step, which was freed: it raises "Trying to backward through
    the graph a second time". With `retain_graph=True`, each step is slower than the step before.

    ## How to recognize it
    In one loop, the same name is passed to the model and assigned its result.

    ## What to do
    Use `hidden = hidden.detach()` (each part of a tuple) at the start of the step.

    ## When it is wrong
    Ignore the finding if another function detaches the state in place.
    """
    text = script.text_of(training.container)
    for event in training.events if training.container is training.loop and training.steps else ():
        goals = getattr(script.statement(event.call), "targets", ())
        bound = {script.name(one) for goal in goals for one in ast.walk(goal)} - {"?"}
        taken = bound & {script.name(one) for one in event.call.args[1:]}
        is_forward = event.is_certain and event.call is event.site and script.is_model(event.call.func)
        for name in taken if is_forward else ():
            stores = [
                one
                for one in ast.walk(training.container)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            ]
            yield from script.report(
                [one.id for one in stores].count(name) == 1 and f"{name}.detach_" not in text and event,
                Severity.HIGH,
                f"{name} carries the graph of each step to the next: the second backward() raises, or "
                "goes through all steps so far",
                f"detach {name} at the start of each step",
            )


@lint_rule("print-each-step", "the training loop prints or logs in every step", reads="python", each="training")
def print_each_step(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `print` in the body of a training loop that steps an optimizer, outside any condition.

    ## Why it costs
    A line per step means a write per step and rank, to a terminal, a pipe or a file on a shared file system. If the
    line prints a tensor, the host first waits for the device.

    ## How to recognize it
    The call runs in each iteration. The severity is `low`, as a file does not show how long a step takes.

    ## What to do
    Print every N steps. The rule `logging-overhead` of `hotloop run` measures the cost.

    ## When it is wrong
    Ignore the finding if a step takes seconds, because the cost of a line is then negligible.
    """
    logs = [one for one in training.events if one.name in ("print", "logging.info", "tqdm.tqdm.write", "tqdm.write")]
    logs += [one for one in training.events if one.name.endswith((".info", ".debug")) and "log" in one.name]
    first = next((one for one in logs if one.is_certain), None)
    parts = (
        [part for part in ast.walk(first.call) if isinstance(part, ast.expr) and part is not first.call]
        if first
        else []
    )
    reads = any(script.gradient(part) in ("graph", "cut") for part in parts)
    yield from script.report(
        first and bool(training.steps) and not _is_epoch(script, training) and first,
        Severity.LOW,
        f"{first.name if first else ''}() in every step"
        + (" reads the loss back: the host waits for the device" if reads else ""),
        "print every N steps",
    )


@lint_rule("swallowed-errors", "errors in a training step are caught and ignored", reads="python", each="training")
def swallowed_errors(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `except:`, `except Exception` and `except RuntimeError` around a step, after which the loop continues with
    the next batch.

    ## Why it costs
    If a rank skips a step, the other ranks wait in their all-reduce until NCCL's timeout. With a single rank, the
    handler hides out-of-memory errors and bugs: epochs pass in which nothing is learned, and half of a step's gradients
    remain.

    ## How to recognize it
    `backward()` is in the `try` block, and no handler raises the error again or ends the loop.

    ## What to do
    Catch errors that you expect where they occur (for a broken file, in the dataset), and let all other errors end the
    run.

    ## When it is wrong
    Ignore the finding if the handler calls a function that ends the process.
    """
    parallel = script.calls_of(".DistributedDataParallel", ".DDP", ".init_process_group")
    sites = [one.site for one in script.events(training.loop) if one.call in {each.call for each in training.backwards}]
    around = [*sites, *(one.call for one in training.backwards)] if training.find("step", "optimizer_step") else []
    blocks = [one for node in around for one in script.parents(node) if isinstance(one, ast.Try)]
    places = (training.container, training.scope, training.loop)
    inside = [one for one in blocks if any(script.within(one, each) for each in places)]
    for handler in (one for block in dict.fromkeys(inside) for one in block.handlers):
        kinds = (
            {script.name(part).rpartition(".")[2] for part in ast.walk(handler.type)} if handler.type else {"Exception"}
        )
        parts = [
            script.name(getattr(one, "func", one))
            for one in ast.walk(handler)
            if isinstance(one, (ast.Call, ast.Attribute))
        ]
        kept = {type(part) for part in ast.walk(handler)}
        ends = isinstance(handler.body[-1], (ast.Raise, ast.Break, ast.Return)) and ast.Continue not in kept
        ends = ends or any(re.search(r"exit|abort|kill|quit", part) for part in parts)
        clears = training.find("zero_grad")[:1]  # at the start of a step, or in the handler
        is_clear = bool(clears) and script.line(clears[0]) < script.line(training.backwards[0])
        half = "OutOfMemoryError" in kinds and not is_clear and not any(part.endswith("zero_grad") for part in parts)
        broad = kinds & {"Exception", "BaseException", "RuntimeError"}
        effect = (
            "the other ranks wait in their all-reduce until the timeout"
            if parallel
            else "failures go unnoticed" + ("" if is_clear else ", and half of a step's gradients remain")
        )
        yield from script.report(
            not (ends or ast.Raise in kept) and bool(broad or half) and handler,
            Severity.HIGH if parallel else Severity.MEDIUM,
            f"except {', '.join(sorted(broad or kinds))} swallows errors of the training step: {effect}",
            "catch only errors that you expect, where they occur, and raise the rest",
        )


@lint_rule("misused-scheduler", "a scheduler steps at the wrong time, in the wrong unit, or never", reads="python")
def misused_scheduler(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a scheduler that never steps, that steps before the optimizer or in two loops, or whose length counts
    epochs although it steps per batch (or the other way around).

    ## Why it costs
    The learning rate does not follow the intended curve: it stays constant, or falls to nothing in the first epoch.
    OneCycleLR raises an error if it steps too often.

    ## How to recognize it
    The scheduler is built in this file. The rule compares the loops in which it steps with those in which the optimizer
    steps, and its length with the numbers from which the length is computed.

    ## What to do
    Step the scheduler once per unit of its length, after `optimizer.step()`.

    ## When it is wrong
    Ignore the finding if another file steps the scheduler, or if the names of the numbers suggest the wrong unit.
    """
    if not script.training or script.has(r"[Ll]ightning|[Dd]eepspeed|DeepSpeed|ignite|Trainer\(|\.run_epoch"):
        return
    for call, name in script.calls:
        kind = name.rpartition(".")[2]
        if not ROLES["scheduler"].search(name) or kind == "_LRScheduler":
            continue
        made = [
            (step, event)
            for loop, step in script.epochs
            for event in script.events(loop)
            if _steps_it(script, event, call)
        ]
        for variable in [one for one, values in script.assigned.items() if call in values] if not made else ():
            last = re.escape(variable.rpartition(".")[2])
            used = re.findall(rf"\b{last}\b(?!\s*=[^=])(?!\.(?:state_dict|load_state|get_last))", script.text)
            yield from script.report(
                not used and call,
                Severity.MEDIUM,
                f"{variable} is built and never stepped: the learning rate never changes",
                f"call {variable}.step()",
            )
        if not made:
            continue
        yield from script.report(
            kind == "LambdaLR" and _gives_rate(script, call) and call,
            Severity.HIGH,
            "LambdaLR multiplies the optimizer's rate by what its function returns, which is a rate already: the "
            "product is tiny",
            "return a factor: 1.0 for the optimizer's own rate",
        )
        training, event = made[0]
        every = training.events if training.container is training.loop else script.events(training.loop)
        batches = {one.call for one in (*training.events, *every)}
        sites = {one.call for _, one in made}
        per_batch, apart = event.call in batches, len(sites) == 2 and script.exclude_each_other(*sites)
        place, field = LENGTHS.get(kind, (9, ""))
        length = keyword(call, field) or (call.args[place] if place < len(call.args) else None)
        unit, shown = (
            find_unit(script, length or keyword(call, "steps_per_epoch")),
            script.source(length) if length else "steps_per_epoch",
        )
        order = [one.call for one in training.events if one.call is event.call or one in training.steps]
        rarely = training.steps and all(_is_periodic(one) for one in training.steps) and len(training.backwards) == 1
        simple = event.is_certain and len(training.steps) == 1
        checks = (
            (
                len(sites & batches) == 1
                and len(sites) == 2
                and not apart
                and not any(isinstance(test, ast.expr) for _, one in made for test in one.tests),
                Severity.MEDIUM,
                "steps both per batch and per epoch",
            ),
            (
                per_batch and unit == "epochs" and not event.call.args,
                Severity.HIGH,
                f"counts epochs ({shown}) but steps every batch: the learning rate runs through its schedule in a "
                "fraction of the run",
            ),
            (
                not per_batch and unit == "batches",
                Severity.HIGH,
                f"counts batches ({shown}) but steps once per epoch: the learning rate hardly changes",
            ),
            (
                per_batch and event.is_certain and rarely,
                Severity.MEDIUM,
                "steps for each micro-batch, but the optimizer only after several",
            ),
            (
                per_batch and simple and order[0] is event.call,
                Severity.MEDIUM,
                "steps before the optimizer: the first value of the schedule is skipped",
            ),
            (
                kind == "ReduceLROnPlateau" and not (event.call.args or event.call.keywords),
                Severity.HIGH,
                "needs the metric: this step() raises TypeError",
            ),
            (
                kind == "ReduceLROnPlateau" and _is_against(script, event.call, keyword(call, "mode"), call),
                Severity.MEDIUM,
                "gets a metric that moves opposite to its mode: the learning rate falls while the model improves",
            ),
        )
        for severity, text in [(one[1], one[2]) for one in checks if one[0]][:1]:
            yield from script.report(
                event,
                severity,
                f"{kind} {text}",
                "step the scheduler once per unit of its length, after optimizer.step()",
            )


def _gives_rate(script: LintedScript, scheduler: ast.Call) -> bool:
    """Whether a LambdaLR's function returns a multiple of the rate that an optimizer of the file begins with."""
    given = scheduler.args[1] if len(scheduler.args) > 1 else keyword(scheduler, "lr_lambda")
    made = script.definition(given) if given is not None else None
    results = script.results(made) if isinstance(made, FUNCTIONS) else [getattr(given, "body", scheduler.func)]
    text = " ".join(map(ast.unparse, results))
    rates = [script.name(keyword(one, "lr") or one) for one, name in script.calls if ROLES["optimizer"].search(name)]
    found = [re.escape(one) for one in rates if "?" not in one]
    return any(re.search(rf"\b{one} \*|\* {one}\b", text) and not re.search(rf"/ \(?{one}\b", text) for one in found)


def _is_periodic(event: LoopCall) -> bool:
    """Whether a call runs only every few iterations."""
    return any(isinstance(part, ast.Mod) for test in event.tests for part in ast.walk(test))


def _steps_it(script: LintedScript, event: LoopCall, built: ast.Call) -> bool:
    is_step = isinstance(event.call.func, ast.Attribute) and event.call.func.attr == "step"
    return is_step and isinstance(event.call.func, ast.Attribute) and built in script.origins(event.call.func.value)


def _is_against(script: LintedScript, step: ast.Call, mode: ast.expr | None, made: ast.Call) -> bool:
    """Whether the metric of ReduceLROnPlateau, by its name, has the opposite direction to the mode."""
    name = script.name(step.args[0]).rpartition(".")[2] if step.args else ""
    said = constant(mode or (made.args[1] if len(made.args) > 1 else None)) if len(made.args) > 1 or mode else "min"
    up, down = bool(HIGHER.search(name)), bool(LOWER.search(name))
    return up != down and said == ("min" if up else "max")


BUILT = {
    "optimizer": "an optimizer is built in every pass of the training loop: its momentum and step count start over",
    "scheduler": "a scheduler is built in every pass of the training loop: its schedule starts over",
    "scaler": "a GradScaler is built in every pass of the training loop: its scale starts over",
    "wrapped": "the model is wrapped in every pass of the training loop: buckets and hooks are built again",
    "compiled": "torch.compile runs in every pass of the training loop: the model is compiled again",
}


@lint_rule("built-in-loop", "an object that should outlive the loop is built in it", reads="python")
def built_in_loop(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for optimizers, schedulers, scalers, wrappers, `torch.compile` and seeds that are set up inside a loop that
    trains a single model.

    ## Why it costs
    An optimizer that is built again loses its moments, a scheduler starts over, and a model is compiled again. A
    constant seed in the loop repeats the same order and the same augmentations in each epoch.

    ## How to recognize it
    The call runs in each pass of the loop, and the model is built outside it.

    ## What to do
    Build the object once, before the loop.

    ## When it is wrong
    Ignore the finding if each pass is a separate training run.
    """
    reported: set[ast.AST] = set()
    for loop, _ in script.epochs:
        events = script.events(loop)
        inside = {event.call for event in events}
        starts_over = ANEW.search(script.text_of(loop)) or SEPARATE.search(script.name(getattr(loop, "target", loop)))
        for event in events if inside.isdisjoint(script.models) and not starts_over else ():
            is_bare = event.last == "SGD" and not {"momentum", None} & {one.arg for one in event.call.keywords}
            if event.tests or event.call in reported or is_bare or script.without_gradients(event.call):
                continue
            role = next((role for role in BUILT if ROLES[role].search(event.name)), "")
            first = event.call.args[0] if event.call.args else None
            repeats = event.name in SEEDS and first is not None and not VARIES.search(script.source(first))
            repeats = repeats and not any(
                one.at == -1 or script.within(one.statement, loop)
                for part in ast.walk(event.call)
                if isinstance(part, ast.Name)
                for one in script.reaching(part)
            )
            if repeats or (role and first is not None and _outlives(script, event.call, first, inside)):
                reported.add(event.call)
                text = BUILT[role] if role else f"{event.name} with a constant seed {_SEEDED}"
                severity = Severity.HIGH if role == "compiled" else Severity.MEDIUM
                yield from script.report(
                    script.is_own(event.call) and event, severity, text, "move it before the loop", is_sure=False
                )


def _outlives(script: LintedScript, call: ast.Call, first: ast.expr, inside: Set[ast.AST]) -> bool:
    """Whether the model passed to a call is built entirely outside the loop."""
    own = set(ast.walk(call))
    made = {
        origin
        for part in script.said(first)
        for origin in script.origins(getattr(part, "value", part))
        if origin not in own
    }
    return made.isdisjoint(inside) and any(
        origin in script.models or (isinstance(origin, ast.Call) and script.scope(origin) is not script.scope(call))
        for origin in made
    )


SEPARATE = re.compile(r"(?i)run|fold|seed|trial|repeat|rep$|split|exp|config|round|task|stage|phase|combo|param")
ANEW = re.compile(r"reset_param|reinit|init_weights|weights_init|load_state_dict|\.reset\(")
"""Loops of separate trainings, by the name of their variable or because they put the model back."""
VARIES = re.compile(r"(?i)epoch|step|iter|rank|\bi\b|\+")
_SEEDED = "in every pass of the loop repeats the same random numbers"
SEEDS = ("torch.manual_seed", "numpy.random.seed", "random.seed", "torch.cuda.manual_seed_all")


_ANOMALY = "anomaly detection checks every backward for NaN: training is several times slower"
SWITCHES = {
    "torch.autograd.set_detect_anomaly": _ANOMALY,
    "torch.autograd.detect_anomaly": _ANOMALY,
    "torch.autograd.profiler.profile": "the profiler records every operation of the run",
    "torch.autograd.profiler.emit_nvtx": "emit_nvtx marks every operation of the run",
    "torch.autograd.gradcheck": "gradcheck computes numeric gradients",
}
DEBUGS = r"detect_anomaly|profiler|gradcheck|CUDA_LAUNCH|_DEBUG|_WAIT"
VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for its kernel: the host and the device take turns",
    "TORCH_DISTRIBUTED_DEBUG": "each collective is checked across ranks in every step",
    "NCCL_BLOCKING_WAIT": "the host waits in each collective",
}


@lint_rule("debug-switch", "a debugging switch slows down the entire run", reads="python")
def debug_switch(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for unconditional anomaly detection, profilers without a schedule, `CUDA_LAUNCH_BLOCKING` and the like.

    ## Why it costs
    These switches make every step slower, up to several times, and stay on in production runs.

    ## How to recognize it
    The call or variable is in a file that trains, outside any condition, with a constant that turns it on.

    ## What to do
    Remove the switch, or turn it on with an argument.

    ## When it is wrong
    Ignore the finding if the file exists only for debugging.
    """
    if not script.has(DEBUGS) or not (script.training or script.calls_of(".fit", ".train")):
        return
    for node in (*script.of[ast.Call], *script.of[ast.Assign]):
        text = ""
        if isinstance(node, ast.Call) and script.name(node.func) in SWITCHES:
            given = node.args[0] if node.args else keyword(node, "mode") or keyword(node, "enabled")
            text = SWITCHES[script.name(node.func)] if given is None or constant(given) is True else ""
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Subscript)
            and constant(node.value) in ("1", "DETAIL")
        ):
            key = str(constant(node.targets[0].slice))
            is_read = key != "TORCH_DISTRIBUTED_DEBUG" or not any(  # which torch reads when it is imported
                one.lineno < node.lineno
                for one in (*script.of[ast.Import], *script.of[ast.ImportFrom])
                if re.search(r"torch|accelerate|transformers|lightning", script.text_of(one))
            )
            text = VARIABLES.get(key, "") if is_read else ""
        optional = text and any(isinstance(one, ast.expr) for one in script.conditions(node, script.scope(node)))
        yield from script.report(
            bool(text) and not optional and node, Severity.MEDIUM, text, "remove it, or turn it on with an argument"
        )


@lint_rule("repeated-forward", "the model computes the same batch twice in a step", reads="python", each="training")
def repeated_forward(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for two identical calls of the trained model in one step, and for a complete validation pass in each step.

    ## Why it costs
    The second forward takes as much time as the first and, with gradients, as much memory. Validation in each step
    costs more than training itself.

    ## How to recognize it
    Both calls have the same code and run each time, and there is one backward call; or a loop over a loader runs under
    `no_grad` in each step.

    ## What to do
    Keep the output of the first call; validate once per epoch.

    ## When it is wrong
    Ignore the finding if the second call should give a different result, for example because of dropout.
    """
    seen: dict[str, LoopCall] = {}
    inner = script.iterates_loader(training.loop)
    for event in script.events(training.loop) if training.steps and len(training.backwards) == 1 else ():
        if script.stepped(event.call):
            seen.clear()  # the weights are new
        if not script.is_model(event.call.func) or not event.call.args:
            continue
        text, is_off = script.source(event.call), script.without_gradients(event.call) is not None
        validates = (
            is_off
            and bool(event.tests)
            and all(isinstance(one, FORS) and script.iterates_loader(one) for one in event.tests)
        )
        yield from script.report(
            inner and validates and script.runs_each_time(event.site, training.loop) and event.site,
            Severity.HIGH,
            "a complete validation pass runs in every step: it costs more than training itself",
            "validate once per epoch, or every N steps",
        )
        yield from script.report(
            text in seen
            and _binds_alike(script, event.call, seen[text].call)
            and event.is_certain
            and not is_off
            and seen[text].call is not event.call
            and not event.call.keywords
            and event,
            Severity.MEDIUM,
            f"{text} runs twice in every step: the second forward repeats the computation",
            "keep the output of the first call",
            is_sure=False,
        )
        seen.update({text: event} if event.is_certain and text and not is_off else {})


def _binds_alike(script: LintedScript, call: ast.Call, other: ast.Call) -> bool:
    """Whether no name in the arguments of a call is bound again between it and an equal call before it."""
    names = [[part for part in ast.walk(one) if isinstance(part, ast.Name)] for one in (other, call)]
    return all(script.reaching(one) == script.reaching(two) for one, two in zip(*names, strict=True))
