"""Checks of modules: the computations in their forward, and the parts that an optimizer never sees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import LintedScript
from hotloop.judge.lint.python_code import FUNCTIONS, constant, dotted, keyword

LEARNS = re.compile(
    r"torch\.nn\.(Linear|Conv\w*|LSTM|GRU|RNN|\w+Cell|Embedding\w*|\w*Norm\w*|MultiheadAttention|Dropout\w*|Bilinear|"
    r"Lazy\w+|Transformer\w*|PReLU|Parameter)$"
)


@lint_rule("unregistered-module", "layers in a plain list are not part of the model", reads="python")
def unregistered_module(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for layers and parameters that a module keeps in a plain list, tuple or dict, and for layers that are built
    in `forward`.

    ## Why it costs
    `parameters()` does not list them: the optimizer never trains them, `.to()` leaves them on the CPU, and no
    checkpoint contains them. A layer that is built in each forward has random weights each time; a dropout layer that
    is built there never turns off.

    ## How to recognize it
    A class that derives from `nn.Module` contains `self.x = [nn.Linear(...) ...]` or `self.x.append(nn.Linear(...))`,
    without a ModuleList, Sequential or ParameterList around it.

    ## What to do
    Use `nn.ModuleList`, `nn.ModuleDict` or `nn.ParameterList`, and build layers in `__init__`.

    ## When it is wrong
    Ignore the finding if the layers are also registered under other names, or are deliberately frozen.
    """
    if not script.has(MAY_HIDE):
        return
    lists = [one for one in script.of[ast.Assign] if isinstance(one.value, PLAIN) and "add_module" not in script.text]
    held = {script.class_of(one): one for one in lists if dotted(one.targets[0]).startswith("self.")}
    for owner in (one for one in held if isinstance(one, ast.ClassDef) and script.derives(one, r"(^|\.)\w*Module$")):
        calls = [one for one in ast.walk(owner) if isinstance(one, ast.Call)]
        registered = [part for one in calls if REGISTERS.search(script.name(one.func)) for part in ast.walk(one)]
        wrapped = {script.name(part) for part in registered}
        for node in (one for one in lists if script.class_of(one) is owner):
            name = script.name(node.targets[0])
            appended = [one for one in calls if script.name(one.func) == f"{name}.append"]
            built = [part for each in (node.value, *appended) for part in ast.walk(each) if isinstance(part, ast.Call)]
            layers = [one for one in built if _is_layer(script, one) and one not in registered]
            yield from script.report(
                name.startswith("self.") and bool(layers) and name not in wrapped and node,
                _cost(script),
                f"{name} is a plain list or dict: parameters() does not see its layers, so nothing "
                "trains, moves or saves them",
                "use nn.ModuleList, nn.ModuleDict or nn.ParameterList",
            )
    for call in (one.func for one in script.of[ast.Call] if isinstance(one.func, ast.Call)):
        is_layer = LEARNS.search(script.name(call.func)) and script.derives(script.class_of(call), r"(^|\.)\w*Module$")
        if is_layer and getattr(script.scope(call), "name", "").startswith("forward"):
            kind = script.name(call.func).rpartition(".")[2]
            drops = kind.startswith("Dropout")
            effect = "eval() does not turn it off" if drops else "its weights are random in every call, never trained"
            yield from script.report(
                call,
                Severity.LOW if drops and script.conditions(call, script.scope(call)) else _cost(script, drops),
                f"{kind} is built in forward: {effect}",
                "build it once in __init__",
            )


def _cost(script: LintedScript, drops: bool = False) -> Severity:
    """What an unregistered layer costs: high where the file trains; a file of inference code never does."""
    serves = INFERENCE.search(script.path) and not script.training
    trains = not drops and (script.training or script.models or script.calls_of(".fit"))
    return Severity.LOW if serves else Severity.HIGH if trains else Severity.MEDIUM


MAY_HIDE = r"self\.\w+[^=\n]*=\s*[\[({\\]|self\.\w+[^=\n]*=[^=\n]*,|\)\s*\("
"""A text that a file must contain for the rules below to find a list of layers, or a layer called where it is built."""
PLAIN = (ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.Tuple)
REGISTERS = re.compile(r"ModuleList|ModuleDict|Sequential|ParameterList|ParameterDict|register_|setattr")


def _is_layer(script: LintedScript, call: ast.Call) -> bool:
    made, name = script.definition(call.func), script.name(call.func)
    own = isinstance(made, ast.ClassDef) and script.derives(made, r"(^|\.)nn\.Module$")
    return bool(LEARNS.search(name)) or (own and made is not None and _learns(script, made))


