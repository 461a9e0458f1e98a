"""A Python file -> LintedScript: its calls by their full names, its training steps, and which values have gradients."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintEdit, LintFinding
from hotloop.judge.lint.files import LintFormat, NotRead, SourceFile, Start, Surroundings
from hotloop.judge.lint.python_code import (
    FUNCTIONS,
    SCOPES,
    Binding,
    Function,
    Loop,
    PythonModule,
    Scope,
    constant,
    dotted,
    keyword,
    parse_module,
    start_of,
)
from hotloop.judge.lint.python_flow import MOST_DEPTH, MOST_ORIGINS, WRAPPED, LoopCall, ValueFlow, list_words

_OPTIMIZER_NAME = re.compile(r"(?i)optim|(^|_)opt(_|$|[a-z]?\d*$)")
_NOT_OPTIMIZER = re.compile(r"(?i)sched|scaler|env|prof|warmup|meter|bar|logger|engine|ema")
ROLES = {
    "optimizer": re.compile(
        r"^torch\.optim\.(?!lr_scheduler|swa_utils)\w+$|(^|\.)(Adam\w*|SGD|RMSprop|Lion\w*|Lamb|LAMB|Muon)$"
    ),
    "scheduler": re.compile(
        r"lr_scheduler\.\w+$|(^|\.)(get_\w*schedule\w*|\w+(LR|LRScheduler|LROnPlateau|WarmRestarts))$"
    ),
    "wrapped": WRAPPED,
    "loader": re.compile(r"(^|\.)(\w*DataLoader)$"),
    "scaler": re.compile(r"(^|\.)(GradScaler|ShardedGradScaler)$"),
    "compiled": re.compile(r"^torch\.compile$"),
}
"""What an object is, by the full name of the call that created it."""
_LOADER = re.compile(r"(^|\.)(Stateful|MultiEpochs)?DataLoader$")
_MADE = re.compile("|".join(ROLES[role].pattern for role in ("optimizer", "scheduler", "scaler")))
# fmt: off
_DETACHES = frozenset((
    "detach", "detach_", "item", "tolist", "numpy", "argmax", "argsort", "nonzero", "eq", "ne", "ge", "gt", "le", "lt",
    "bool", "int", "long", "size", "numel", "dim", "sign", "round", "byte", "isnan", "isinf",
))
"""Methods and functions whose result has no gradient."""
# fmt: on
_PLAIN = frozenset(("float", "int", "len", "str", "bool", "round", "range", "torch.tensor", "isinstance", "getattr"))
_LOSS = re.compile(r"(?i)loss|criterion|objective")
_MODEL = re.compile(
    r"(?i)(^|_)(model|net|network|module|generator|discriminator|student|classifier|unet|policy|actor|critic)(_|\d|$)"
)
_COPY = re.compile(
    r"(?i)(^|_)(ref|reference|ema|teacher|target|old|frozen|shadow|averaged?|best)(_|\d|$)"
    r"|^_?(un)?(wrap|get|set|build|load|save|create|make|init|setup|prepare|register|eval|train|test|update)_"
)
"""Names of models that follow the trained one or stay as they were, and of functions that do something with a model."""
_FROM_LIBRARY = re.compile(r"torchvision|timm|from_pretrained|transformers|\w_models?\b|smp")
_HAS_MODES = re.compile(r"(?i)drop|batch_?norm|resnet|Transformer|backbone")
_TAKES_LOSS = re.compile(r"(?i)accelerator|fabric|engine|manual|strategy|booster|self$|^\?$")
_FIELDS = frozenset(("loss", "logits", "last_hidden_state", "hidden_states", "T", "mT", "real", "values"))
_SHAPES = ("squeeze", "view", "flatten", "reshape", "float", "contiguous")
_JOINS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Starred, ast.Tuple, ast.List)
MOST_SLICE = 300
"""The most expressions of a slice."""
_GROUPS = re.compile(r"(^|\.)param_groups_\w+$")
"""Functions of timm from a model to groups of its parameters."""
NO_GRAD = (".no_grad", ".inference_mode")
PARAMETERS = ("parameters", "named_parameters", "params_groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """The code that runs once per step: a loop, or a function that a loop calls.

    ``events`` are its calls in the order in which they run; ``backwards`` and ``steps`` are the calls of backward and
    of an optimizer's step.
    """

    container: Loop | Function
    scope: Scope
    """The function or module around the loop; the function itself where it is the container."""
    loop: Loop
    """The loop whose iterations are the steps: the container, or the loop that calls it."""
    events: tuple[LoopCall, ...]
    backwards: tuple[LoopCall, ...]
    steps: tuple[LoopCall, ...]

    def find(self, *endings: str) -> list[LoopCall]:
        """Events by the last part of their names."""
        return [event for event in self.events if event.last in endings]


class LintedScript(ValueFlow):
    """A parsed file with everything that rules need. Expensive parts are computed on first use.

    ``start`` is a job in a nearby file that warns it with a signal that nothing handles, if there is one.
    """

    def __init__(self, path: str, text: str, module: PythonModule, start: Start | None = None) -> None:
        super().__init__(module)
        self.path, self.text, self.start = path, text, start
        self._gradients: dict[tuple[ast.AST, frozenset[tuple[ast.AST, str]]], str] = {}
        self._texts: dict[str, bool] = {}

    @cached_property
    def lines(self) -> list[str]:
        return re.split(r"\r\n|\r|\n", self.text)

    def has(self, pattern: str) -> bool:
        """Whether the file's text matches a pattern; the result is cached."""
        if pattern not in self._texts:
            self._texts[pattern] = re.search(pattern, self.text) is not None
        return self._texts[pattern]

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call in the file with the full name of its function, by line."""
        named = [(node, self.name(node.func)) for node in self.of[ast.Call]]
        return sorted(named, key=lambda pair: start_of(pair[0]))

    @cached_property
    def _calls_by_end(self) -> Mapping[str, list[tuple[ast.Call, str]]]:
        found: dict[str, list[tuple[ast.Call, str]]] = defaultdict(list)
        for call, name in self.calls:
            found[name.rpartition(".")[2]].append((call, name))
        return found

    def calls_of(self, *names: str) -> list[ast.Call]:
        """Calls by full name, or by its last part for a name that begins with a dot, by line."""
        found: list[ast.Call] = []
        for sought in names:
            last = sought.rpartition(".")[2]
            for call, name in self._calls_by_end.get(last, ()) if last in self.text else ():
                if f".{name}".endswith(sought) if sought.startswith(".") else name == sought:
                    found.append(call)
        return sorted(found, key=start_of) if len(names) > 1 else found

    def receiver(self, call: ast.Call) -> str:
        """Name of the object whose method a call calls; empty if it does not call a method."""
        return self.name(call.func.value) if isinstance(call.func, ast.Attribute) else ""

    def text_of(self, node: ast.stmt | ast.expr | Scope) -> str:
        """The lines of a node; the whole file for the module."""
        return self.text if isinstance(node, ast.Module) else "\n".join(self.lines[node.lineno - 1 : node.end_lineno])

    def source(self, node: ast.AST) -> str:
        """Text of an expression on one line, shortened."""
        if not isinstance(node, ast.expr) or not self.is_own(node) or node.end_lineno is None:
            return ""
        lines = [line.encode() for line in self.lines[node.lineno - 1 : node.end_lineno]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        flat = " ".join(b" ".join(lines).decode("utf-8", "replace").split())
        return flat if len(flat) <= 60 else f"{flat[:57]}..."

    def line(self, event: LoopCall) -> int:
        """The place of an event in this file."""
        return event.call.lineno if self.is_own(event.call) else event.site.lineno

    def report(
        self,
        place: LoopCall | ast.AST | bool | None,
        severity: Severity,
        message: str,
        advice: str,
        *,
        is_sure: bool = True,
        edits: tuple[LintEdit, ...] = (),
    ) -> list[LintFinding]:
        """A finding at a place; none if there is no fault, or if it is in another file."""
        node = place.call if isinstance(place, LoopCall) and self.is_own(place.call) else getattr(place, "site", place)
        if not isinstance(node, ast.AST) or not self.is_own(node):
            return []
        confidence = Confidence.CERTAIN if is_sure else Confidence.LIKELY
        line = getattr(node, "lineno", 1)
        return [
            LintFinding(
                severity=severity, line=line, message=message, advice=advice, edits=edits, confidence=confidence
            )
        ]

    @cached_property
    def assigned(self) -> Mapping[str, list[ast.expr]]:
        """What is assigned to each name (``x``, ``self.x``), anywhere in the file."""
        found: dict[str, list[ast.expr]] = {}
        for (_, name), bindings in self.module.links.bindings.items():
            found.setdefault(name, []).extend(
                binding.value
                for binding in bindings
                if isinstance(binding.value, ast.expr)
                and isinstance(binding.statement, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
            )
        return found

    def values(self, node: ast.AST) -> list[ast.expr]:
        """The values that the file assigns to the name in an expression; empty if nothing is assigned to it."""
        return self.assigned.get(dotted(node), [])

    @cached_property
    def states(self) -> Mapping[ast.AST, set[str]]:
        """The optimizers, schedulers and scalers that are built, each with the last parts of its names."""
        found: dict[ast.AST, set[str]] = defaultdict(set)
        built = {call for call, name in self.calls if _MADE.search(name)}
        for (_, name), bindings in self.module.links.bindings.items() if built else ():
            for binding in bindings:
                if binding.at != -1 and not isinstance(binding.value, ast.arg):
                    for origin in built.intersection(self.origins(binding.value, at=binding.at)):
                        found[origin].add(name.rpartition(".")[2])
        return found

    def role(self, node: ast.AST) -> str:
        """The role of an object, from ROLES; empty if it has none or is unknown."""
        for call in self.made(node):
            name = self.name(call.func)
            for role, pattern in ROLES.items():
                if pattern.search(name):
                    return role
        return ""

    @cached_property
    def loaders(self) -> list[ast.Call]:
        """The calls that build torch's DataLoader, or a class that takes the same arguments."""
        calls = self.calls if "DataLoader" in self.text else []
        return [call for call, name in calls if _LOADER.search(name) and self.definition(call.func) is None]

    def iterates_loader(self, loop: ast.AST) -> bool:
        """Whether a for loop takes its values from a DataLoader, as the file builds it, or by its name."""
        value = self.loop_source(loop)
        if value is None:
            return False
        return self.role(value) == "loader" or "loader" in self.name(value).rpartition(".")[2].lower()

    def stepped(self, call: ast.Call) -> str:
        """Name of the optimizer that a ``.step`` call steps; empty if it is not an optimizer."""
        receiver = self.receiver(call)
        last = receiver.split(".")[-1]
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return ""
        if call.args and re.search(r"(?i)scaler|fabric", last):
            return self.name(call.args[0])
        role = self.role(call.func.value)
        named = _OPTIMIZER_NAME.search(last) and not _NOT_OPTIMIZER.search(last)
        return receiver if role == "optimizer" or (not role and named) else ""

    @cached_property
    def training(self) -> list[LoopStep]:
        """The steps of the file's trainings, each once."""
        found: dict[ast.AST, LoopStep] = {}
        for call in self.calls_of(".backward", ".manual_backward"):
            if getattr(self.scope(call), "name", "") in ("backward", "closure"):
                continue
            for container, loop in self._find_steps(call)[:1]:
                if container in found:
                    continue
                events = self.events(container)
                found[container] = LoopStep(
                    container=container,
                    scope=container if isinstance(container, FUNCTIONS) else self.scope(container),
                    loop=loop,
                    events=events,
                    backwards=tuple(event for event in events if event.name.endswith("backward")),
                    steps=tuple(event for event in events if event.name.endswith(".step") and self.stepped(event.call)),
                )
        return [step for step in found.values() if step.backwards]

    def _find_steps(self, backward: ast.Call) -> list[tuple[Loop | Function, Loop]]:
        """The innermost loop with this backward call and a step, else the innermost loop; for a function without a
        loop, the function itself if it steps, else the loop that calls it."""
        found: list[tuple[Loop | Function, Loop]] = []
        node: ast.AST = backward
        function: Function | None = None
        for _ in range(4):
            loops = self.loops_around(node)
            found += [(loop, loop) for loop in loops]
            if function is not None and loops and self._steps(function):
                found.insert(0, (function, loops[0]))
            scope = self.scope(node)
            callers = [] if loops else [call for call in self.callers_of(node) if self.is_own(call)]
            if not callers or not isinstance(scope, FUNCTIONS):
                break
            function = scope if function is None or not self._steps(function) else function
            node = next((call for call in callers if self.loops_around(call)), callers[0])
        return [pair for pair in found if self._steps(pair[0])][:1] or found[:1]

    def _steps(self, container: Loop | Function) -> bool:
        return any(event.name.endswith(".step") and self.stepped(event.call) for event in self.events(container))

    @cached_property
    def epochs(self) -> list[tuple[Loop, LoopStep]]:
        """Each loop around a training's steps, from the innermost outward, with those steps."""
        found: list[tuple[Loop, LoopStep]] = []
        for step in self.training:
            found.append((step.loop, step))
            node: ast.AST | None = step.loop
            for _ in range(3 if node is not None else 0):
                found += [(loop, step) for loop in self.loops_around(node)] if node is not None else []
                callers = self.callers_of(node) if node is not None else []
                node = next((call for call in callers if self.is_own(call)), None)
        return found

    @cached_property
    def models(self) -> Mapping[ast.AST, ast.Call]:
        """The origins of the models whose parameters an optimizer takes, with the optimizer."""
        found: dict[ast.AST, ast.Call] = {}
        calls = self.calls if "param" in self.text and self.has("optim|Adam|SGD|RMSprop|Lion|L(?i:amb)|Muon") else []
        for call in (call for call, name in calls if ROLES["optimizer"].search(name)):
            for given in (*call.args, *(each.value for each in call.keywords)):
                for part in self.said(given):
                    if isinstance(part, ast.Attribute) and part.attr in PARAMETERS:
                        found.update(dict.fromkeys(self.origins(part.value, inside=True), call))
                    elif isinstance(part, ast.Call) and part.args and _GROUPS.search(self.name(part.func)):
                        found.update(dict.fromkeys(self.origins(part.args[0], inside=True), call))
        return found

    def is_trained(self, node: ast.AST) -> bool:
        """Whether an optimizer has the parameters of an object."""
        return any(origin in self.models for origin in self.origins(node, inside=True))

    def is_model(self, node: ast.AST) -> bool:
        """Whether an object is a model that is trained here, as far as the file shows."""
        origins = self.origins(node, inside=True)
        if any(origin in self.models for origin in origins):
            return True
        unknown = all(isinstance(origin, (ast.arg, ast.Name, ast.Attribute)) for origin in origins)
        last = self.name(node).rpartition(".")[2]
        is_named = unknown and bool(_MODEL.search(last)) and not _COPY.search(last)
        is_function = is_named and isinstance(node, ast.expr) and isinstance(self.definition(node), FUNCTIONS)
        return is_named and not is_function and dotted(node).partition(".")[0] not in self.imported

    def ends(self, value: ast.AST) -> list[ast.AST]:
        """The functions and layers that ultimately compute a value, through names and the models of this file."""
        found: list[ast.AST] = []
        todo = [(origin, False) for origin in self.origins(value)]
        seen: set[tuple[ast.AST, bool]] = set()
        while todo and len(seen) < MOST_ORIGINS:
            node, is_layer = todo.pop()
            if (node, is_layer) in seen:
                continue
            seen.add((node, is_layer))
            name = self.name(node.func) if isinstance(node, ast.Call) else ""
            more: list[tuple[ast.AST, bool]] = []
            if is_layer and isinstance(node, ast.Call):
                forward = self.method(self.definition(node.func), "forward")
                if forward is not None:
                    todo += [(origin, False) for result in self.results(forward) for origin in self.origins(result)]
                    continue
                last = node.args[-1:] if name.endswith("Sequential") else []
                more = [(origin, True) for layer in last for origin in self.origins(layer)]
            elif isinstance(node, ast.Call):
                method = node.func.value if isinstance(node.func, ast.Attribute) else None
                if method is not None and name.rpartition(".")[2] in _SHAPES:
                    more = [(origin, False) for origin in self.origins(method)]
                else:
                    more = [(call, True) for call in self.made(node.func, inside=True)]
            todo += more
            found += [] if more else [node]
        return found

    def slice(self, value: ast.AST, *, models: bool = False) -> list[ast.AST]:
        """The expressions from which a value is computed, through names and functions; it ends where a value loses its
        gradient, and at the arguments of functions and layers of this file. ``models``: through forward methods."""
        found: dict[ast.AST, None] = {}
        entered: dict[ast.AST, ast.Call] = {}
        todo: list[tuple[ast.AST, int | None]] = [(value, None)]
        while todo and len(found) < MOST_SLICE:
            node, at = todo.pop()
            if node in found or isinstance(node, ast.Lambda):
                continue
            found[node] = None
            inner: list[tuple[ast.AST, int | None]] = [
                (each, None) for each in ast.iter_child_nodes(node) if isinstance(each, (ast.expr, ast.keyword))
            ]
            if isinstance(node, ast.arg):
                call = entered.get(self.scope(node))
                inner = [(one, at) for one in self.given(node) if call is None or call in self.parents(one)]
            elif isinstance(node, (ast.Name, ast.Attribute)):
                inner = [(one.value, one.at) for one in self.reaching(node)] or inner
            elif isinstance(node, (ast.Tuple, ast.List)) and at is not None and 0 <= at < len(node.elts):
                inner = [(node.elts[at], None)]
            elif isinstance(node, ast.Call):
                made = self.definition(node.func)
                layers = [self.definition(one.func) for one in self.made(node.func, inside=True)] if models else []
                known = [
                    one
                    for one in (made, *(self.method(one, "forward") for one in layers))
                    if isinstance(one, FUNCTIONS)
                ]
                cut = self.name(node.func).rpartition(".")[2] in ("detach", "item", "sign")
                results: list[tuple[ast.AST, int | None]] = [(each, at) for one in known for each in self.results(one)]
                inner = [] if cut else results or ([] if self.is_model(node.func) else inner)
                if any(entered.setdefault(one, node) is not node for one in known):
                    inner = inner + [(each, None) for each in (*node.args, *(part.value for part in node.keywords))]
            todo += inner
        return list(found)

    def option(self, call: ast.Call, name: str) -> ast.expr | None:
        """The value of a keyword of a call, also in a dict that the call unpacks."""
        for part in call.keywords if keyword(call, name) is None else ():
            for made in self.origins(part.value) if part.arg is None else ():
                if isinstance(made, ast.Call) and keyword(made, name) is not None:
                    return keyword(made, name)
        return keyword(call, name)

    def is_loss(self, function: ast.expr) -> bool:
        """Whether a function with a loss's name may return a loss. What an imported function whose file is not
        near returns (a tensor, a number, parts for a log) is unknown."""
        made = self.made(function)
        if made:
            return any(self.definition(one.func) is not None or "torch" in self.name(one.func) for one in made)
        return dotted(function).partition(".")[0] not in self.imported

    @cached_property
    def imported(self) -> frozenset[str]:
        """The names that imports bind."""
        names = [one for node in (*self.of[ast.Import], *self.of[ast.ImportFrom]) for one in node.names]
        return frozenset((one.asname or one.name).partition(".")[0] for one in names)

    def has_modes(self, model: ast.AST) -> bool:
        """Whether a model behaves differently in eval mode, by its classes; a library's model counts as different."""
        for call in self.made(model, inside=True):
            made, name = self.definition(call.func), self.name(call.func)
            words = [word for node in ast.walk(made) for word in list_words(node)] if made is not None else []
            words += [self.name(node) for node in ast.walk(call)] if name.endswith("Sequential") else []
            if _FROM_LIBRARY.search(name) or any(map(_HAS_MODES.search, words)):
                return True
        return False

    def without_gradients(self, node: ast.AST) -> ast.AST | None:
        """The ``with`` or the decorated function around a node that turns gradients off."""
        for around in self.parents(node):
            items: list[ast.expr] = []
            if isinstance(around, (ast.With, ast.AsyncWith)):
                items = [item.context_expr for item in around.items]
            elif isinstance(around, FUNCTIONS):
                items = around.decorator_list
            for item in items:
                is_call = isinstance(item, ast.Call)
                name = self.name(item.func if isinstance(item, ast.Call) else item)
                given = constant(item.args[0]) if isinstance(item, ast.Call) and item.args else None
                if f".{name}".endswith(".enable_grad"):
                    return None
                if f".{name}".endswith(NO_GRAD) and given in (None, True):
                    return around
                if is_call and name.endswith("set_grad_enabled") and given is False:
                    return around
            if isinstance(around, (*SCOPES, ast.Lambda)):
                break
        return None

    def gradient(self, node: ast.AST, assumed: Mapping[ast.AST, str] | None = None) -> str:
        """Whether a value has a history: ``graph``, ``cut`` if it lost it here, ``plain``, or empty if unknown.
        ``assumed`` is the result for parameters."""
        question = (node, frozenset(assumed.items()) if assumed else frozenset())
        if question not in self._gradients:
            self._gradients[question] = ""  # for a value that is computed from itself
            self._gradients[question] = self._follow_gradient(node, assumed or {})
        return self._gradients[question]

    def _follow_gradient(self, node: ast.AST, assumed: Mapping[ast.AST, str]) -> str:
        self._depth += 1
        state = self._judge(node, assumed) if self._depth < MOST_DEPTH else ""
        self._depth -= 1
        return state

    def _join(self, nodes: Sequence[ast.AST], assumed: Mapping[ast.AST, str]) -> str:
        """For a computation with several values: it has the history of any of them."""
        states = {self.gradient(node, assumed) for node in nodes[:30]}
        return next((state for state in ("graph", "", "cut") if state in states), "plain")

    def _judge(self, node: ast.AST, assumed: Mapping[ast.AST, str]) -> str:
        if isinstance(node, ast.arg):
            given = self.given(node)
            return assumed[node] if node in assumed else self._join(given, assumed) if given else ""
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            return "plain"
        if isinstance(node, ast.Compare):
            return _cut(self._join([node.left, *node.comparators], assumed))
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._judge_name(node, assumed)
        if isinstance(node, ast.Call):
            return self._judge_call(node, assumed)
        if isinstance(node, ast.Subscript):
            is_dict = any(isinstance(one, ast.Dict) for one in self.origins(node.value))
            return "" if is_dict else self._join([node.value], assumed)
        if isinstance(node, ast.IfExp):
            return self._join([node.body, node.orelse], assumed)
        if isinstance(node, _JOINS):
            return self._join([part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)], assumed)
        if isinstance(node, ast.Dict):
            return self._join(node.values, assumed)
        return self.gradient(node.elt, assumed) if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else ""

    def _judge_name(self, node: ast.Name | ast.Attribute, assumed: Mapping[ast.AST, str]) -> str:
        bound = self.reaching(node)
        states = [self._judge_binding(binding, assumed) for binding in bound]
        if "graph" in states or ("cut" not in states and any((one.value, one.at) in self.losses for one in bound)):
            return "graph"
        if bound:
            return states[0] if len(set(states)) == 1 else ""
        if isinstance(node, ast.Attribute) and node.attr in (*_FIELDS, "data"):
            state = self.gradient(node.value, assumed)
            return "cut" if node.attr == "data" and state == "graph" else state
        return ""

    def _judge_binding(self, binding: Binding, assumed: Mapping[ast.AST, str]) -> str:
        value, at = binding.value, binding.at
        if at == -1:
            return "plain" if self.iterates_loader(binding.statement) else self.gradient(value, assumed)
        if isinstance(value, (ast.Tuple, ast.List)) and at is not None and at < len(value.elts):
            value = value.elts[at]
        elif isinstance(value, ast.Call) and at is not None and not self.is_model(value.func):
            made = self.origins(value, at=at)
            if value not in made or at > 0:  # of an unknown function, only the first result is followed
                return "" if value in made else self._join(made, assumed)
        return self.gradient(value, assumed)

    def _judge_call(self, call: ast.Call, assumed: Mapping[ast.AST, str]) -> str:
        name = self.name(call.func)
        last, is_torch = name.rpartition(".")[2], name.startswith("torch.")
        values = [*call.args, *(part.value for part in call.keywords)]
        method = call.func.value if isinstance(call.func, ast.Attribute) else None
        inside = self._join(values if method is None or is_torch else [method, *values[:4]], assumed)
        if name == "torch.nn.Parameter" or last == "requires_grad_" or constant(keyword(call, "requires_grad")) is True:
            return "graph"
        if name.startswith("torch.nn.") and last[:1].isupper():
            return ""  # a module, not a tensor
        if last in _DETACHES or name in _PLAIN or name.startswith(("numpy.", "np.")):
            return _cut(inside)
        if self.without_gradients(call) is not None:
            return "cut"
        if self.is_model(call.func) or (method is not None and last in ("forward", "module") and self.is_model(method)):
            return "graph"
        if is_torch or name in ("sum", "max", "min"):
            return inside
        definition = self.definition(call.func)
        if isinstance(definition, FUNCTIONS):
            return self._join(self.results(definition), assumed)
        if _LOSS.search(last) and values and self.is_loss(call.func):
            return self._join(values, assumed)
        return self.gradient(method, assumed) if method is not None else ""

    @cached_property
    def losses(self) -> frozenset[tuple[ast.AST, int | None]]:
        """The expressions whose value, or element, then goes backward under a name."""
        starts = [self.loss(call) for call in self.calls_of(".backward", ".manual_backward")]
        return frozenset(
            (binding.value, binding.at)
            for start in starts
            if isinstance(start, (ast.Name, ast.Attribute))
            for binding in self.reaching(start)
            if binding.at != -1 and not isinstance(binding.value, ast.arg)
        )

    def loss(self, backward: ast.Call) -> ast.expr:
        """The start of a backward call: the loss, without a scaler around it."""
        value: ast.expr = backward.func.value if isinstance(backward.func, ast.Attribute) else backward
        if backward.args and _TAKES_LOSS.search(self.receiver(backward)):
            value = backward.args[0]
        while isinstance(value, ast.Call) and self.name(value.func).endswith((".scale", ".scale_loss")) and value.args:
            value = value.args[0]
        return value


def _cut(state: str) -> str:
    """The rest of a history where none continues."""
    return "cut" if state in ("graph", "cut") else "plain"


def parse_script(file: SourceFile, around: Surroundings) -> LintedScript | None:
    """None for a file unrelated to torch. Raises NotRead if Python itself could not read it."""
    if not any(word in file.text for word in ("torch", "signal", "lightning", "transformers", "accelerate")):
        return None
    try:
        module = parse_module(os.path.abspath(file.path), file.text)
    except SyntaxError as error:
        raise NotRead(f"not Python 3 (line {error.lineno}: {error.msg})") from None
    except ValueError as error:
        raise NotRead(f"not Python ({error})") from None
    except (RecursionError, MemoryError):
        raise NotRead("nested too deeply to be read") from None
    return LintedScript(file.path, file.text, module, around.starts.get(file.path))


PYTHON = LintFormat(
    id="python", title="training script", may_name=lambda name: name.endswith(".py"), parse=parse_script, is_sure=True
)
