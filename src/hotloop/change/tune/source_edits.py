"""A technique's change, and its form in the source -> edits of the script that do the same.

Raises Refusal, with the reason, where the script has not the one form that is understood.
"""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator, Mapping

from hotloop.core.applied import AppliedTechnique
from hotloop.core.findings import Value
from hotloop.core.sources import (
    Arguments,
    ModelCompile,
    ModelContext,
    NoSource,
    Source,
    TorchCall,
    Wrapped,
)

from .script import Refusal, Script, ScriptEdit, insert_after, stands_alone

_TENSOR_ATTRIBUTES = frozenset(
    ("shape", "dtype", "device", "data", "ndim", "grad", "T", "mT", "requires_grad", "grad_fn")
)
MOVES = frozenset(
    ("to", "cuda", "cpu", "long", "int", "view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous")
)
"""Methods of a tensor that compute nothing."""
_OTHER_METHODS = frozenset(("get", "items", "keys", "log_prob", "sample", "values"))
"""Methods of dictionaries and distributions."""
BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def refuse_other_use(script: Script, value: ast.expr) -> None:
    """Raises Refusal where what the model returns is used as no plain tensor is. Of what is left, a run of the patched
    source shows whether it is one."""
    parent = script.parents[value]
    if isinstance(parent, ast.Attribute):
        above = script.parents[parent]
        is_method = isinstance(above, ast.Call) and above.func is parent
        is_other = parent.attr in _OTHER_METHODS if is_method else parent.attr not in _TENSOR_ATTRIBUTES
    elif isinstance(parent, ast.Subscript) and parent.value is value:
        index = parent.slice.operand if isinstance(parent.slice, ast.UnaryOp) else parent.slice
        is_other = isinstance(index, ast.Constant)  # of a tuple or a dictionary
    elif isinstance(parent, ast.Assign):
        is_other = any(isinstance(target, ast.Tuple | ast.List) for target in parent.targets)
    else:
        is_keywords = isinstance(parent, ast.keyword) and parent.arg is None
        is_other = is_keywords or isinstance(parent, ast.Starred | ast.For | ast.comprehension)
    if is_other:
        line, _, _ = ast.unparse(parent).strip().partition("\n")
        raise Refusal(f"the script uses `{line}`: {ast.unparse(value)} may not be a plain tensor")


NO_FORM = "it cannot be written in the source; it remains in the strategy file"


def plan_arguments(script: Script, record: AppliedTechnique, source: Arguments) -> tuple[ast.Call, dict[str, str]]:
    """The call that builds the record's object, and the arguments that it is to get, as source text."""
    call = _find_call(script, record)
    arguments = {name: _literal(record.values[name]) for name in source.names if name in record.values}
    if not arguments:
        raise Refusal(f"the value chosen for {' or '.join(source.names)} was not recorded")
    for name, written in source.written.items():
        if name in record.values:
            if not script.imports(written.module):
                raise Refusal(written.why_not)
            arguments[written.name] = written.code.format(_literal(record.values[name]))
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            raise Refusal(f"the call has *{ast.unparse(argument.value)}, which may already contain the argument")
    if len(call.args) > source.most_positional:
        raise Refusal("the argument may already be given by position")
    for keyword in call.keywords:
        if keyword.arg is None:
            raise Refusal(f"the call has **{ast.unparse(keyword.value)}, which may already contain {source.names[0]}")
        is_off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg == source.excludes and not is_off:
            arguments[keyword.arg] = "False"
        if keyword.arg in arguments and not isinstance(keyword.value, ast.Constant):
            raise Refusal(f"the script sets {keyword.arg}={ast.unparse(keyword.value)}")
    return call, arguments


def _literal(value: Value) -> str:
    """
    >>> _literal(25.0), _literal(True), _literal("high")
    ('25', 'True', '"high"')
    """
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _find_call(script: Script, record: AppliedTechnique) -> ast.Call:
    """The only call at the record's line that names its target."""
    assert record.where is not None
    line = record.where.line
    calls = [
        node
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and script.last_name(node) == record.target
    ]
    exact = [node for node in calls if node.lineno == line]
    found = exact or calls
    if not found:
        raise Refusal(f"line {line} contains no call of {record.target} by its name")
    if len(found) > 1:
        raise Refusal(f"line {line} contains {len(found)} calls of {record.target}")
    return found[0]


