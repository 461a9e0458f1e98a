"""Findings with edits -> the repaired text of each file, and files that are written only if they have not changed."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotloop.core.errors import UsageError
from hotloop.core.lint import LintEdit, LintFinding
from hotloop.core.output_file import open_whole

from .files import find_encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A file's bytes before and after ``count`` findings were repaired."""

    path: str
    before: bytes
    after: bytes
    count: int

    def diff(self) -> str:
        """The change as a unified diff."""
        before, after = (one.decode("utf-8", "replace").splitlines(keepends=True) for one in (self.before, self.after))
        name = self.path.removeprefix("./")
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def make_repairs(findings: Iterable[LintFinding], read: Mapping[str, bytes]) -> list[Repair]:
    """The files that were read, with the edits of the findings.

    If edits overlap, the first finding is repaired; a Python file that would no longer parse is left as it is.
    """
    by_file: dict[str, list[LintFinding]] = {}
    for one in findings:
        if one.edits:
            by_file.setdefault(one.file, []).append(one)
    made = []
    for path, found in by_file.items():
        named = find_encoding(read[path]) if path.endswith(".py") else "utf-8"
        encoding = named.removesuffix("-sig")  # a byte order mark stays in the text
        text = read[path].decode(encoding)
        starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
        newline = "\r\n" if "\r\n" in text else "\n"
        taken: list[tuple[int, int, str]] = []
        count = 0
        for one in found:
            spans = [_locate(edit, text, starts, newline) for edit in one.edits]
            if any((a < d and c < b) or (a, b) == (c, d) for a, b, _ in spans for c, d, _ in taken):
                continue
            taken += spans
            count += 1
        for first, last, new in sorted(taken, reverse=True):
            text = text[:first] + new + text[last:]
        if path.endswith(".py") and not _is_python(text):
            continue
        made.append(Repair(path=path, before=read[path], after=text.encode(encoding), count=count))
    return made


def write_repairs(repairs: Iterable[Repair]) -> None:
    """Replace each file by its repaired text, at once and with its mode.

    Raises UsageError at a file that has changed since it was read; it and later files are left as they are.
    """
    for one in repairs:
        try:
            if Path(one.path).read_bytes() != one.before:
                raise UsageError(f"{one.path} changed during the check, so it was not fixed; run the command again")
            with open_whole(one.path) as file:
                file.write(one.after)
        except OSError as error:
            raise UsageError(f"cannot write {one.path}: {error.strerror}") from error


def _locate(edit: LintEdit, text: str, starts: list[int], newline: str) -> tuple[int, int, str]:
    """The edit as offsets; an edit after the last line begins a new line."""
    new = edit.text.replace("\n", newline)
    bom = 1 if text.startswith("\ufeff") else 0

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + column - 1 + (bom if line == 1 else 0) if line <= len(starts) else len(text)

    first = offset(edit.first_line, edit.first_column)
    if first == len(text) and text and not text.endswith(("\n", "\r")) and new.endswith(newline):
        new = newline + new.removesuffix(newline)
    return first, offset(edit.last_line, edit.last_column), new


def _is_python(text: str) -> bool:
    try:
        ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
