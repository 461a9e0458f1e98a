"""What techniques did to an unmodified script -> the same in its source, as a unified diff; and what is left out, why.

Only lines that were observed are changed, and only where the source there has the one form that is understood. All
other characters of the file stay as they are, because the change is made of insertions into its text. What is not
understood is left out, with the reason: it stays in the strategy file.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import sysconfig
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from hotloop.core.errors import UsageError
from hotloop.core.findings import Value, Where

APPLIED = "applied"
MOST_BYTES = 4 << 20
CONTEXT_LINES = 3


class Applied(Protocol):
    """A record of a strategy: core.report.AppliedTechnique and apply.applier.Record are such."""

    @property
    def technique(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Value]: ...
    @property
    def status(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def target(self) -> str | None: ...
    @property
    def where(self) -> Where | None: ...
    @property
    def explicit(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A technique that was applied and is not in the patch. ``place`` is file:line, None where it had none."""

    technique: str
    place: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file as it was read and as it is to be."""

    path: Path
    before: bytes
    after: bytes
    techniques: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """``diff`` applies with ``patch -p1`` or ``git apply`` in the root that it was made for; empty without a change."""

    diff: str
    files: tuple[FileChange, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """A technique whose source form is arguments of the call that builds the object."""

    names: tuple[str, ...]
    constants: Mapping[str, str]
    """Arguments that the technique always sets, as source text."""
    most_positional: int
    """More positional arguments than this may already hold one of the names."""
    is_told: bool = False
    """Only the detail says what was done: a setting may have been refused for this object."""


_FORMS: dict[str, _Arguments] = {
    "loader-workers": _Arguments(("num_workers", "prefetch_factor", "persistent_workers"), {}, 5),
    "loader-prefetch": _Arguments(("prefetch_factor",), {}, 5),
    "persistent-workers": _Arguments(("persistent_workers",), {"persistent_workers": "True"}, 5),
    "pinned-memory": _Arguments(("pin_memory",), {"pin_memory": "True"}, 5),
    "fused-optimizer": _Arguments(("fused",), {"fused": "True"}, 99),
    "foreach-optimizer": _Arguments(("foreach",), {"foreach": "True"}, 99),
    "ddp-buckets": _Arguments(("bucket_cap_mb", "gradient_as_bucket_view"), {}, 5),
    "ddp-settings": _Arguments(
        ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"), {}, 5, is_told=True
    ),
}
_EXCLUDED = {"fused-optimizer": "foreach", "foreach-optimizer": "fused"}
"""The argument that torch refuses beside the one that the technique sets."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A technique whose source form is one call on torch, with one value."""

    function: str
    said: str
    """Where the record's detail has the value, as a pattern."""
    setting: str


_LINES: dict[str, _Line] = {
    "matmul-precision": _Line(
        "set_float32_matmul_precision", r"set_float32_matmul_precision\(['\"](\w+)['\"]\)", "precision"
    ),
    "thread-count": _Line("set_num_threads", r"\b(\d+) threads?\b", "torch_threads"),
}
_NO_PROOF = {
    "no-sync-accumulation": "it changes the shape of the loop, which the observed lines do not prove",
}
_TENSOR_ATTRIBUTES = frozenset(
    ("shape", "dtype", "device", "data", "ndim", "grad", "T", "mT", "requires_grad", "grad_fn")
)
_MOVES = frozenset(
    ("to", "cuda", "cpu", "long", "int", "view", "reshape", "unsqueeze", "squeeze", "flatten", "contiguous")
)
"""Methods of a tensor that compute nothing."""
_TENSOR_METHODS = _MOVES | frozenset(
    (
        *("abs", "abs_", "add", "add_", "all", "amax", "amin", "any", "argmax", "argmin", "argsort", "backward"),
        *("bfloat16", "bool", "chunk", "clamp", "clamp_min", "clone", "cos", "cumsum", "detach", "detach_", "diff"),
        *("dim", "div", "div_", "double", "eq", "exp", "expand", "expand_as", "flip", "float", "gather", "ge", "gt"),
        *("half", "is_contiguous", "isfinite", "isnan", "item", "le", "log", "log_softmax", "logsumexp", "lt"),
        *("masked_fill", "masked_select", "matmul", "max", "mean", "median", "min", "mm", "movedim", "mul", "mul_"),
        *("nelement", "norm", "numel", "numpy", "permute", "pow", "prod", "register_hook", "relu", "repeat"),
        *("requires_grad_", "retain_grad", "round", "rsub", "scatter", "sigmoid", "sign", "sin", "size", "softmax"),
        *("sort", "split", "sqrt", "square", "std", "sub", "sub_", "sum", "swapaxes", "t", "tanh", "tolist", "topk"),
        *("transpose", "type", "type_as", "unbind", "unflatten", "unfold", "var", "view_as", "zero_"),
    )
)
"""Methods that tensors have, and outputs of other kinds hardly."""
_TORCH_OF_ANYTHING = frozenset(
    ("cat", "compile", "concat", "concatenate", "hstack", "is_tensor", "save", "stack", "vstack")
)
"""Functions of torch that take more than one tensor, or anything."""
_LITERAL = re.compile(r"True|False|-?\d+(?:\.\d+)?")


