"""Text of a shell script -> its commands, read by tree-sitter's grammar of bash: words, assignments, blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

MOST_BYTES = 1 << 20
"""The limit for one script; longer files are data."""
_BLOCKS = {
    "if_statement": "if",
    "elif_clause": "if",
    "else_clause": "if",
    "case_item": "case",
    "for_statement": "loop",
    "c_style_for_statement": "loop",
    "while_statement": "loop",
    "function_definition": "function",
    "subshell": "subshell",
}
_QUOTED = re.compile(r"[\"'\\]")
_JOINS = ("&&", "||", "|", "|&")
_GLUED = re.compile(rb"(?<![^\s'\"`])[^\s'\"`$]*+(?:\$\w++[^\s'\"`$]*+){2}[^\s'\"`]*+")
"""A word with several expansions without braces, in which the grammar sees two words."""
_INNER = ("command_substitution", "process_substitution")
_EXPANDS = ("simple_expansion", "expansion", "command_substitution", "process_substitution", "arithmetic_expansion")
_QUOTES = {"string": '"', "raw_string": "'", "ansi_c_string": "'"}
_COMMANDS = ("command", "declaration_command", "unset_command", "test_command", "variable_assignment")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellWord:
    """A word of a command: ``raw`` as written, ``text`` without quotes; expansions (``$X``) stay as written.

    ``is_literal``: this shell expands nothing in it. ``quote`` is the quote around the whole word, if any.
    """

    raw: str
    text: str
    is_literal: bool
    quote: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A simple command. ``text`` is as written, with continued lines joined. ``line`` and ``last_line`` are 1-based;
    ``assignments`` precede it (``A=1 python x.py``) or are set by ``export A=1``; a bare ``A=1`` is a command without
    words. ``name`` is the last part of the first word: ``python`` for ``/usr/bin/python``.

    ``is_quoted_heredoc``: this shell expands nothing in its heredoc (``<<'EOF'``).

    ``after`` is the operator that joins it to the command before and ``before`` the one that joins it to the next
    (``&&``, ``||``, ``|``, ``|&``), empty at the ends of a statement. ``blocks`` enclose it, from the outermost inward:
    if, case, loop, function:NAME, subshell, substitution, condition (of an if or while).
    """

    words: tuple[ShellWord, ...]
    assignments: tuple[tuple[str, ShellWord], ...]
    redirects: tuple[str, ...]
    heredoc: str | None
    is_quoted_heredoc: bool
    line: int
    last_line: int
    text: str
    after: str
    before: str
    is_background: bool
    blocks: tuple[str, ...]
    name: str

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words[1:])

    def at(self, pattern: str) -> ShellWord | ShellCommand:
        """The first word that matches, which has a line of its own in a command of several; else the command."""
        return next((word for word in self.words if re.match(pattern, word.text)), self)


@dataclass(frozen=True, kw_only=True)
class ShellScript:
    """The commands of a script in order. ``is_whole``: the grammar accepted the whole text."""

    commands: tuple[ShellCommand, ...]
    is_whole: bool

    def named(self, *names: str) -> list[ShellCommand]:
        return [command for command in self.commands if command.name in names] if self._names & {*names} else []

    @cached_property
    def _names(self) -> set[str]:
        return {command.name for command in self.commands}

    def assigned(self, name: str) -> list[ShellWord]:
        """Every value that the script gives to a variable, in order."""
        return [value for command in self.commands for key, value in command.assignments if key == name]


def split_words(text: str, *, comments: bool = False) -> list[str]:
    """Words as a shell splits them; split at spaces if a quote is not closed."""
    if not comments and not _QUOTED.search(text):
        return text.split()
    try:
        return shlex.split(text, comments)
    except ValueError:
        return text.split()


def parse_shell(text: str, first_line: int = 1) -> ShellScript:
    """``first_line`` is the line of the file at which the text begins. Text beyond MOST_BYTES is not read."""
    data = text.encode("utf-8", "replace")[:MOST_BYTES]
    data = _GLUED.sub(lambda word: re.sub(rb"(?<!\\)\$([A-Za-z_]\w*)", rb"${\1}", word[0]), data)
    root = _parser().parse(data).root_node
    return ShellScript(commands=tuple(_walk(root, first_line)), is_whole=not root.has_error)


@cache
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a node: the operators that join it, the redirects of its parents, and the blocks around it."""

    after: str = ""
    before: str = ""
    is_background: bool = False
    redirects: tuple[Any, ...] = ()
    blocks: tuple[str, ...] = ()


def _walk(root: Any, first_line: int) -> Iterator[ShellCommand]:
    """Depth first, without recursion, as the script's nesting has no limit."""
    waiting: list[tuple[Any, _Place]] = [(root, _Place())]
    while waiting:
        node, place = waiting.pop()
        if node.type in _COMMANDS:
            command = _read_command(node, place, first_line)
            yield command
            opens = "(" in command.text or "`" in command.text
            inner = [child for child in _descend(node) if child.type in _INNER] if opens else []
            waiting += [(child, _Place(blocks=(*place.blocks, "substitution"))) for child in reversed(inner)]
            continue
        waiting += reversed(list(_place_children(node, place)))


