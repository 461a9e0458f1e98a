"""Checks of the state that a training script saves and loads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.formats.script import ROLES, LintedScript
from hotloop.judge.lint.python_code import FUNCTIONS, Function, constant, keyword
from hotloop.judge.lint.script_words import HIGHER, LOWER, SHARDS

PREFIXES = {"wrapped": "module.", "compiled": "_orig_mod."}
"""Wrappers -> the prefix that they add to each name of a state dict."""


@lint_rule("wrapper-prefix", "a checkpoint of a wrapped model is loaded into a bare one", reads="python")
def wrapper_prefix(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a saved `state_dict()` of a model that is wrapped in DDP, DataParallel or `torch.compile`, where the file
    loads it into a model that is not wrapped; or the other way around.

    ## Why it costs
    The saved names begin with `module.` or `_orig_mod.`. `load_state_dict` raises an error; with `strict=False`, it
    loads nothing and reports nothing, and the run continues with random weights.

    ## How to recognize it
    The rule traces the saved model and the loaded model to their wrappers. No code removes the prefix.

    ## What to do
    Save `model.module.state_dict()` (or `model._orig_mod.state_dict()` for a compiled model).

    ## When it is wrong
    Ignore the finding if another checkpoint is loaded.
    """
    if not script.calls_of("torch.save") or script.has(
        r"removeprefix|[\"']module\.|_orig_mod|consume_prefix|strip_prefix|unwrap_model"
    ):
        return
    saved: dict[str, ast.Call] = {}
    classes = set[str]()
    for call in (one for one in script.calls_of("torch.save") if one.args):
        states = [
            one
            for one in script.said(call.args[0])
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        ]
        models = [
            one.func.value for one in states if isinstance(one.func, ast.Attribute) and one.func.attr == "state_dict"
        ]
        saved.update({_wrapper(script, one): call for one in models if _wrapper(script, one) or script.is_model(one)})
        classes |= {
            script.name(made.func) for one in models if _wrapper(script, one) for made in script.made(one, inside=True)
        }
    role = next((one for one in PREFIXES if list(saved) == [one]), "")
    for load in script.calls_of(".load_state_dict") if role else ():
        target = getattr(load.func, "value", load)
        made = {script.name(one.func) for one in script.made(target, inside=True)}
        known = bool(made & classes) and not script.role(target) and not NO_MODEL.search(script.name(target))
        from_file = any(
            isinstance(one, ast.Call) and script.name(one.func) == "torch.load" for one in script.said(load)
        )
        loose = constant(keyword(load, "strict")) is False
        yield from script.report(
            known and from_file and load,
            Severity.HIGH,
            f"the checkpoint of line {saved[role].lineno} has names with the prefix {PREFIXES[role]}, "
            "which this model lacks: "
            + ("strict=False hides that nothing is loaded" if loose else "load_state_dict raises"),
            "save model.module.state_dict() (or strip the prefix before loading)",
        )


NO_MODEL = re.compile(r"(?i)optim|sched|scaler|(^|[._])ema")


def _wrapper(script: LintedScript, model: ast.AST) -> str:
    """The wrapper of a model on any path that leads here."""
    if any(isinstance(one, ast.Attribute) and one.attr in ("module", "_orig_mod") for one in script.said(model)):
        return ""
    role = script.role(model)
    made = [script.name(one.func) for one in script.origins(model) if isinstance(one, ast.Call)]
    return role if role in PREFIXES and not any(SHARDS.search(one) for one in made) else ""