def make_patch(records: Sequence[Applied], root: Path, *, script: Path | None = None) -> Patch:
    """The source change for files below ``root``; libraries are never touched.

    ``script`` is the file that the command starts, for techniques that act on the process: their line goes after its
    imports. Without it that is the file of all other records, if there is only one.
    """
    root = root.resolve()
    left_out: list[LeftOut] = []
    by_file: dict[Path, list[Applied]] = {}
    everywhere: dict[str, Applied] = {}
    for record in records:
        if record.technique in _LINES and not (record.explicit and record.where):
            if record.status == APPLIED or record.technique in everywhere:
                everywhere[record.technique] = record  # what was done to the process last is what holds
        elif record.where is None:
            if record.status == APPLIED:
                why = _NO_PROOF.get(record.technique, "no line of the script belongs to it")
                left_out.append(LeftOut(technique=record.technique, place=None, why=why))
        else:
            by_file.setdefault(Path(record.where.file), []).append(record)
    if script is None and len(by_file) == 1:
        script = next(iter(by_file))
    overridden = {record.technique for held in by_file.values() for record in held if record.explicit}
    for record in everywhere.values():
        if record.technique in overridden:
            continue  # the script's own calls say it
        if record.status != APPLIED:
            left_out.append(LeftOut(technique=record.technique, place=None, why=record.detail))
        elif script is None:
            why = "which file starts the training is not known"
            left_out.append(LeftOut(technique=record.technique, place=None, why=why))
        else:
            by_file.setdefault(root / script, []).append(record)
    files: list[FileChange] = []
    diffs: list[str] = []
    for path, held in sorted(by_file.items()):
        text = _read_source(path, root)
        if isinstance(text, _No):
            left_out += [_leave(record, text.why) for record in held if record.status == APPLIED]
            continue
        changed, missing, used = patch_source(text, held)
        left_out += missing
        if changed != text:
            name = path.resolve().relative_to(root).as_posix()
            diffs.append(_diff(name, text, changed))
            files.append(FileChange(path=path.resolve(), before=text.encode(), after=changed.encode(), techniques=used))
    return Patch(diff="".join(diffs), files=tuple(files), left_out=tuple(dict.fromkeys(left_out)))


def apply_patch(patch: Patch) -> None:
    """Write the changed files, each at once. Raises UsageError, with nothing written, if one is not as it was."""
    for change in patch.files:
        try:
            present = change.path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {change.path}: {error.strerror}; nothing was written") from None
        if present != change.before:
            raise UsageError(f"{change.path} was changed since the patch was made; nothing was written: make it again")
    written: list[FileChange] = []
    for change in patch.files:
        try:
            _replace(change.path, change.after)
        except OSError as error:
            for earlier in written:
                _replace(earlier.path, earlier.before)
            raise UsageError(f"cannot write {change.path}: {error.strerror}; nothing was changed") from None
        written.append(change)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content)
        partial.chmod(path.stat().st_mode & 0o7777)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


# ---- one file


@dataclass(frozen=True, slots=True)
class _No:
    why: str


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


@dataclass(slots=True)
class _Wanted:
    """What the records of one call want it to get. Objects that were built there unlike prove no value for all."""

    call: ast.Call
    arguments: dict[str, str] = field(default_factory=dict)
    holders: list[Applied] = field(default_factory=list)
    clash: str = ""

    def add(self, record: Applied, arguments: Mapping[str, str]) -> None:
        for name, value in arguments.items():
            if self.arguments.setdefault(name, value) != value:
                self.clash = f"the line is to get two values for {name}"
        self.holders.append(record)


