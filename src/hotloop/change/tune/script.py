"""A training script's text -> its syntax with places in the text, and changes that are insertions into it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass


class Refusal(Exception):
    """Why the script is left as it is."""


@dataclass(frozen=True, slots=True)
class ScriptEdit:
    """``text`` replaces the span from ``start`` to ``end``, offsets in the script's text."""

    start: int
    end: int
    text: str


class Script:
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
        """The list of statements that contains it: the two arms of an ``if`` are two."""
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

    def imports(self, module: str) -> bool:
        """Whether the name of a module is that module everywhere in the file."""
        return (
            any(
                isinstance(node, ast.Import) and any(a.name == module and not a.asname for a in node.names)
                for node in self.tree.body
            )
            and self.imported.get(module) == module
        )

    @property
    def has_torch(self) -> bool:
        return self.imported.get("torch") == "torch"


def parse_script(text: str) -> Script:
    """Raises Refusal for a text whose places cannot be located reliably."""
    if "\x0c" in text or "\r" in text.replace("\r\n", ""):
        raise Refusal("the file contains form feeds or bare carriage returns")
    plain = text.removeprefix("\ufeff")
    try:
        tree = ast.parse(plain)
        tokens = list(tokenize.generate_tokens(io.StringIO(plain).readline))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
        raise Refusal(f"the file cannot be parsed ({type(error).__name__})") from error
    if plain != text:
        raise Refusal("the file begins with a byte order mark")
    return Script(text, tree, tokens)


def insert_after(script: Script, statement: ast.stmt, text: str, *, blank: bool = False) -> list[ScriptEdit]:
    """A line of its own after a statement. Raises Refusal where that is not the last on its line."""
    if not stands_alone(script, statement):
        raise Refusal(f"line {statement.lineno} contains more than one statement")
    row = script.lines[statement.lineno - 1]
    indent = row[: len(row) - len(row.lstrip())]
    line = statement.end_lineno or statement.lineno
    space = script.newline if blank else ""
    if line == len(script.lines):  # the file ends without a line break
        return [ScriptEdit(len(script.text), len(script.text), f"{script.newline}{space}{indent}{text}")]
    start = script.starts[line]
    return [ScriptEdit(start, start, f"{space}{indent}{text}{script.newline}")]


def stands_alone(script: Script, statement: ast.stmt) -> bool:
    """Whether the statement has its lines to itself, except for a comment."""
    start, end = script.span(statement)
    head = script.text[script.starts[statement.lineno - 1] : start]
    tail = script.text[end : script.starts[statement.end_lineno or statement.lineno] - 1]
    return not head.strip() and (not tail.strip() or tail.lstrip().startswith("#"))


def overlap(planned: Sequence[ScriptEdit], edits: Sequence[ScriptEdit]) -> bool:
    """Whether a change in one overlaps a change in the other; insertions at the same place do not."""
    for one in planned:
        for other in edits:
            if one.start < other.end and other.start < one.end:
                return True
            for point, span in ((one, other), (other, one)):
                if point.start == point.end and span.start < point.start < span.end:
                    return True
    return False


def apply_edits(text: str, edits: Sequence[ScriptEdit]) -> str:
    parts, at = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])
