"""Text of a YAML or JSON file -> its documents as Fields: each value with its line, aliases shared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import Any

from hotloop.judge.lint.files import NotRead

MOST_NESTED = 100
"""Depth up to which the fast reader, which is written in C and recurses, is used."""
MOST_MERGED = 5
"""The limit of anchors that a mapping merges with ``<<``, one through another."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Scalars that YAML 1.2, JSON and Go read as numbers and PyYAML as text."""
_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "bool": lambda text: text.lower() in ("true", "yes", "on"),
    "null": lambda _: None,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a YAML file. ``line`` is 1-based. An absent value is a Field of None at its parent's line."""

    node: Any
    line: int

    def __getitem__(self, key: str) -> Field:
        """The value under a key of a mapping; a dotted key goes down several."""
        return self.at(key.split("."))

    def all(self, path: str) -> list[Field]:
        """The values under a dotted path, in which ``*`` means each element or value and ``a|b`` means both."""
        found = [self]
        for part in path.split("."):
            found = [
                child
                for field in found
                for child in (field.children if part == "*" else map(field._child, part.split("|")))
                if child
            ]
        return found

    def _child(self, key: str) -> Field:
        holder = self.node
        for _ in range(MOST_MERGED):
            pairs = holder.value if holder is not None and holder.id == "mapping" else ()
            for name, value in pairs:
                if name.value == key:
                    return Field(value, name.start_mark.line + 1)
            holder = next((value for name, value in pairs if name.value == "<<"), None)
        return Field(None, self.line)

    def texts(self, path: str) -> list[str]:
        """The scalars under such a path."""
        return [field.text for field in self.all(path) if field.text is not None]

    def at(self, path: Iterable[str | int]) -> Field:
        """The value at a path of keys and positions; an absent value is at the line of its parent."""
        found = self
        for part in path:
            found = found.elements[part] if isinstance(part, int) else found._child(part)
        return found

    @property
    def is_mapping(self) -> bool:
        return self.node is not None and self.node.id == "mapping"

    @property
    def items(self) -> list[tuple[str, Field]]:
        """The entries of a mapping, in order."""
        pairs = self.node.value if self.is_mapping else ()
        return [(str(k.value), Field(v, k.start_mark.line + 1)) for k, v in pairs if isinstance(k.value, str)]

    @property
    def elements(self) -> list[Field]:
        """The elements of a list."""
        elements = self.node.value if self.node is not None and self.node.id == "sequence" else ()
        return [Field(element, element.start_mark.line + 1) for element in elements]

    @property
    def children(self) -> list[Field]:
        """The elements of a list, or the values of a mapping."""
        return self.elements + [value for _, value in self.items]

    @property
    def text(self) -> str | None:
        """A scalar as written; None for anything else, and for null."""
        is_scalar = self.node is not None and self.node.id == "scalar" and not self.node.tag.endswith(":null")
        return str(self.node.value) if is_scalar else None

    @property
    def number(self) -> float | None:
        """A finite number; None for anything else."""
        try:
            value = float(self.text or "")
        except ValueError:
            return None
        return value if isfinite(value) else None

    @property
    def amount(self) -> float:
        """A finite number; 0 for anything else."""
        return self.number or 0.0

    @property
    def is_true(self) -> bool:
        return (self.text or "").lower() in ("true", "yes", "on")

    @property
    def first_line(self) -> int:
        """The line at which a scalar's text begins: a block's text is below its indicator."""
        return int(self.node.start_mark.line) + 1 + (self.node.style in ("|", ">")) if self.text else self.line

    def __bool__(self) -> bool:
        return self.node is not None


def read_documents(text: str) -> list[Field]:
    """The documents, without empty ones. Raises NotRead for a template or broken YAML."""
    import yaml

    if re.search(r"(?m)^\s*(-\s*)?\{\{|^[^#\n]*:\s*\{\{", text):
        raise NotRead("a template with {{ }}; lint its rendered output")
    fast = getattr(yaml, "CSafeLoader", None)
    loader = fast if fast is not None and _nesting(text) <= MOST_NESTED else yaml.SafeLoader
    try:
        return [Field(node, node.start_mark.line + 1) for node in yaml.compose_all(text, loader) if node]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise NotRead(f"not YAML{where}: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    except RecursionError:
        raise NotRead("nested too deeply to be read") from None


def read_value(field: Field) -> Any:
    """The value as Python's dicts, lists and scalars; an alias is one object."""
    return _read(field.node, {}) if field else None


def _read(node: Any, known: dict[int, Any]) -> Any:
    if id(node) in known:
        return known[id(node)]
    if node.id == "scalar":
        kind = "float" if not node.style and _NUMBER.fullmatch(node.value) else node.tag.rpartition(":")[2]
        try:
            return _KINDS.get(kind, str)(node.value)
        except ValueError:
            return node.value
    value: Any = [] if node.id == "sequence" else {}
    known[id(node)] = value
    if node.id == "sequence":
        value += [_read(element, known) for element in node.value]
        return value
    for name, part in node.value:
        read = _read(part, known)
        is_merged = name.value == "<<" and isinstance(read, dict)
        value |= {**read, **value} if is_merged else {str(name.value): read}
    return value


def _nesting(text: str) -> int:
    """An upper bound of the nesting depth of collections: by open brackets and by the start of each line."""
    brackets = (1 if mark in "[{" else -1 for mark in re.findall(r"[\[{\]}]", text))
    depths = accumulate(brackets, lambda depth, step: max(0, depth + step), initial=0)
    return max(depths) + max(map(len, re.findall(r"(?m)^[ \t?:-]*", text)))