def patch_source(text: str, records: Sequence[Applied]) -> tuple[str, tuple[LeftOut, ...], tuple[str, ...]]:
    """The source with what ``records`` applied, what was left out, and the ids of the techniques that are in it.

    Records that were not applied count too: a line that also built an object which was not changed stays as it is.
    """
    applied = [record for record in records if record.status == APPLIED]
    source = _parse(text)
    if isinstance(source, _No):
        return text, tuple(_leave(record, source.why) for record in applied), ()
    left_out: list[LeftOut] = []
    edits: list[_Edit] = []
    used: list[str] = []
    wanted: dict[tuple[int, int], _Wanted] = {}
    for record in applied:
        spoiled = _find_contradiction(record, records)
        if spoiled is not None:
            left_out.append(_leave(record, spoiled))
            continue
        if record.technique in _FORMS:
            found = _plan_arguments(source, record)
            if isinstance(found, _No):
                left_out.append(_leave(record, found.why))
                continue
            call, arguments = found
            wanted.setdefault((call.lineno, call.col_offset), _Wanted(call)).add(record, arguments)
            continue
        planned = _plan_edits(source, record)
        if isinstance(planned, _No):
            left_out.append(_leave(record, planned.why))
        elif _overlap(planned, edits) and not all(edit in edits for edit in planned):
            left_out.append(_leave(record, "another technique changes the same statement"))
        else:
            edits += [edit for edit in planned if edit not in edits]
            used.append(record.technique)
    for one in wanted.values():
        planned = _No(one.clash) if one.clash else _argument_edits(source, one.call, one.arguments)
        if isinstance(planned, _No) or _overlap(planned, edits):
            why = planned.why if isinstance(planned, _No) else "another technique changes the same statement"
            left_out += [_leave(record, why) for record in one.holders]
            continue
        edits += planned
        used += [record.technique for record in one.holders]
    changed = _edit(text, edits)
    try:
        ast.parse(changed)
    except (SyntaxError, ValueError, RecursionError):
        # Never seen; a patch that does not parse must not leave this function all the same.
        return text, tuple(_leave(record, "the changed file would not parse") for record in applied), ()
    return changed, tuple(left_out), tuple(sorted(set(used)))


def _find_contradiction(record: Applied, records: Sequence[Applied]) -> str | None:
    """Why the line cannot stand for this one object: it made others that were left alone."""
    if record.where is None:
        return None
    for other in records:
        if other.technique != record.technique or other.where is None or other.status == APPLIED:
            continue
        if (other.where.file, other.where.line) == (record.where.file, record.where.line):
            return f"the line also makes an object that was left alone ({other.detail})"
    return None