def edit_arguments(script: Script, call: ast.Call, arguments: Mapping[str, str]) -> list[ScriptEdit]:
    """The call with these arguments, each replacing the existing argument of its name."""
    edits = []
    missing = dict(arguments)
    for keyword in call.keywords:
        if keyword.arg in missing:
            start, end = script.span(keyword.value)
            value = missing.pop(keyword.arg)
            if script.text[start:end] != value:
                edits.append(ScriptEdit(start, end, value))
    if not missing:
        return edits
    end = script.span(call)[1] - 1
    if script.text[end] != ")":
        raise Refusal("the end of the call was not found")
    within = [t for t in script.tokens if t.type not in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)]
    last = max(
        (t for t in within if script.offset(t.end) <= end and t.string),
        key=lambda t: script.offset(t.end),
        default=None,
    )
    if last is None:
        raise Refusal("the end of the call was not found")
    added = [f"{name}={value}" for name, value in missing.items()]
    after = script.offset(last.end)
    closing_line = call.end_lineno or call.lineno
    if last.string == "(":
        return [*edits, ScriptEdit(after, after, ", ".join(added))]
    if last.end[0] == closing_line or not (call.args or call.keywords):
        lead = " " if last.string == "," else ", "
        return [*edits, ScriptEdit(after, after, lead + ", ".join(added))]
    # The closing bracket has a line of its own: each argument gets one, too.
    first = min(
        [*(node for node in call.args), *(keyword.value for keyword in call.keywords)], key=lambda node: node.lineno
    )
    row = script.lines[first.lineno - 1] if first.lineno > call.lineno else script.lines[last.start[0] - 1]
    indent = row[: len(row) - len(row.lstrip())]
    if last.string != ",":
        edits.append(ScriptEdit(after, after, ","))
    start = script.starts[closing_line - 1]
    return [*edits, ScriptEdit(start, start, "".join(f"{indent}{one},{script.newline}" for one in added))]


def plan_edits(script: Script, record: AppliedTechnique, source: Source) -> list[ScriptEdit]:
    """The edits for every form but arguments, which several records may want of one call."""
    if isinstance(source, NoSource | Arguments):
        raise Refusal(getattr(source, "why", "") or NO_FORM)
    if not script.has_torch:
        raise Refusal("the file does not `import torch`")
    if isinstance(source, TorchCall):
        return _plan_torch_call(script, record, source)
    if isinstance(source, Wrapped):
        return _plan_wrapped(script, record, source)
    if isinstance(source, ModelCompile):
        return _plan_compile(script, record, source)
    return _plan_context(script, record, source)


def _plan_torch_call(script: Script, record: AppliedTechnique, source: TorchCall) -> list[ScriptEdit]:
    """A call on torch after the imports; where the script's own call was overridden, that call with another value."""
    function = source.function
    line = record.where.line if record.explicit and record.where is not None else None
    calls = [n for n in ast.walk(script.tree) if isinstance(n, ast.Call) and script.last_name(n) == function]
    for node in calls:
        if node.lineno != line:
            raise Refusal(f"the script calls {function} itself (line {node.lineno})")
    value = record.values.get(source.value)
    if value is None:
        raise Refusal(f"the value chosen for {source.value} was not recorded")
    text = _literal(value)
    if line is not None:
        if len(calls) != 1 or len(calls[0].args) != 1 or isinstance(calls[0].args[0], ast.Starred):
            raise Refusal(f"line {line} contains no call of {function} with one argument")
        return [ScriptEdit(*script.span(calls[0].args[0]), text)]
    return insert_after(script, _find_last_import(script), f"torch.{function}({text})", blank=True)


def _find_last_import(script: Script) -> ast.stmt:
    """The last import at the top of the file, if torch is imported there."""
    last: ast.stmt | None = None
    seen = False
    for statement in script.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            last = statement
            seen = seen or (isinstance(statement, ast.Import) and any(a.name == "torch" for a in statement.names))
        elif seen:
            break
    if last is None or not seen:
        raise Refusal("the file does not import torch at its top")
    return last


