"""Checks of the inputs of losses: shapes, activations, padding, and graphs that should end before them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript, LoopStep
from hotloop.judge.lint.python_code import FUNCTIONS, constant, keyword

REGRESSION = re.compile(r"(^|\.)(mse_loss|l1_loss|smooth_l1_loss|huber_loss|MSELoss|L1Loss|SmoothL1Loss|HuberLoss)$")
BANNED = re.compile(r"(^|\.)(binary_cross_entropy|BCELoss)$")
ENTROPY = re.compile(r"(^|\.)(cross_entropy|CrossEntropyLoss|nll_loss|NLLLoss)$")
_OVER_FEATURES = r"(max|min|sum|mean|amax|amin|argmax|median|norm|logsumexp)\((dim=)?-?1"
COLUMN, ROW = "(B, 1)", "(B,)"
RESULTS = (
    (r"(view|reshape)\(-1, 1\)", COLUMN, None),
    (r"(view|reshape)\(-1\)", ROW, None),
    (r"gather\(-?1\b.*", COLUMN, None),
    (rf"{_OVER_FEATURES}\)", ROW, None),
    (rf"{_OVER_FEATURES}, (keepdim=)?True\)", COLUMN, None),
    (r"unsqueeze\(-?1\)", COLUMN, ROW),
    (r"squeeze\((-?1)?\)", ROW, COLUMN),
)
"""Calls without their object -> the shape of the result, and the shape that they need."""
KEEPS_SHAPE = r"(to|cuda|cpu|float|detach|clone|clamp|contiguous|requires_grad_|double|relu|sigmoid)\(.*"


def _kinds(script: LintedScript, call: ast.Call) -> list[str]:
    """The full names of the losses that a call may be."""
    made = [script.name(one.func) for one in script.origins(call.func) if isinstance(one, ast.Call)]
    return made or [script.name(call.func)]


def _shape(script: LintedScript, value: ast.AST, depth: int = 0) -> str:
    """``(B, 1)`` or ``(B,)`` where the operation that computes a value shows it; else empty."""
    parts: list[ast.AST] = []
    if isinstance(value, ast.Attribute) and value.attr == "values":
        parts = [value.value]
    elif isinstance(value, (ast.Name, ast.Attribute)):
        bound = script.reaching(value)
        parts = [one.value for one in bound] if all(one.at in (None, 0) for one in bound) else []
    elif isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, ast.UnaryOp):
        parts = [value.operand]
    elif isinstance(value, ast.Subscript):
        index = ast.unparse(value.slice)
        if index != "0" or not script.name(getattr(value.value, "func", value)).endswith(PAIRS):
            return COLUMN if re.fullmatch(r"\(?:, None\)?", index) else ROW if re.fullmatch(COLUMN_OF, index) else ""
        parts = [value.value]
    elif isinstance(value, ast.Call) and depth <= MOST_STEPS:
        return _shape_of_call(script, value, depth)
    shapes = {_shape(script, part, depth + 1) for part in parts} if depth <= MOST_STEPS else set()
    shapes -= {""} if isinstance(value, ast.BinOp) else set()
    return shapes.pop() if len(shapes) == 1 else ""


PAIRS = (".max", ".min", ".topk", ".sort")
COLUMN_OF = r"\(?:, -?\d+\)?"
MOST_STEPS = 8


def _shape_of_call(script: LintedScript, call: ast.Call, depth: int) -> str:
    name = script.name(call.func)
    is_torch = name.startswith("torch.") and bool(call.args)
    inner = call.args[0] if is_torch else getattr(call.func, "value", None)
    arguments = ", ".join(ast.unparse(part) for part in (*call.args[is_torch:], *call.keywords))
    text = f"{name.rpartition('.')[2]}({arguments})"
    if inner is not None and re.fullmatch(KEEPS_SHAPE, text):
        return _shape(script, inner, depth + 1)
    for pattern, shape, needed in RESULTS:
        if re.fullmatch(pattern, text):
            return shape if needed is None or (inner and _shape(script, inner, depth + 1) == needed) else ""
    layers = [layer for layer in script.ends(call) if layer is not call]
    made = (script.definition(layer.func) for layer in script.made(call.func, inside=True))
    code = " ".join(ast.unparse(definition) for definition in made if definition is not None)
    is_column = layers and all(re.match(r"[\w.]*Linear\(.+, 1[,)]", ast.unparse(layer)) for layer in layers)
    return COLUMN if is_column and not re.search(r"\.(squeeze|view|flatten|reshape)\(", code) else ""


@lint_rule("mismatched-loss", "a loss gets inputs that do not fit it", reads="python")
def mismatched_loss(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for regression losses that compare shapes `(B, 1)` and `(B,)`, `BCELoss` under autocast, padding that counts
    in the loss, and losses over all sampled nodes of a `NeighborLoader`.

    ## Why it costs
    `(B, 1)` and `(B,)` broadcast to `(B, B)`: each value is fitted to all targets. `BCELoss` raises an error under
    autocast on CUDA. The model learns padding that is not ignored (-100); sampled neighbors leak the labels of test
    nodes.

    ## How to recognize it
    The rule traces both arguments to the operations that determine their shape, and the loader to its class.

    ## What to do
    Use `squeeze(1)` or `unsqueeze(1)` for shapes, `BCEWithLogitsLoss` under autocast, `ignore_index` or -100 for
    padding, and `[:batch.batch_size]` for sampled nodes.

    ## When it is wrong
    Ignore the finding if another file masks the padding.
    """
    sampled = script.calls_of(".NeighborLoader", ".HGTLoader", ".NeighborSampler")
    pads = [script.source(one.args[0]) for one in script.calls_of(".pad_sequence") if one.args]
    pads = [one for one in pads if re.search(r"(?i)label|target|tgt|trg|\by", one)]
    handled = not pads or script.has(r"ignore_index|-100|pack_padded|mask")
    for call, name in script.calls if script.training or "autocast" in script.text else ():
        if len(call.args) < 2 or not re.search(
            r"(?i)loss|entropy|criterion|bce|mse|loss_fn|\?", name.rpartition(".")[2]
        ):
            continue
        kinds = _kinds(script, call)
        if all(REGRESSION.search(one) for one in kinds):
            shapes = [_shape(script, one) for one in call.args[:2]]
            yield from script.report(
                "" not in shapes and shapes[0] != shapes[1] and call,
                Severity.HIGH,
                f"{name} broadcasts the shapes {shapes[0]} and {shapes[1]} to (B, B): each value is fitted to all "
                "targets",
                "give both the same shape: squeeze(1) or unsqueeze(1)",
            )
        cast = _autocast_around(script, call) if all(BANNED.search(one) for one in kinds) else None
        yield from script.report(
            cast is not None and call,
            Severity.HIGH,
            f"{kinds[0].rpartition('.')[2]} raises RuntimeError under autocast on CUDA: it is unsafe in half precision",
            "remove the sigmoid and use BCEWithLogitsLoss (binary_cross_entropy_with_logits)",
            is_sure=cast is not None and keyword(cast, "enabled") is None,
        )
        if all(ENTROPY.search(one) for one in kinds):
            loops = script.loops_around(call)
            origins = script.origins(script.loop_source(loops[0]) or call) if loops and sampled else []
            parts = [one for arg in call.args[:2] for one in script.said(arg)]
            masked = any(isinstance(one, ast.Slice) for one in parts) or {
                word for one in parts for word in (getattr(one, "attr", ""), getattr(one, "id", ""))
            } & {"batch_size", "train_mask", "n_id", "input_id"}
            yield from script.report(
                bool(origins)
                and all(one in sampled for one in origins)
                and not masked
                and not script.without_gradients(call)
                and call,
                Severity.HIGH,
                "the loss counts all sampled neighbors, not the seed nodes: labels of validation and test nodes leak",
                "use the first batch.batch_size rows: out[:batch.batch_size], y[:batch.batch_size]",
            )
            yield from script.report(
                bool(pads) and not handled and script.gradient(call.args[0]) == "graph" and call,
                Severity.MEDIUM,
                f"padding counts in the loss: {pads[0] if pads else ''} is padded and no ignore_index excludes it",
                "pad labels with -100, or set ignore_index",
                is_sure=False,
            )