class _Source:
    """A parsed file: its text, its tree, where every line begins, and what its imports and tokens say."""

    def __init__(self, text: str, tree: ast.Module, tokens: list[tokenize.TokenInfo]) -> None:
        self.text = text
        self.tree = tree
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.tokens = [t for t in tokens if t.type not in (tokenize.NL, tokenize.COMMENT)]
        self.newline = "\r\n" if self.lines[0].endswith("\r") else "\n"
        self.imported: dict[str, str] = {}
        """Name in this file -> dotted name that it was imported from."""
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imported[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"

    def at(self, line: int, column_bytes: int) -> int:
        """Offset in the text of ast's position."""
        row = self.lines[line - 1]
        if row.isascii():
            return self.starts[line - 1] + column_bytes
        return self.starts[line - 1] + len(row.encode()[:column_bytes].decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def offset(self, position: tuple[int, int]) -> int:
        """Offset of a token's position, whose columns are characters."""
        return self.starts[position[0] - 1] + position[1]

    def last_name(self, call: ast.Call) -> str | None:
        """The class or function that is called, by its own name; import aliases are resolved."""
        if isinstance(call.func, ast.Attribute):
            return call.func.attr
        if isinstance(call.func, ast.Name):
            return self.imported.get(call.func.id, call.func.id).rpartition(".")[2]
        return None

    def dotted(self, node: ast.expr) -> str | None:
        """``torch.nn.functional.mse_loss`` of ``F.mse_loss``: a name by what it was imported from, else None."""
        if isinstance(node, ast.Attribute):
            left = self.dotted(node.value)
            return None if left is None else f"{left}.{node.attr}"
        return self.imported.get(node.id) if isinstance(node, ast.Name) else None

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that it stands in: the two arms of an ``if`` are two."""
        lists = [value for _, value in ast.iter_fields(self.parents[statement]) if isinstance(value, list)]
        return next(one for one in lists if any(node is statement for node in one))

    def statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def scope(self, node: ast.AST) -> ast.AST:
        while node in self.parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            node = self.parents[node]
        return node

    @property
    def has_os(self) -> bool:
        """Whether ``os`` is the standard library's everywhere in the file."""
        return (
            any(
                isinstance(node, ast.Import) and any(a.name == "os" and not a.asname for a in node.names)
                for node in self.tree.body
            )
            and self.imported.get("os") == "os"
        )

    @property
    def has_torch(self) -> bool:
        return self.imported.get("torch") == "torch"


def _parse(text: str) -> _Source | _No:
    if "\x0c" in text or "\r" in text.replace("\r\n", ""):
        return _No("the file holds form feeds or bare carriage returns")
    plain = text.removeprefix("\ufeff")
    try:
        tree = ast.parse(plain)
        tokens = list(tokenize.generate_tokens(io.StringIO(plain).readline))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
        return _No(f"the file cannot be parsed ({type(error).__name__})")
    if plain != text:
        return _No("the file begins with a byte order mark")
    return _Source(text, tree, tokens)


# ---- arguments of a call


def _plan_arguments(source: _Source, record: Applied) -> tuple[ast.Call, dict[str, str]] | _No:
    form = _FORMS[record.technique]
    call = _find_call(source, record)
    if isinstance(call, _No):
        return call
    arguments = dict(form.constants) if form.constants else _read_values(record, form)
    if not arguments:
        return _No(f"the record does not say which {' or '.join(form.names)} was chosen")
    niceness = re.search(r"\(nice (\d+)\)", record.detail)
    if niceness is not None:
        # What a worker runs first must be sent to it where it is spawned, which a lambda cannot be.
        if not source.has_os or " fork," not in record.detail:
            return _No("the workers' lower priority is a worker_init_fn of forked workers in a file that imports os")
        arguments["worker_init_fn"] = f"lambda _: os.nice({niceness.group(1)})"
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            return _No(f"the call has *{ast.unparse(argument.value)}, which may hold the argument already")
    if len(call.args) > form.most_positional:
        return _No("the call has so many positional arguments that one of them may be meant")
    excluded = _EXCLUDED.get(record.technique)
    for keyword in call.keywords:
        if keyword.arg is None:
            return _No(f"the call has **{ast.unparse(keyword.value)}, which may hold {form.names[0]} already")
        if keyword.arg == excluded and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
            arguments[keyword.arg] = "False"
        if keyword.arg in arguments and not isinstance(keyword.value, ast.Constant):
            return _No(f"{keyword.arg}={ast.unparse(keyword.value)} stands in the script")
    return call, arguments


def _read_values(record: Applied, form: _Arguments) -> dict[str, str]:
    """What was done says the detail (a setting may have been hotloop's to choose), else the setting."""
    found = {}
    for name in form.names:
        said = re.search(rf"\b{name}\s*[= ]\s*({_LITERAL.pattern})", record.detail)
        value = record.settings.get(name)
        if said is not None:
            found[name] = said.group(1)
        elif not form.is_told and isinstance(value, bool | int | float):
            found[name] = repr(value)
    return found


def _find_call(source: _Source, record: Applied) -> ast.Call | _No:
    """The one call at the record's line that names its target."""
    assert record.where is not None
    line = record.where.line
    calls = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and source.last_name(node) == record.target
    ]
    exact = [node for node in calls if node.lineno == line]
    found = exact or calls
    if not found:
        return _No(f"line {line} holds no call of {record.target} by its name")
    if len(found) > 1:
        return _No(f"line {line} holds {len(found)} calls of {record.target}")
    return found[0]


def _argument_edits(source: _Source, call: ast.Call, arguments: Mapping[str, str]) -> list[_Edit] | _No:
    edits = []
    missing = dict(arguments)
    for keyword in call.keywords:
        if keyword.arg in missing:
            start, end = source.span(keyword.value)
            value = missing.pop(keyword.arg)
            if source.text[start:end] != value:
                edits.append(_Edit(start, end, value))
    if not missing:
        return edits
    end = source.span(call)[1] - 1
    if source.text[end] != ")":
        return _No("the end of the call was not found")
    within = [t for t in source.tokens if t.type not in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)]
    last = max(
        (t for t in within if source.offset(t.end) <= end and t.string),
        key=lambda t: source.offset(t.end),
        default=None,
    )
    if last is None:
        return _No("the end of the call was not found")
    added = [f"{name}={value}" for name, value in missing.items()]
    after = source.offset(last.end)
    closing_line = call.end_lineno or call.lineno
    if last.string == "(":
        return [*edits, _Edit(after, after, ", ".join(added))]
    if last.end[0] == closing_line or not (call.args or call.keywords):
        lead = " " if last.string == "," else ", "
        return [*edits, _Edit(after, after, lead + ", ".join(added))]
    # The closing bracket has a line of its own: each argument gets one, too.
    first = min(
        [*(node for node in call.args), *(keyword.value for keyword in call.keywords)], key=lambda node: node.lineno
    )
    row = source.lines[first.lineno - 1] if first.lineno > call.lineno else source.lines[last.start[0] - 1]
    indent = row[: len(row) - len(row.lstrip())]
    if last.string != ",":
        edits.append(_Edit(after, after, ","))
    start = source.starts[closing_line - 1]
    return [*edits, _Edit(start, start, "".join(f"{indent}{one},{source.newline}" for one in added))]


# ---- lines and statements


def _plan_edits(source: _Source, record: Applied) -> list[_Edit] | _No:
    plan = _PLANS.get(record.technique)
    if plan is None:
        why = _NO_PROOF.get(record.technique, "it has no form in the source; the strategy file holds it")
        return _No(why)
    if not source.has_torch:
        return _No("the file does not `import torch`")
    return plan(source, record)