def _learns(script: LintedScript, owner: ast.AST, depth: int = 0) -> bool:
    """Whether a class has parameters, a dropout or statistics: pooling and activations need no registration."""
    parts = [one.func for one in ast.walk(owner) if isinstance(one, ast.Call)] + getattr(owner, "bases", [])
    inner = [script.definition(one) for one in parts] if depth < 4 else []
    return any(LEARNS.search(script.name(one)) or script.name(one).endswith(STATEFUL) for one in parts) or any(
        isinstance(one, ast.ClassDef) and one is not owner and _learns(script, one, depth + 1) for one in inner
    )


STATEFUL = ("register_buffer", "register_parameter", "from_pretrained", "create_model", "get_model")
INFERENCE = re.compile(
    r"(?i)(^|/)[\w-]*(inference|infer|server|serving|predict|onnx|tensorrt|trt|export|deploy)[\w-]*(/|\.py$)"
)


@lint_rule("dropout-always-on", "a functional dropout ignores eval mode", reads="python")
def dropout_always_on(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `F.dropout(x)` without `training=self.training` in a module, and for a softmax over the batch.

    ## Why it costs
    The default of `training` is True: validation and inference drop activations too, and their results are random and
    worse. A softmax over dimension 0 mixes the samples of a batch.

    ## How to recognize it
    The call is in a method of a class that derives from `nn.Module`. The severity is `low` if the file does not set a
    rate above 0, or 0 is the default.

    ## What to do
    Use `F.dropout(x, p, training=self.training)` or `nn.Dropout`, and `softmax(dim=-1)`.

    ## When it is wrong
    Ignore the finding if you want dropout at inference (Monte Carlo dropout).
    """
    for call, name in script.calls if script.has("dropout|softmax|dropout_p") else ():
        if not DROPS.search(name):
            continue
        given = keyword(call, "dropout_p") or keyword(call, "p") or (call.args[1] if len(call.args) > 1 else None)
        layers = script.made(given.value) if isinstance(given, ast.Attribute) and given.attr == "p" else []
        rates = [
            number
            for one in (given, *(part for made in layers for part in made.args))
            if one is not None
            for number in script.numbers(one)
        ]
        is_off = given is not None and (not any(rates) or 0 in rates)
        drops = re.match(r"torch\.nn\.functional\.(dropout\w*|alpha_dropout)$", name) and len(call.args) < 3
        yield from script.report(
            drops
            and keyword(call, "training") is None
            and not re.search("(?i)prenet", getattr(script.class_of(call), "name", ""))  # Tacotron's always drops
            and script.derives(script.class_of(call), r"Module$")
            and not any("training" in script.source(one) for one in script.conditions(call, script.scope(call)))
            and call,
            Severity.LOW if is_off else Severity.MEDIUM,
            f"{name} without training=self.training stays on in eval mode: validation and inference are random",
            "F.dropout(x, p, training=self.training)",
        )
        rate = keyword(call, "dropout_p")
        yield from script.report(
            rate is not None
            and constant(rate) in (..., True)
            and script.derives(script.class_of(call), r"Module$")
            and not script.mentions(rate, re.compile("^training$"))
            and not any(constant(one) == 0 for one in script.origins(rate))
            and not any("training" in script.source(one) for one in script.conditions(call, script.scope(call)))
            and call,
            Severity.LOW if is_off else Severity.MEDIUM,
            f"{name} applies dropout_p in eval mode too: validation and inference drop attention at random",
            "dropout_p=self.dropout if self.training else 0.0",
        )
        over = constant(keyword(call, "dim") or (call.args[1] if len(call.args) > 1 else None))
        made = script.origins(call.args[0]) if name.endswith("softmax") and over == 0 and call.args else []
        yield from script.report(
            any(isinstance(one, ast.Call) and script.is_model(one.func) for one in made) and call,
            Severity.HIGH,
            f"{name} over dim=0 normalizes over the batch, not over the classes",
            "use dim=-1",
            is_sure=False,
        )


DROPS = re.compile(r"dropout\w*$|softmax$|scaled_dot_product_attention$")
LOSES = ("to", "cuda", "cpu", "detach", "float", "half", "long")
MAY_DO_NOTHING = (
    r"\.(zero_grad|step|backward|eval|train|update|detach_)\s*($|[;#\n])|(no_grad|inference_mode)\s*[:,)]"
    r"|(?m:^|[:;])[^=\n#]*\.(to|cuda|cpu|detach|float|half|long)\("
)
BARE = {
    "zero_grad": "gradients are not cleared",
    "step": "nothing steps",
    "backward": "no gradient is computed",
    "eval": "the mode does not change",
    "train": "the mode does not change",
    "update": "nothing is updated",
    "detach_": "nothing is detached",
}


@lint_rule("statement-without-effect", "a statement has no effect", reads="python")
def statement_without_effect(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for methods that are referenced but not called (`optimizer.zero_grad`), results that are thrown away
    (`images.to(device)`), and `with torch.no_grad:` without parentheses.

    ## Why it costs
    The line does nothing: gradients pile up, the model does not step, or the batch stays on the CPU and the next call
    raises an error.

    ## How to recognize it
    The entire statement is an expression. A tensor's `to()` returns a copy; a module's `to()` works in place and is not
    reported.

    ## What to do
    Add the parentheses, or assign the result.

    ## When it is wrong
    Ignore the finding if an attribute is read for its side effect.
    """
    if not script.has(MAY_DO_NOTHING):
        return
    for node in (*script.of[ast.Expr], *script.of[ast.With], *script.of[ast.AsyncWith]):
        value, text = getattr(node, "value", None) if isinstance(node, ast.Expr) else None, ""
        if isinstance(value, ast.Attribute) and value.attr in BARE and (script.role(value.value) or script.training):
            text = f"{script.source(value)} is not called: {BARE[value.attr]}"
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in LOSES:
            bound = script.reaching(value.func.value) if isinstance(value.func.value, ast.Name) else []
            copies = bool(bound) and not script.has(r"tokenizer|transformers|torch_geometric|dgl|Batch")
            from_loader = copies and script.gradient(value.func.value) == "plain"
            is_tensor = value.func.attr == "detach" and bool(script.gradient(value.func.value))
            lost = (from_loader or is_tensor) and not (value.func.attr == "detach" and value.args)
            text = (
                f"the result of {script.source(value)} is thrown away: a tensor's method returns a copy" if lost else ""
            )
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            names = [script.name(one.context_expr) for one in node.items]
            text = (
                "the context manager lacks its parentheses: the statement raises an error"
                if {"torch.no_grad", "torch.inference_mode"} & set(names)
                else ""
            )
        if text:
            given = ast.unparse(value) if isinstance(value, ast.Call) else ""
            is_slight = re.search(r"\.grad\.detach\(|\.(float|half|long)\(|\.to\((dtype=)?torch\.", given)
            severity = Severity.LOW if is_slight else Severity.HIGH
            yield from script.report(node, severity, text, "assign the result, or add the parentheses")


@lint_rule("unused-argument", "a command-line argument changes nothing", reads="python", is_proof=True)
def unused_argument(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for `argparse` arguments that no code reads, in a file that trains.

    ## Why it costs
    If you set an argument such as `--weight-decay`, you expect an effect, but runs that should differ are the same.

    ## How to recognize it
    The file reads the parsed arguments only as attributes, does not pass them on as a whole, and never reads this
    attribute.

    ## What to do
    Use the argument, or remove it.

    ## When it is wrong
    Ignore the finding if a launcher passes arguments that the script must accept.
    """
    if not script.training or script.has(r"vars\(|__dict__|getattr\(|asdict|namespace|[Ll]ightning|[Dd]eep[Ss]peed"):
        return
    parsed = [
        name
        for name, values in script.assigned.items()
        for one in values
        if script.name(getattr(one, "func", one)).endswith(".parse_args")
    ]
    names = [one for one in script.of[ast.Name] if one.id in parsed and isinstance(one.ctx, ast.Load)]
    if len(parsed) != 1 or any(not _is_known(script, one) for one in names):
        return
    read = {one.attr for one in script.of[ast.Attribute]}
    for call in script.calls_of(".add_argument"):
        flag = next(
            (one.value for one in call.args if isinstance(one, ast.Constant) and str(one.value).startswith("--")), ""
        )
        name = (
            str(constant(keyword(call, "dest"))) if keyword(call, "dest") else str(flag).lstrip("-").replace("-", "_")
        )
        yield from script.report(
            bool(name) and name not in read and not re.search(r"local.?rank|help|version", name) and call,
            Severity.MEDIUM if HYPER.search(name) else Severity.LOW,
            f"nothing reads {flag!s}: setting it changes nothing",
            f"use {parsed[0]}.{name}, or remove the argument",
        )


HYPER = re.compile(r"(^|_)(lr|\w*decay|batch|epochs?|seed|clip|warmup|accum|momentum|dropout|workers|resume|amp|fp16)")


def _is_known(script: LintedScript, name: ast.Name) -> bool:
    """Whether all arguments together are passed to a function of this file, or printed."""
    around = script.parent(name)
    made = script.definition(around.func) if isinstance(around, ast.Call) else None
    prints = isinstance(around, ast.Call) and script.name(around.func) == "print"
    return isinstance(around, ast.Attribute) or prints or (isinstance(made, FUNCTIONS) and script.is_own(made))