def _place_children(node: Any, place: _Place) -> Iterator[tuple[Any, _Place]]:
    blocks = place.blocks
    if (block := _BLOCKS.get(node.type)) is not None:
        named = node.child_by_field_name("name") if block == "function" else None
        blocks = (*blocks, f"function:{_text(named)}" if named is not None else block)
    children = node.children
    redirects = place.redirects
    kinds = [child.type for child in children]
    if node.type == "redirected_statement":
        redirects = (*redirects, *(child for child in children if child.type.endswith("redirect")))
    is_joined = node.type in ("list", "pipeline", "redirected_statement", "negated_command")
    named = [at for at, child in enumerate(children) if child.is_named]
    parts = [at for at in named if kinds[at] != "comment" and not kinds[at].endswith("redirect")]
    has_condition = node.type in ("if_statement", "elif_clause", "while_statement")
    for at in parts:
        following = kinds[at + 1] if at + 1 < len(kinds) and kinds[at + 1] in _JOINS else ""
        preceding = kinds[at - 1] if at and kinds[at - 1] in _JOINS else ""
        is_last = at + 1 == len(children)
        yield (
            children[at],
            _Place(
                after=preceding or (place.after if at == parts[0] else "") if is_joined else "",
                before=following or (place.before if at == parts[-1] else "") if is_joined else "",
                is_background=place.is_background or (not is_last and kinds[at + 1] == "&"),
                redirects=redirects,
                blocks=(*blocks, "condition")
                if has_condition and node.field_name_for_child(at) == "condition"
                else blocks,
            ),
        )


def _descend(node: Any) -> Iterator[Any]:
    waiting = list(node.children)
    while waiting:
        child = waiting.pop()
        yield child
        if child.type not in _INNER:
            waiting += child.children


def _read_command(node: Any, place: _Place, first_line: int) -> ShellCommand:
    words: list[ShellWord] = []
    assignments: list[tuple[str, ShellWord]] = []
    own: list[Any] = []
    for child in [node] if node.type == "variable_assignment" else node.children:
        if child.type == "variable_assignment":
            name, value = _text(child.child_by_field_name("name")), child.child_by_field_name("value")
            given = _read_word(value, first_line) if value is not None else ShellWord(raw="", text="", is_literal=True)
            is_added = len(child.children) > 1 and child.children[1].type == "+="
            text = f"${{{name}}}{given.text}" if is_added else given.text
            assignments.append((name, replace(given, text=text, is_literal=given.is_literal and not is_added)))
        elif child.type.endswith("redirect"):
            own.append(child)
        elif child.type == "command_name":
            words += [_read_word(part, first_line) for part in child.children[:1] or [child]]
        elif child.is_named or node.type in ("declaration_command", "unset_command") or child.type in ("[", "[["):
            words.append(_read_word(child, first_line))
    redirects = (*own, *place.redirects)
    bodies = [part for one in redirects if one.type == "heredoc_redirect" for part in one.children]
    body = next((part for part in bodies if part.type == "heredoc_body"), None)
    files = [_text(one) for one in (*redirects, *bodies) if one.type in ("file_redirect", "herestring_redirect")]
    return ShellCommand(
        words=tuple(words),
        assignments=tuple(assignments),
        redirects=tuple(files),
        heredoc=_text(body) if body is not None else None,
        is_quoted_heredoc=any(part.type == "heredoc_start" and not _text(part).isidentifier() for part in bodies),
        line=node.start_point[0] + first_line,
        last_line=node.end_point[0] + first_line,
        text=re.sub(r"[ \t]*\\\n[ \t]*", " ", _text(node)),
        after=place.after,
        before=place.before,
        is_background=place.is_background,
        blocks=place.blocks,
        name=words[0].text.rsplit("/", 1)[-1] if words else "",
    )


def _read_word(node: Any, first_line: int) -> ShellWord:
    raw, kind = _text(node), node.type
    may_expand = "$" in raw or "`" in raw or "(" in raw
    is_literal = not may_expand or (
        kind not in _EXPANDS and all(child.type not in _EXPANDS for child in _descend(node))
    )
    return ShellWord(
        raw=raw,
        text=_unquote(node, raw, kind),
        is_literal=is_literal,
        quote=_QUOTES.get(kind, ""),
        line=node.start_point[0] + first_line,
    )


def _unquote(node: Any, raw: str, kind: str) -> str:
    if kind == "raw_string":
        return raw[1:-1]
    if kind == "string":
        return raw[1:-1].replace('\\"', '"').replace("\\\n", "")
    if kind == "concatenation":
        return "".join(_unquote(child, _text(child), child.type) for child in node.children)
    return raw.replace("\\\n", "").replace("\\", "") if kind == "word" else raw


def _text(node: Any) -> str:
    return node.text.decode("utf-8", "replace") if node is not None else ""