def _plan_wrapped(script: Script, record: AppliedTechnique, source: Wrapped) -> list[ScriptEdit]:
    """The call that builds the object inside one of hotloop's, which changes it and returns it."""
    call = _find_call(script, record)
    start, end = script.span(call)
    given = [f", {name}={_literal(record.settings[name])}" for name in source.names if record.settings.get(name)]
    edits = [ScriptEdit(start, start, f"hotloop.{source.function}("), ScriptEdit(end, end, "".join(given) + ")")]
    if script.imports("hotloop"):
        return edits
    if any(isinstance(node, ast.Name) and node.id == "hotloop" for node in ast.walk(script.tree)):
        raise Refusal("the script uses the name hotloop for something else")
    return [*edits, *insert_after(script, _find_last_import(script), "import hotloop")]


def _plan_compile(script: Script, record: AppliedTechnique, source: ModelCompile) -> list[ScriptEdit]:
    """``model.compile()`` after the last assignment of the one name that was called and built as this class."""
    call, _ = _find_forward(script, record)
    if not isinstance(call.func, ast.Name):
        raise Refusal(f"{ast.unparse(call.func)} is not a plain name, so it is not proven where it was built")
    name, scope = call.func.id, script.scope(call)
    assigned = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.withitem)
        and script.scope(node) is scope
        and name in _names_set(node)
    ]
    plain = [
        node
        for node in assigned
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ]
    built = [node for node in plain if _builds(script, node.value, record.target)]
    if len(built) != 1 or len(plain) != len(assigned):
        raise Refusal(f"{name} is not built as {record.target} in exactly one place of the function that calls it")
    if any("compile" in ast.unparse(node.value) for node in plain):
        raise Refusal(f"the script compiles {name}")
    if _inherits_forward(script, built[0].value, record.target):
        raise Refusal(f"{record.target} runs one of torch's own forwards, which Module.compile does not compile")
    last = max(plain, key=lambda node: node.lineno)
    block = script.block(built[0])
    if any(script.block(node) is not block for node in plain) or last.lineno >= call.lineno:
        raise Refusal(f"{name} is assigned again in another block")
    given = {key: record.values[key] for key in source.names if record.values.get(key) is not None}
    keywords = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return insert_after(script, last, f"{name}.compile({keywords})")