def _plan_line(source: _Source, record: Applied) -> list[_Edit] | _No:
    """A call on torch after the imports; where the script's own call was overridden, that call with another value."""
    form = _LINES[record.technique]
    function = form.function
    line = record.where.line if record.explicit and record.where is not None else None
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and source.last_name(n) == function]
    for node in calls:
        if node.lineno != line:
            return _No(f"the script calls {function} itself (line {node.lineno})")
    said = re.search(form.said, record.detail)
    value: Value = said.group(1) if said else record.settings.get(form.setting)
    if isinstance(value, bool) or not isinstance(value, str | int) or not re.fullmatch(r"\w+", str(value)):
        return _No(f"the record does not say which {form.setting} was chosen")
    text = str(value) if str(value).isdigit() else f'"{value}"'
    if line is not None:
        if len(calls) != 1 or len(calls[0].args) != 1 or isinstance(calls[0].args[0], ast.Starred):
            return _No(f"line {line} holds no call of {function} with one argument")
        return [_Edit(*source.span(calls[0].args[0]), text)]
    last: ast.stmt | None = None
    seen = False
    for statement in source.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            last = statement
            seen = seen or (isinstance(statement, ast.Import) and any(a.name == "torch" for a in statement.names))
        elif seen:
            break
    if last is None or not seen:
        return _No("the file does not import torch at its top")
    return _insert_after(source, last, f"torch.{function}({text})", blank=True)


def _insert_after(source: _Source, statement: ast.stmt, text: str, *, blank: bool = False) -> list[_Edit] | _No:
    """A line of its own after a statement, which must be the last on its line."""
    if not _stands_alone(source, statement):
        return _No(f"line {statement.lineno} holds more than one statement")
    row = source.lines[statement.lineno - 1]
    indent = row[: len(row) - len(row.lstrip())]
    line = statement.end_lineno or statement.lineno
    space = source.newline if blank else ""
    if line == len(source.lines):  # the file ends without a line break
        return [_Edit(len(source.text), len(source.text), f"{source.newline}{space}{indent}{text}")]
    start = source.starts[line]
    return [_Edit(start, start, f"{space}{indent}{text}{source.newline}")]


def _stands_alone(source: _Source, statement: ast.stmt) -> bool:
    """Nothing else stands on the lines of the statement, but for a comment."""
    start, end = source.span(statement)
    head = source.text[source.starts[statement.lineno - 1] : start]
    tail = source.text[end : source.starts[statement.end_lineno or statement.lineno] - 1]
    return not head.strip() and (not tail.strip() or tail.lstrip().startswith("#"))


def _plan_compile(source: _Source, record: Applied) -> list[_Edit] | _No:
    """``model.compile()`` after the last assignment of the one name that was called and built as this class."""
    if record.settings.get("regional") or " blocks of " in record.detail:
        return _No("its blocks were compiled one by one, which has no form in the source")
    found = _find_forward(source, record)
    if isinstance(found, _No):
        return found
    call, _ = found
    if not isinstance(call.func, ast.Name):
        return _No(f"{ast.unparse(call.func)} is not a plain name: where it was built is not proven")
    name, scope = call.func.id, source.scope(call)
    assigned = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.withitem)
        and source.scope(node) is scope
        and name in _names_set(node)
    ]
    plain = [
        node
        for node in assigned
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ]
    built = [node for node in plain if _builds(source, node.value, record.target)]
    if len(built) != 1 or len(plain) != len(assigned):
        return _No(f"{name} is not built as {record.target} in one place of the function that calls it")
    if any("compile" in ast.unparse(node.value) for node in plain):
        return _No(f"{name} is compiled in the script")
    if _inherits_forward(source, built[0].value, record.target):
        return _No(f"{record.target} runs a forward of torch's own, of which Module.compile compiles nothing")
    last = max(plain, key=lambda node: node.lineno)
    block = source.block(built[0])
    if any(source.block(node) is not block for node in plain) or last.lineno >= call.lineno:
        return _No(f"{name} is assigned again in another block")
    keywords = [
        f"{key}={value!r}"
        for key, value in record.settings.items()
        if key in ("mode", "dynamic", "fullgraph", "backend") and value is not None and isinstance(value, str | bool)
    ]
    return _insert_after(source, last, f"{name}.compile({', '.join(keywords)})")


