"""A batch script of Slurm -> Batch: the options that sbatch reads, those it does not, and the script's commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotloop.core.sbatch_options import FLAGS, SHORT
from hotloop.lint.files import LintFormat, SourceFile, Surroundings

_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    """An option of a ``#SBATCH`` line by its long name; ``value`` is empty for a flag.

    ``written`` is its word. A word that belongs to no option has no name.
    """

    name: str
    value: str
    line: int
    written: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellCommand:
    """A logical line of the script, continued lines joined; ``line`` is its first."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """``options`` are those that sbatch reads, ``late`` the lines with ``#SBATCH`` behind the first command.

    ``save_s`` is how long a checkpoint takes, if that is known.
    """

    options: tuple[BatchOption, ...]
    late: tuple[tuple[int, str], ...]
    commands: tuple[ShellCommand, ...]
    text: str
    save_s: float | None = None

    def option(self, name: str) -> BatchOption | None:
        """The option as sbatch takes it: the last one of that name."""
        return next((one for one in reversed(self.options) if one.name == name), None)

    def count(self, name: str) -> int | None:
        """The value of an option as a number (the least of a range); None where it is none."""
        found = self.option(name)
        match = re.match(r"(\d+)", found.value) if found else None
        return int(match.group(1)) if match else None

    @property
    def nodes(self) -> int:
        return self.count("nodes") or 1

    @property
    def signal(self) -> tuple[str, int, bool] | None:
        """Name, seconds before the end, and whether the batch shell gets it (``B:``), of ``--signal``."""
        found = self.option("signal")
        match = re.match(r"((?:[BR]+:)?)(?:SIG)?(\w+)(?:@(\d+))?$", found.value) if found else None
        if match is None:
            return None
        return match.group(2).upper(), int(match.group(3) or 60), "B" in match.group(1)

    def find(self, pattern: str) -> list[ShellCommand]:
        """Commands whose text has the pattern."""
        return [one for one in self.commands if re.search(pattern, one.text)]


def parse_batch(file: SourceFile, around: Surroundings) -> Batch | None:
    """None where sbatch would read no option: a script that only writes such files."""
    lines = file.text.split("\n")
    options: list[BatchOption] = []
    late: list[tuple[int, str]] = []
    commands = list(_list_commands(lines))
    first = commands[0].line if commands else len(lines) + 1
    inside = {at for one in commands for at in range(one.line + 1, one.line + one.text.count("\n") + 1)}
    for at, line in enumerate(lines, 1):
        if not re.match(r"#SBATCH\s", line) or at in inside:
            continue
        if at < first:
            options += _read_options(line.removeprefix("#SBATCH"), at)
        else:
            late.append((at, line.strip()))
    if not options and not late:
        return None
    return Batch(
        options=tuple(options), late=tuple(late), commands=tuple(commands), text=file.text, save_s=around.save_s
    )


def _list_commands(lines: Sequence[str]) -> Iterator[ShellCommand]:
    """Logical lines that are no comments; the bodies of heredocs and quotes belong to their command."""
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].lstrip().startswith("#"):
            at += 1
            continue
        first, parts = at, []
        while at < len(lines):
            parts.append(lines[at])
            at += 1
            if not parts[-1].rstrip().endswith("\\"):
                break
        text = "\n".join(parts)
        bare = re.sub(r"\s#.*$", "", text, flags=re.MULTILINE)
        for match in _HEREDOC.finditer(bare):
            end = next((n for n in range(at, len(lines)) if lines[n].strip() == match.group(2)), None)
            if end is None:
                break
            text += "\n" + "\n".join(lines[at : end + 1])
            at = end + 1
        for quote in ('"', "'"):
            if _is_open(bare, quote):
                end = next((n for n in range(at, min(at + 400, len(lines))) if lines[n].count(quote) % 2), None)
                if end is not None:
                    text += "\n" + "\n".join(lines[at : end + 1])
                    at = end + 1
                break
        yield ShellCommand(text=text.replace("\\\n", " \n"), line=first + 1)


def _is_open(text: str, quote: str) -> bool:
    """Whether a quote of this kind is still open at the end, those in the other kind left out."""
    other = "'" if quote == '"' else '"'
    plain = re.sub(r"\\.", "", text)
    plain = re.sub(rf"{other}[^{other}\n]*{other}", "", plain)
    return plain.count(quote) % 2 == 1


def _read_options(text: str, line: int) -> Iterator[BatchOption]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    at = 0
    while at < len(words):
        word = words[at]
        following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("-") else None
        at += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            equals = "=" if value or word[1] in FLAGS else ""
        else:
            yield BatchOption(name="", value="", line=line, written=word)
            continue
        if not equals and following is not None:
            value = following
            at += 1
        yield BatchOption(name=name, value=value, line=line, written=word)


SUFFIXES = ("", ".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job")

SBATCH = LintFormat(
    id="sbatch",
    title="batch script",
    may_name=lambda name: os.path.splitext(name)[1].lower() in SUFFIXES,
    holds=lambda data: re.search(rb"(?m)^#SBATCH\s", data[:65536]) is not None,
    parse=parse_batch,
)