def _autocast_around(script: LintedScript, node: ast.AST) -> ast.Call | None:
    """The innermost CUDA ``autocast`` whose ``with`` contains a node."""
    for block in (one for one in script.parents(node) if isinstance(one, (ast.With, *FUNCTIONS))):
        for item in block.items if isinstance(block, ast.With) else ():
            cast = item.context_expr
            if isinstance(cast, ast.Call) and script.name(cast.func).endswith("autocast"):
                kind = constant(cast.args[0] if cast.args else keyword(cast, "device_type"))
                on_gpu = kind == "cuda" or ".cuda." in script.name(cast.func)
                return cast if on_gpu and constant(keyword(cast, "enabled")) is not False else None
        if not isinstance(block, ast.With):
            break
    return None


@lint_rule("unmasked-labels", "the labels include the padding of the inputs", reads="python")
def unmasked_labels(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `labels = input_ids.clone()` of a padded batch without -100 for the padding.

    ## Why it costs
    The loss counts the padding: the model learns to produce padding, short texts have little weight, and the logged
    loss is too low.

    ## How to recognize it
    The function pads, uses the ids as labels and does not change them afterward; no transformers collator masks them.

    ## What to do
    Use `labels[attention_mask == 0] = -100`, or `DataCollatorForLanguageModeling(tokenizer, mlm=False)`.

    ## When it is wrong
    Ignore the finding if another file sets -100.
    """
    ends = script.has(r"\.pad_token(_id)? *= *[^\n]*eos_token") and script.has(r"(\+|\{) *[\w.]*\.eos_token\b")
    for call in script.calls_of(".DataCollatorForLanguageModeling") if ends else ():
        yield from script.report(
            constant(keyword(call, "mlm")) is False and call,
            Severity.MEDIUM,
            "the padding token is the end token, which the texts contain: the collator removes both from the labels, "
            "and the model does not learn to stop",
            "use a padding token of its own",
            is_sure=False,
        )
    if "labels" not in script.text or script.has(r"DataCollatorFor|ignore_index|loss_mask|DataCollatorWithFlattening"):
        return
    for node in script.of[ast.Assign]:
        target, scope = node.targets[0], script.scope(node)
        is_label = isinstance(target, ast.Subscript) and constant(target.slice) == "labels"
        if not is_label or not isinstance(scope, FUNCTIONS) or "input_ids" not in script.source(node.value):
            continue
        text = script.text_of(scope)
        copies = re.search(
            r"^(copy\.deepcopy\(|list\()?[\w.\[\]\"']*input_ids[\"']?\]?(\.clone\(\)|\.copy\(\)|\[:\])?\)?$",
            script.source(node.value),
        )
        padded = re.search(r"\.pad\(|pad_sequence\(|padding\s*=\s*(True|[\"'](max_length|longest))", text)
        yield from script.report(
            copies and padded and not re.search(r"-\s*100|masked_fill|where\(|ignore", text) and node,
            Severity.MEDIUM,
            "labels are the padded input_ids: the loss counts the padding",
            "set labels to -100 where attention_mask is 0, or use DataCollatorForLanguageModeling(mlm=False)",
            is_sure=False,
        )


_APART = "target|momentum|shadow|frozen|old"
TARGETS = re.compile(rf"(?i)(^|_)(teacher|ema)(_|\d|$)|(^|_)({_APART})_[a-z]|[a-z]\d?_({_APART})\d?$")


@lint_rule("aliased-model", "a copy of a model is the model itself", reads="python")
def aliased_model(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a target network, teacher or moving average that is the trained model itself, assigned without a copy.

    ## Why it costs
    Both names refer to the same module: each step changes the target too, and copying weights does nothing.

    ## How to recognize it
    The name suggests a different model, but its only value is the model whose parameters an optimizer has.

    ## What to do
    Create it with `copy.deepcopy(model)`, and freeze it.

    ## When it is wrong
    Ignore the finding if the name is only another word for the trained model.
    """
    for name, values in script.assigned.items() if script.training and script.models else ():
        value = values[0] if len(values) == 1 and TARGETS.search(name.rpartition(".")[2]) else None
        while (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in ("to", "eval", "cuda")
        ):
            value = value.func.value
        plain = isinstance(value, (ast.Name, ast.Attribute)) and not TARGETS.search(script.name(value))
        made = script.origins(value) if plain and value is not None else []
        yield from script.report(
            bool(made) and all(one in script.models and isinstance(one, ast.Call) for one in made) and value,
            Severity.HIGH,
            f"{name} is {script.source(value) if value else ''} itself, not a copy: each step changes both, and the "
            "two never differ",
            f"{name} = copy.deepcopy({script.source(value) if value else ''})",
        )


@lint_rule(
    "undetached-input", "a loss goes back through a model that its step does not train", reads="python", each="training"
)
def undetached_input(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for a discriminator's loss on fakes that are not detached, teachers and target networks without `no_grad`, and
    advantages that keep their graph.

    ## Why it costs
    The backward pass goes through a second network to compute gradients that are cleared before they are used. That
    costs the time and memory of another backward pass. A target or advantage that keeps its graph also changes what the
    model learns.

    ## How to recognize it
    The rule follows the data flow: it looks for calls of other trained models whose results reach the loss between a
    backward call and the step after it.

    ## What to do
    Use `fake.detach()`, and compute teachers, targets and advantages under `torch.no_grad()`.

    ## When it is wrong
    Ignore the finding if both networks should learn from this loss.
    """
    optimizers = {script.stepped(one.call) for one in training.steps}
    order = [one for one in training.events if one in training.backwards or one in training.steps]
    for at, backward in enumerate(order if len(optimizers) > 1 else ()):
        after = [one for one in order[at + 1 :] if one in training.steps]
        until = next((n for n, one in enumerate(order[at + 1 :]) if one in training.backwards), len(order))
        steps = [one for one in order[at + 1 : at + 1 + until] if one in after]
        again = keyword(backward.call, "retain_graph") is not None  # the graph is used by a later backward
        if again or backward not in training.backwards or len({script.stepped(one.call) for one in steps}) != 1:
            continue
        mine = _trained(script, steps[0].call)
        calls = list(_model_calls(script, script.loss(backward.call)))
        for call, made in calls if mine else ():
            inner = [
                (one, other)
                for arg in call.args
                for one, other in _model_calls(script, arg)
                if made in mine and other not in mine and other in script.models
            ]
            if inner:
                yield from script.report(
                    not script.has(r"requires_grad_?\(?\s*=?\s*False|toggle_grad|set_requires_grad") and backward,
                    Severity.MEDIUM,
                    f"this backward also goes through {script.source(inner[0][0].func)}, whose output is not detached: "
                    f"{script.stepped(steps[0].call)} uses none of these gradients",
                    f"detach it: {script.source(call.func)}(x.detach()), or compute it under torch.no_grad()",
                )
                break
    for event in training.events:
        name = event.name.rpartition(".")[2]
        is_off = script.without_gradients(event.call) or any(
            script.without_gradients(one) for one in script.callers_of(event.call)
        )
        known = TARGETS.search(name) and not script.has(r"requires_grad") and not is_off and event.call.args
        put = bool(known) and any(
            script.receiver(one) == event.name for one in script.calls_of(".eval", ".load_state_dict")
        )
        scope = script.scope(event.call)
        parts = ast.walk(scope) if put and isinstance(scope, FUNCTIONS) else script.of[ast.Attribute] if put else ()
        detached = any(isinstance(one, ast.Attribute) and one.attr in ("detach", "detach_", "data") for one in parts)
        yield from script.report(
            put and not detached and not script.is_trained(event.call.func) and event,
            Severity.MEDIUM,
            f"{event.name}(...) builds a graph and keeps its activations, although it is not trained: nothing turns "
            "gradients off or detaches it",
            "call it under torch.no_grad()",
            is_sure=False,
        )
    for node in (part for one in training.backwards for part in script.said(script.loss(one.call))):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for policy, factor in ((node.left, node.right), (node.right, node.left)):
                is_policy = re.search(r"(?i)log_?p|logp|ratio|surr", script.source(policy))
                is_advantage = isinstance(factor, ast.Name) and re.search(r"(?i)adv", factor.id)
                yield from script.report(
                    bool(is_policy and is_advantage) and script.gradient(factor) == "graph" and node,
                    Severity.MEDIUM,
                    f"{script.source(factor)} keeps its graph: the policy's loss changes the critic too",
                    f"use {script.source(factor)}.detach()",
                )


def _trained(script: LintedScript, step: ast.Call) -> set[ast.AST]:
    """The models whose parameters a step's optimizer has."""
    value = step.args[0] if step.args else getattr(step.func, "value", step)
    made = script.origins(value)
    return {model for model, optimizer in script.models.items() if optimizer in made}


def _model_calls(script: LintedScript, value: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """The model calls in a value's graph, each with the origin of its model."""
    for node in script.slice(value):
        if isinstance(node, ast.Call) and not script.without_gradients(node):
            yield from ((node, one) for one in script.origins(node.func, inside=True) if one in script.models)


@lint_rule(
    "gathered-without-gradient",
    "a collective (all_gather) cuts the gradient of a loss's inputs",
    reads="python",
    each="training",
)
def gathered_without_gradient(script: LintedScript, training: LoopStep) -> Iterator[LintFinding]:
    """## What it does
    Looks for `torch.distributed.all_gather` of a model's output in a training step, if the result goes into the loss.

    ## Why it costs
    Gathered tensors have no gradient: a contrastive loss ignores all samples except those of its other argument, and
    the model learns from only a fraction of the batch.

    ## How to recognize it
    The gathered tensor has a history, and the function does not restore its own part (`gathered[rank] = features`).

    ## What to do
    Use `torch.distributed.nn.functional.all_gather`, or restore the rank's own part.

    ## When it is wrong
    Ignore the finding if the gathered values are only used for metrics.
    """
    for event in training.find("all_gather", "all_gather_into_tensor"):
        scope = script.scope(event.call)
        text = script.text_of(scope) if isinstance(scope, FUNCTIONS) else script.text
        own = re.search(r"\[[^\]\n]*rank[^\]\n]*\]\s*=|autograd|distributed\.nn|(?i:metric|logg|print|acc)", text)
        cut = script.without_gradients(event.call) or event.tests
        yield from script.report(
            "distributed" in event.name
            and len(event.call.args) > 1
            and not own
            and not cut
            and script.gradient(event.call.args[1]) == "graph"
            and event,
            Severity.MEDIUM,
            f"all_gather returns {script.source(event.call.args[1]) if len(event.call.args) > 1 else ''} without its "
            "gradient: the loss learns from this rank's part at most",
            "use torch.distributed.nn.functional.all_gather, or gathered[rank] = features",
            is_sure=False,
        )