def _names_set(node: ast.AST) -> set[str]:
    targets: list[ast.AST] = list(getattr(node, "targets", ()))
    targets += [t for t in (getattr(node, "target", None), getattr(node, "optional_vars", None)) if t is not None]
    return {
        one.id
        for target in targets
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


def _builds(source: _Source, value: ast.expr, target: str | None) -> bool:
    """``Net(...)``, also as ``Net(...).to(device)``."""
    while isinstance(value, ast.Call):
        if source.last_name(value) == target:
            return True
        if not isinstance(value.func, ast.Attribute):
            return False
        value = value.func.value
    return False


def _inherits_forward(source: _Source, value: ast.expr, target: str | None) -> bool:
    """Whether the class is torch's own, or one of this file that leaves the forward to what it inherits from."""
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and source.last_name(node) == target]
    if any((source.dotted(call.func) or "").startswith("torch.") for call in calls):
        return True
    classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef) and node.name == target]
    return any(
        not any(isinstance(one, ast.FunctionDef) and one.name == "forward" for one in node.body) for node in classes
    )


def _plan_autocast(source: _Source, record: Applied) -> list[_Edit] | _No:
    """The model's call at the line inside autocast, what it answers in float32."""
    device = re.search(r"autocast\(['\"](\w+)['\"]", record.detail)
    if device is None:
        return _No("the record does not say for which device")
    found = _find_forward(source, record)
    if isinstance(found, _No):
        return found
    call, statement = found
    for node in ast.walk(call):
        moves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MOVES
        if isinstance(node, ast.Call) and node is not call and not moves:
            return _No(f"{ast.unparse(node.func)}() in the arguments would run under autocast, too")
    if not _stands_alone(source, statement) or _spans_string(source, statement):
        return _No(f"line {statement.lineno} is not a simple statement")
    row = source.lines[statement.lineno - 1]
    indent = row[: len(row) - len(row.lstrip())]
    unit = "\t" if "\t" in indent else "    "
    head = f'{indent}with torch.autocast("{device.group(1)}", dtype=torch.bfloat16):{source.newline}'
    begin = source.starts[statement.lineno - 1]
    end_line = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        names = _plain_names(statement.targets[0])
        if names is None:
            return _No("the call's outcome is not assigned to plain names")
        for one in names:
            odd = _find_other_use(source, call, one)
            if odd is not None:
                return _No(odd)
        lines = [_Edit(source.starts[at], source.starts[at], unit) for at in range(statement.lineno - 1, end_line)]
        told = ", ".join(names) + " = " + ", ".join(f"{name}.float()" for name in names)
        tail = _insert_after(source, statement, told)
        if isinstance(tail, _No):
            return tail
        return [_Edit(begin, begin, head + unit), *lines[1:], *tail]
    before = _find_evaluated_before(statement, call)
    if before is not None:
        return _No(f"{before} is evaluated before the model is called: the line is not a simple statement")
    use = _read_use(source, call, call)
    if use is not _Use.TENSOR:
        return _No(_doubt(ast.unparse(source.parents[call]), ast.unparse(call), use))
    used = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    name = next((one for one in ("output", "model_output", "autocast_output") if one not in used), None)
    if name is None:
        return _No("no free name for the model's output")
    if call.lineno != call.end_lineno:
        return _No("the call of the model has several lines inside a larger statement")
    start, end = source.span(call)
    hoisted = f"{head}{indent}{unit}{name} = {source.text[start:end]}{source.newline}"
    return [_Edit(begin, begin, hoisted), _Edit(start, end, f"{name}.float()")]