@lint_rule("incomplete-checkpoint", "a resumed run does not restore everything that it needs", reads="python")
def incomplete_checkpoint(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    In scripts that resume training, looks for an optimizer, scheduler or scaler that is not saved or not loaded, keys
    that are never saved, and an epoch that is trained again.

    ## Why it costs
    After a restart, Adam's moments and the learning rate start over: the loss jumps, and the result is worse without
    any error. A key that was not saved ends the resumed run with a KeyError.

    ## How to recognize it
    The file loads a model and an epoch or step before it trains. The rule compares the objects that the file saves with
    those that it loads.

    ## What to do
    Save and load model, optimizer, scheduler, scaler and `epoch + 1` together, with `map_location="cpu"`.

    ## When it is wrong
    Ignore the finding if a pretrained model is loaded, and the epoch belongs to another run.
    """
    if not script.training:
        return
    loads, saves = script.calls_of("torch.load"), [call for call in script.calls_of("torch.save") if call.args]
    resumed = [
        node
        for node in (script.of[ast.Subscript] if loads and saves else ())
        if constant(node.slice) in COUNTERS
        and set(loads) & set(script.origins(node.value))
        and isinstance(script.statement(node), (ast.Assign, ast.AnnAssign, ast.AugAssign))
    ]
    for origin, names in script.states.items() if resumed and not script.has(OTHERS_SAVE) else ():
        uses = _uses_of(script, names)
        role, name = script.role(origin), min(names)
        missing = ["saved"] * ("state_dict" not in uses) + ["loaded"] * ("load_state_dict" not in uses)
        yield from script.report(
            role in STATES
            and "" not in uses
            and bool(missing)
            and not (role == "scaler" and script.has("enabled="))
            and resumed[0],
            Severity.MEDIUM,
            f"resumes, but the state of {name} is never {' or '.join(missing)}: the {role} starts "
            "over after each restart",
            f"save {name}.state_dict() with the model and load it here",
        )
    pairs = [
        (key, value)
        for save in saves
        for one in script.said(save.args[0])
        if isinstance(one, ast.Dict)
        for key, value in zip(one.keys, one.values, strict=True)
    ]
    epochs = [value.id for key, value in pairs if constant(key) == "epoch" and isinstance(value, ast.Name)]
    for begin in (one for one in resumed if constant(one.slice) == "epoch" and epochs):
        starts = {script.name(goal) for goal in getattr(script.statement(begin), "targets", ())}
        ranges = [
            loop
            for loop, _ in script.epochs
            if starts & {script.name(one) for one in ast.walk(getattr(loop, "iter", begin))}
        ]
        shifted = isinstance(script.parent(begin), ast.BinOp) or script.has(r"start\w*\s*\+\s*1|\+=\s*1")
        yield from script.report(
            bool(ranges) and not shifted and epochs[0] == script.name(getattr(ranges[0], "target", begin)) and begin,
            Severity.LOW,
            f"resumes at an epoch that was already finished when saved: that {epochs[0]} is trained "
            "twice after each restart",
            "start at checkpoint['epoch'] + 1",
        )


OTHERS_SAVE = r"save_state|load_state\(|getattr\(|vars\(|__dict__|locals\(|globals\(|pickle|\?\.state_dict"
"""Calls that save objects without getting them by name."""
STATES = ("optimizer", "scheduler", "scaler")
_HARMLESS = re.compile(r"\.(step|unscale_|prepare|minimize)$|^(print|isinstance|id|type|len)$")


def _uses_of(script: LintedScript, names: set[str]) -> set[str]:
    """The attributes that are read of objects under these names; with an empty name where an object is put into
    something, or passed to something, whose further use is unknown."""
    todo, uses = set(names), set[str]()
    done: set[str] = set()
    while todo - done:
        done |= todo
        for node in (*script.of[ast.Name], *script.of[ast.Attribute]):
            last = node.id if isinstance(node, ast.Name) else node.attr
            if last not in todo or not isinstance(node.ctx, ast.Load):
                continue
            around = script.parent(node)
            word = around.arg if isinstance(around, ast.keyword) else None
            around = script.parent(around) if isinstance(around, ast.keyword) else around
            definition = script.definition(around.func) if isinstance(around, ast.Call) else None
            if isinstance(around, ast.Attribute):
                uses.add(around.attr)
            elif isinstance(around, ast.Call) and isinstance(definition, FUNCTIONS) and script.is_own(definition):
                given = _parameter(definition, around, node, word)
                uses |= set() if given else {""}
                todo.update(given)
            elif isinstance(around, ast.Call):
                called = f".{script.name(around.func)}"
                harmless = _HARMLESS.search(called) or (ROLES["scheduler"].search(called) and node in around.args)
                uses |= set() if harmless else {""}
            elif not isinstance(around, (ast.Assign, ast.AnnAssign, ast.Compare, ast.If, ast.IfExp, ast.BoolOp)):
                returned = isinstance(around, ast.Return) or isinstance(script.parent(around or node), ast.Return)
                uses |= set() if returned and not isinstance(around, ast.Dict) else {""}
    return uses


def _parameter(function: Function, call: ast.Call, value: ast.AST, word: str | None) -> list[str]:
    """The name of a value in a function that is called with it."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    at = call.args.index(value) if value in call.args else len(names)
    at += names[:1] in (["self"], ["cls"])
    names += [one.arg for one in function.args.kwonlyargs] if word else []
    return [one for one in names if one == word] if word else names[at : at + 1]


COUNTERS = ("epoch", "step", "iteration", "global_step", "iter", "start_epoch")


@lint_rule("wrong-best", "the model that is kept as the best model is not the best", reads="python")
def wrong_best(script: LintedScript) -> Iterator[LintFinding]:
    """## What it does
    Looks for a comparison with the best value so far that goes in the wrong direction, an initial value that is never
    beaten, and a `state_dict()` that is kept as the best one without a copy.

    ## Why it costs
    The worst model, no model, or the last model is kept and used: the run's result is lost although its log looks good.

    ## How to recognize it
    The rule goes by the names of metrics (`loss` falls, `accuracy` rises) where the same test also sets the best value.
    A `state_dict()` holds references, so later steps change it.

    ## What to do
    Use `if loss < best_loss`, with `float("inf")` as the initial value, and `copy.deepcopy(model.state_dict())`.

    ## When it is wrong
    Ignore the finding if a name means the opposite of its content.
    """
    for name, values in script.assigned.items() if ".state_dict" in script.text else ():
        for kept in (one for one in values if script.name(getattr(one, "func", one)).endswith(".state_dict")):
            model = getattr(getattr(kept, "func", kept), "value", kept)
            loops = [loop for loop, _ in script.epochs if script.within(kept, loop)]
            used = [
                one
                for one in script.calls_of(".load_state_dict", "torch.save")
                if one.args
                and name in map(script.name, ast.walk(one.args[0]))
                and (
                    script.receiver(one) == script.name(model)
                    or (script.name(one.func) == "torch.save" and loops and not script.within(one, loops[-1]))
                )
            ]
            begins = re.search(r"(?i)init|orig|snapshot|backup", name) and len(values) == 1
            yield from script.report(
                (("best" in name and bool(loops)) or begins)
                and not NO_MODEL.search(script.name(model))
                and bool(used)
                and kept,
                Severity.HIGH,
                f"{name} is a reference to the live parameters, not a copy: at the end it holds the last weights",
                f"{name} = copy.deepcopy({script.source(kept)})",
            )
    for node in script.of[ast.If] if script.has("best") else ():
        if not (isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ORDER)):
            continue
        sides = [script.name(node.test.left), script.name(node.test.comparators[0])]
        best, value = sides if "best" in sides[0] else sides[::-1]
        rises = isinstance(node.test.ops[0], (ast.Gt, ast.GtE)) == (value == sides[0])
        sets = any(isinstance(one, ast.Assign) and script.name(one.targets[0]) == best for one in node.body)
        up, down = (bool(kind.search(value.rpartition(".")[2])) for kind in (HIGHER, LOWER))
        starts = [script.source(one) for one in script.assigned.get(best, ()) if one.lineno < node.lineno]
        start = starts[0] if starts else ""
        huge = re.search(r"inf|1e\d|9999|maxsize", start) and "-" not in start
        never = (rises and huge) or (not rises and start in ("0", "0.0", "-1", "0."))
        yield from script.report(
            "best" in best and sets and up != down and (up != rises or bool(never)) and node,
            Severity.HIGH,
            f"{script.source(node.test)} keeps the worst model, or none: {value} "
            f"{'rises' if up else 'falls'} as the model gets "
            f"better, and {best} starts at {start}",
            "compare in the metric's direction, from its worst value",
        )


ORDER = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