def _names_set(node: ast.AST) -> set[str]:
    targets: list[ast.AST] = list(getattr(node, "targets", ()))
    targets += [t for t in (getattr(node, "target", None), getattr(node, "optional_vars", None)) if t is not None]
    return {
        one.id
        for target in targets
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def _builds(script: Script, value: ast.expr, target: str | None) -> bool:
    """``Net(...)``, also as ``Net(...).to(device)``."""
    while isinstance(value, ast.Call):
        if script.last_name(value) == target:
            return True
        if not isinstance(value.func, ast.Attribute):
            return False
        value = value.func.value
    return False


def _inherits_forward(script: Script, value: ast.expr, target: str | None) -> bool:
    """Whether the class is torch's own, or one of this file that leaves the forward to what it inherits from."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and script.last_name(node) == target]
    if any((script.dotted(call.func) or "").startswith("torch.") for call in calls):
        return True
    classes = [node for node in ast.walk(script.tree) if isinstance(node, ast.ClassDef) and node.name == target]
    return any(
        not any(isinstance(one, ast.FunctionDef) and one.name == "forward" for one in node.body) for node in classes
    )


def _plan_context(script: Script, record: AppliedTechnique, source: ModelContext) -> list[ScriptEdit]:
    """The model's call at the line inside the context, with its outputs in float32."""
    if record.values.get(source.value) is None:
        raise Refusal(f"{source.value} was not recorded")
    call, statement = _find_forward(script, record)
    for node in ast.walk(call):
        moves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MOVES
        if isinstance(node, ast.Call) and node is not call and not moves:
            raise Refusal(f"{ast.unparse(node.func)}() in the arguments would run under autocast, too")
    if not stands_alone(script, statement) or _spans_string(script, statement):
        raise Refusal(f"line {statement.lineno} is not a simple statement")
    row = script.lines[statement.lineno - 1]
    indent = row[: len(row) - len(row.lstrip())]
    unit = "\t" if "\t" in indent else "    "
    head = f"{indent}with {source.context.format_map(record.values)}:{script.newline}"
    begin = script.starts[statement.lineno - 1]
    end_line = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        names = _plain_names(statement.targets[0])
        for node in ast.walk(script.scope(call)):
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
                refuse_other_use(script, node)
        lines = [ScriptEdit(script.starts[at], script.starts[at], unit) for at in range(statement.lineno - 1, end_line)]
        statement_text = ", ".join(names) + " = " + ", ".join(f"{name}.float()" for name in names)
        return [ScriptEdit(begin, begin, head + unit), *lines[1:], *insert_after(script, statement, statement_text)]
    _refuse_evaluated_before(statement, call)
    refuse_other_use(script, call)
    used = {node.id for node in ast.walk(script.tree) if isinstance(node, ast.Name)}
    name = next((one for one in ("output", "model_output", "autocast_output") if one not in used), None)
    if name is None:
        raise Refusal("no unused name is available for the model's output")
    if call.lineno != call.end_lineno:
        raise Refusal("the call of the model spans several lines inside a larger statement")
    start, end = script.span(call)
    hoisted = f"{head}{indent}{unit}{name} = {script.text[start:end]}{script.newline}"
    return [ScriptEdit(begin, begin, hoisted), ScriptEdit(start, end, f"{name}.float()")]


def _find_forward(script: Script, record: AppliedTechnique) -> tuple[ast.Call, ast.stmt]:
    """The only call at the line that can be the model's: of a local name or of an attribute of self."""
    assert record.where is not None
    line = record.where.line
    functions = {n.name for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    calls = []
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in script.imported and function.id not in functions and function.id not in BUILTINS:
                calls.append(node)
        elif (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == "self"
            and function.attr not in functions
        ):
            calls.append(node)
    exact = [node for node in calls if node.lineno == line] or calls
    if len(exact) != 1:
        count = "no call" if not exact else f"{len(exact)} calls"
        raise Refusal(f"line {line} contains {count} that may be the model's; which one is not proven")
    statement = script.statement(exact[0])
    if not isinstance(statement, ast.Assign | ast.Expr | ast.Return | ast.AnnAssign | ast.AugAssign):
        raise Refusal(f"line {line} is not a simple statement")
    for outer in _enclosing(script, exact[0]):
        if isinstance(outer, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.IfExp):
            raise Refusal(f"line {line} calls the model inside a comprehension, lambda or condition")
        if isinstance(outer, ast.BoolOp | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            raise Refusal(f"line {line} is not a simple statement")
    return exact[0], statement


def _enclosing(script: Script, node: ast.AST) -> Iterator[ast.AST]:
    while not isinstance(node, ast.stmt):
        yield node
        node = script.parents[node]


def _refuse_evaluated_before(statement: ast.stmt, call: ast.Call) -> None:
    """Raises Refusal where Python makes a call before this one: the statement must not be taken apart then."""
    early = f"the old value of {ast.unparse(statement.target)}" if isinstance(statement, ast.AugAssign) else ""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or node is call:
            continue
        around = any(child is call for child in ast.walk(node))
        inside = any(child is node for child in ast.walk(call))
        # A call around the model's evaluates what it calls first, unless it is called on the model's own result.
        below = list(ast.walk(node.func))
        calls_first = around and call not in below and any(isinstance(child, ast.Call) for child in below)
        is_before = not around and not inside and (node.lineno, node.col_offset) < (call.lineno, call.col_offset)
        if calls_first or is_before:
            early = f"{ast.unparse(node.func)}()"
            break
    if early:
        raise Refusal(f"{early} is evaluated before the model is called: the line is not a simple statement")


def _plain_names(target: ast.expr) -> list[str]:
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    names = [one.id for one in parts if isinstance(one, ast.Name)]
    if len(names) < len(parts):
        raise Refusal("the call's result is not assigned to plain names")
    return names


def _spans_string(script: Script, statement: ast.stmt) -> bool:
    """A string over several lines, which an indent would change."""
    start, end = script.span(statement)
    return any(
        node.lineno != node.end_lineno
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant | ast.JoinedStr) and start <= script.span(node)[0] < end
    )