def _find_forward(source: _Source, record: Applied) -> tuple[ast.Call, ast.stmt] | _No:
    """The one call at the line that can be the model's: of a local name or of an attribute of self."""
    assert record.where is not None
    line = record.where.line
    functions = {n.name for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    calls = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in source.imported and function.id not in functions and function.id not in _BUILTINS:
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
        return _No(f"line {line} holds {count} that may be the model's: which one is not proven")
    statement = source.statement(exact[0])
    if not isinstance(statement, ast.Assign | ast.Expr | ast.Return | ast.AnnAssign | ast.AugAssign):
        return _No(f"line {line} is not a simple statement")
    for outer in _enclosing(source, exact[0]):
        if isinstance(outer, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.IfExp):
            return _No(f"line {line} calls the model inside a comprehension, lambda or condition")
        if isinstance(outer, ast.BoolOp | ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return _No(f"line {line} is not a simple statement")
    return exact[0], statement


_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def _enclosing(source: _Source, node: ast.AST) -> Iterator[ast.AST]:
    while not isinstance(node, ast.stmt):
        yield node
        node = source.parents[node]


def _find_evaluated_before(statement: ast.stmt, call: ast.Call) -> str | None:
    """A call that Python makes before this one's: the statement must not be taken apart then."""
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or node is call:
            continue
        around = any(child is call for child in ast.walk(node))
        inside = any(child is node for child in ast.walk(call))
        if not around and not inside and (node.lineno, node.col_offset) < (call.lineno, call.col_offset):
            return f"{ast.unparse(node.func)}()"
        # A call around the model's evaluates what it calls first, unless the model's own answer is what is called on.
        below = list(ast.walk(node.func))
        if around and call not in below and any(isinstance(child, ast.Call) for child in below):
            return f"{ast.unparse(node.func)}()"
    if isinstance(statement, ast.AugAssign):
        return f"the old value of {ast.unparse(statement.target)}"
    return None


def _plain_names(target: ast.expr) -> list[str] | None:
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, ast.Tuple | ast.List) and all(isinstance(one, ast.Name) for one in target.elts):
        return [one.id for one in target.elts if isinstance(one, ast.Name)]
    return None


class _Use(Enum):
    """What a use of a value says about it."""

    TENSOR = "only a tensor has it"
    OTHER = "a tensor does not have it"
    OPEN = "it leaves the line, or does what others do too"
    NOTHING = "it says nothing"


def _find_other_use(source: _Source, call: ast.Call, name: str) -> str | None:
    """Why what ``call`` answers under this name is no tensor, or may be none; None where every use fits one.

    A name that is only handed on to code which is not understood may hold a dictionary or an object of the model's own.
    """
    is_tensor, doubt = False, None
    for node in ast.walk(source.scope(call)):
        if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
            continue
        use = _read_use(source, node, call)
        if use is _Use.OTHER:
            return _doubt(ast.unparse(source.parents[node]), name, use)
        is_tensor = is_tensor or use is _Use.TENSOR
        if use is _Use.OPEN:
            doubt = _doubt("", name, use)
    return None if is_tensor else doubt


def _doubt(text: str, name: str, use: _Use) -> str:
    if use is _Use.OTHER:
        line, _, _ = text.strip().partition("\n")
        return f"`{line}` is used: {name} is not a plain tensor, or not always"
    return f"nothing in the script shows that {name} is a tensor"


def _read_use(source: _Source, value: ast.expr, call: ast.Call) -> _Use:
    """What the expression around ``value`` (the model's ``call``, or a name that holds its outcome) says of it."""
    parent = source.parents[value]
    above = source.parents.get(parent)
    if isinstance(parent, ast.Attribute):
        known = _TENSOR_METHODS if isinstance(above, ast.Call) and above.func is parent else _TENSOR_ATTRIBUTES
        return _Use.TENSOR if parent.attr in known else _Use.OTHER
    if isinstance(parent, ast.Subscript) and parent.value is value:
        return _read_index(parent.slice)
    if isinstance(parent, ast.Compare):
        return _read_comparison(parent, value)
    if isinstance(parent, ast.BinOp):
        return _Use.OPEN if isinstance(parent.op, ast.BitOr | ast.Mod) else _Use.TENSOR
    if isinstance(parent, ast.keyword):
        return _Use.OTHER if parent.arg is None else _read_argument(source, above, call)
    if isinstance(parent, ast.Call):
        return _read_argument(source, parent, call)
    if isinstance(parent, ast.Assign) and any(isinstance(one, ast.Tuple | ast.List) for one in parent.targets):
        return _Use.OTHER
    if isinstance(parent, ast.Starred | ast.For | ast.comprehension):
        return _Use.OTHER
    if isinstance(parent, ast.UnaryOp | ast.AugAssign):
        return _Use.OPEN if isinstance(parent.op, ast.Not) else _Use.TENSOR
    if isinstance(parent, ast.FormattedValue | ast.Expr):
        return _Use.NOTHING
    return _Use.OPEN


def _read_index(index: ast.expr) -> _Use:
    """``[:, -1]`` has only a tensor; ``[0]`` a tuple and ``["x"]`` a dictionary."""
    if isinstance(index, ast.Tuple):
        return _Use.TENSOR
    plain = index.operand if isinstance(index, ast.UnaryOp) else index
    return _Use.OTHER if isinstance(plain, ast.Constant) else _Use.OPEN


def _read_comparison(comparison: ast.Compare, value: ast.expr) -> _Use:
    if any(isinstance(one, ast.Is | ast.IsNot) for one in comparison.ops):
        return _Use.OTHER
    if any(isinstance(one, ast.In | ast.NotIn) for one in comparison.ops):
        return _Use.OPEN if comparison.left is value else _Use.OTHER
    return _Use.TENSOR


def _read_argument(source: _Source, taker: ast.AST | None, call: ast.Call) -> _Use:
    """What it says of a value that ``taker`` gets it as an argument."""
    assert isinstance(taker, ast.Call)
    function = taker.func
    if ast.unparse(function) == ast.unparse(call.func):
        return _Use.OTHER  # a hidden state that the model gets back: of an LSTM it is a tuple
    name = source.dotted(function)
    if name is not None:
        package, _, last = name.rpartition(".")
        is_of_tensors = package == "torch.nn.functional" or (package == "torch" and last not in _TORCH_OF_ANYTHING)
        return _Use.TENSOR if is_of_tensors else _Use.OPEN
    built = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and any(ast.unparse(one) == ast.unparse(function) for one in node.targets)
    ]
    if built:
        return _Use.TENSOR if all(_is_torch_loss(source, one) for one in built) else _Use.OPEN
    if isinstance(function, ast.Name) and function.id in _BUILTINS:
        if function.id in ("float", "int", "abs"):
            return _Use.TENSOR
        return _Use.NOTHING if function.id in ("print", "len", "type", "id", "repr", "str") else _Use.OTHER
    return _Use.OPEN


def _is_torch_loss(source: _Source, value: ast.expr) -> bool:
    """``nn.CrossEntropyLoss()``, also moved to a device, or ``F.cross_entropy``."""
    while isinstance(value, ast.Call) and source.dotted(value.func) is None and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if isinstance(value, ast.Call):
        name = source.dotted(value.func) or ""
        return name.startswith("torch.nn.") and name.endswith("Loss")
    return (source.dotted(value) or "").startswith("torch.nn.functional.")


def _spans_string(source: _Source, statement: ast.stmt) -> bool:
    """A string over several lines, which an indent would change."""
    start, end = source.span(statement)
    return any(
        node.lineno != node.end_lineno
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant | ast.JoinedStr) and start <= source.span(node)[0] < end
    )


def _plan_zero_grad(source: _Source, record: Applied) -> list[_Edit] | _No:
    assert record.where is not None
    counts = re.search(r"for (\d+) of (\d+) parameters", record.detail)
    if counts is None or counts.group(1) != counts.group(2):
        return _No("not every parameter is known to get a gradient in every step, as the argument would need")
    calls = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and node.lineno == record.where.line and source.last_name(node) == "zero_grad"
    ]
    if len(calls) != 1:
        return _No(f"line {record.where.line} holds {len(calls)} calls of zero_grad")
    for keyword in calls[0].keywords:
        if keyword.arg == "set_to_none" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False:
            start, end = source.span(keyword.value)
            return [_Edit(start, end, "True")]
    return _No("set_to_none=False does not stand there")


_PLANS: dict[str, Callable[[_Source, Applied], list[_Edit] | _No]] = {
    "matmul-precision": _plan_line,
    "thread-count": _plan_line,
    "compile-model": _plan_compile,
    "bf16-autocast": _plan_autocast,
    "zero-grad-to-none": _plan_zero_grad,
}


# ---- texts


def _overlap(planned: Sequence[_Edit], edits: Sequence[_Edit]) -> bool:
    """Whether a change of the one lies inside a change of the other; insertions at the same place do not."""
    for one in planned:
        for other in edits:
            if one.start < other.end and other.start < one.end:
                return True
            for point, span in ((one, other), (other, one)):
                if point.start == point.end and span.start < point.start < span.end:
                    return True
    return False


def _edit(text: str, edits: Sequence[_Edit]) -> str:
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def _leave(record: Applied, why: str) -> LeftOut:
    place = None if record.where is None else f"{record.where.file}:{record.where.line}"
    return LeftOut(technique=record.technique, place=place, why=why)


def _read_source(path: Path, root: Path) -> str | _No:
    """The file's text, exactly; a reason where it may not or cannot be changed."""
    try:
        real = path.resolve()
        if not real.is_relative_to(root):
            return _No(f"the file is not below {root}")
        if _is_library(real):
            return _No("the file belongs to a library")
        if real.suffix not in (".py", ""):
            return _No("the file is not Python source")
        with real.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        return _No(f"the file cannot be read ({getattr(error, 'strerror', None) or error})")
    name = real.relative_to(root).as_posix()
    if len(data) > MOST_BYTES:
        return _No(f"the file is larger than {MOST_BYTES} bytes")
    if any(not c.isprintable() or c in '"\\' for c in name):
        return _No("the file's name has characters that a diff cannot carry")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if encoding not in ("utf-8", "utf-8-sig"):
            return _No(f"the file is in {encoding}, not UTF-8")
        return data.decode("utf-8")
    except (SyntaxError, UnicodeDecodeError):
        return _No("the file is not UTF-8")


def _is_library(path: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib"))


def _diff(name: str, before: str, after: str) -> str:
    """A unified diff as git and patch read it: line endings as they are, and a mark where the last one is missing."""
    quoted = f"{name}\t" if " " in name else name  # how git marks the end of a name with spaces
    sides = [[line + "\n" for line in text.split("\n")] for text in (before, after)]
    for side in sides:
        side[-1] = side[-1].removesuffix("\n")
        if not side[-1]:
            side.pop()
    lines = []
    for line in difflib.unified_diff(sides[0], sides[1], f"a/{quoted}", f"b/{quoted}", n=CONTEXT_LINES):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)
