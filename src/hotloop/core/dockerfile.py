"""A Dockerfile's text -> its instructions and stages, with flags, heredocs and lines, as BuildKit's front end reads it.

The grammar is that of the Dockerfile reference: parser directives, line continuation with a chosen escape character,
comments between continued lines, here-documents of RUN, COPY and ADD, and the trigger of ONBUILD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .errors import UsageError

INSTRUCTIONS = (
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"),
    *("ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
DIRECTIVES = ("syntax", "escape", "check")
WITH_HEREDOCS = ("RUN", "COPY", "ADD")
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*$")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:?[-+])([^}]*))?\}|(\w+))")


class DockerfileError(UsageError):
    """A text is not a Dockerfile that could be built; ``line`` is the 1-based line that shows it."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """``--name=value`` before an instruction's arguments; ``value`` is None if the flag has none."""

    name: str
    value: str | None

    @property
    def options(self) -> dict[str, str]:
        """The parts of a value such as ``type=cache,target=/x``; a part without ``=`` maps to an empty text."""
        parts = (part.partition("=") for part in (self.value or "").split(","))
        return {name.strip().lower(): value.strip("\"'") for name, _, value in parts if name.strip()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heredoc:
    """A here-document; ``text`` is its body."""

    name: str
    text: str
    last_line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. Lines are 1-based and inclusive, and include those of its heredocs.

    ``name`` is in upper case; ``arguments`` is the text after the flags, with continued lines joined. ``lines`` holds
    the number and text of each line that is neither comment nor heredoc.
    """

    name: str
    arguments: str
    flags: tuple[Flag, ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    first_line: int
    last_line: int
    lines: tuple[tuple[int, str], ...] = ()

    @property
    def exec_form(self) -> tuple[str, ...] | None:
        """The words of a JSON array; None for the shell form."""
        if not self.arguments.lstrip().startswith("["):
            return None
        try:
            words = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None

    @property
    def script(self) -> str:
        """What a RUN passes to its shell: the arguments, and the heredocs that are its script or its input."""
        return "\n".join([self.arguments, *(one.text for one in self.heredocs)])

    def flag(self, name: str) -> str | None:
        """The value of the first flag of that name, None if there is none; a flag without value counts as ``true``."""
        return next((one.value or "true" for one in self.flags if one.name == name), None)

    @property
    def mounts(self) -> tuple[dict[str, str], ...]:
        """The options of each ``--mount``; the type is ``bind`` if none is given."""
        return tuple({"type": "bind", **one.options} for one in self.flags if one.name == "mount")


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerStage:
    """A FROM and what follows it. ``base`` has the defaults of global ARGs filled in; ``name`` is in lower case."""

    index: int
    base: str
    name: str | None
    instructions: tuple[Instruction, ...]
    """Beginning with the FROM itself."""

    @property
    def first_line(self) -> int:
        return self.instructions[0].first_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """``instructions`` are all of them in order, including those before the first FROM."""

    instructions: tuple[Instruction, ...]
    stages: tuple[DockerStage, ...]

    def find_stage(self, reference: str) -> DockerStage | None:
        """The stage that ``COPY --from=`` or ``FROM`` means by a name or an index; None for an image."""
        if reference.isdecimal():
            return self.stages[int(reference)] if int(reference) < len(self.stages) else None
        return next((one for one in reversed(self.stages) if one.name == reference.lower()), None)

    def lineage(self, stage: DockerStage) -> tuple[DockerStage, ...]:
        """The stages of this file that ``stage`` is built on, from the lowest to ``stage`` itself."""
        found = [stage]
        while True:
            base = next((s for s in reversed(self.stages[: found[0].index]) if s.name == found[0].base.lower()), None)
            if base is None:
                return tuple(found)
            found.insert(0, base)


def parse_dockerfile(text: str) -> Dockerfile:
    """Raises DockerfileError if the builder would refuse the file: an unknown instruction, an instruction before the
    first FROM, a heredoc without an end. An empty text gives a Dockerfile without instructions.

    >>> [(one.name, one.first_line) for one in parse_dockerfile("FROM a\\nRUN b \\\\\\n  c\\nCMD d").instructions]
    [('FROM', 1), ('RUN', 2), ('CMD', 4)]
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    directives, begin = _read_directives(lines)
    escape = directives.get("escape", "\\")
    if escape not in ("\\", "`"):
        raise DockerfileError(1, f"the escape character may be \\ or `, not {escape[:20]!r}")
    instructions = tuple(_read_instructions(lines, begin, escape))
    return Dockerfile(instructions=instructions, stages=_split_stages(instructions))


def _read_directives(lines: Sequence[str]) -> tuple[dict[str, str], int]:
    """The directives, and the index of the first line after them."""
    found: dict[str, str] = {}
    for at, line in enumerate(lines):
        match = _DIRECTIVE.match(line.strip()) if line.lstrip().startswith("#") else None
        name = match.group(1).lower() if match else ""
        if match is None or name not in DIRECTIVES or name in found:
            return found, at
        found[name] = match.group(2)
    return found, len(lines)


def _read_instructions(lines: Sequence[str], at: int, escape: str) -> Iterator[Instruction]:
    continued = re.compile(rf"(?:^|[^{re.escape(escape)}]){re.escape(escape)}[ \t]*$")

    def is_passed_over(line: str) -> bool:
        return not line.strip() or line.lstrip().startswith("#")

    while at < len(lines):
        if is_passed_over(lines[at]):
            at += 1
            continue
        parts: list[tuple[int, str]] = []
        while at < len(lines):
            line = lines[at]
            at += 1
            if parts and is_passed_over(line):
                continue  # comments and empty lines do not end a continued instruction
            goes_on = continued.search(line) is not None
            parts.append((at, line[: line.rindex(escape)] if goes_on else line))
            if not goes_on:
                break
        read = _read_one("".join(part for _, part in parts).strip(), parts[0][0], parts[-1][0])
        heredocs = tuple(_read_heredocs(read, lines, at))
        last_line = at = heredocs[-1].last_line if heredocs else read.last_line
        yield replace(read, heredocs=heredocs, last_line=last_line, lines=tuple(parts))


def _read_one(text: str, first_line: int, last_line: int) -> Instruction:
    name, _, rest = re.sub(r"^(\S+)\s+", r"\1 ", text, count=1).partition(" ")
    if name.upper() not in INSTRUCTIONS:
        raise DockerfileError(first_line, f"unknown instruction {name[:40]!r}")
    flags, arguments = _read_flags(rest)
    if name.upper() == "ONBUILD" and arguments:
        if re.match(r"(?i)onbuild\b", arguments):
            raise DockerfileError(first_line, "ONBUILD may not trigger another ONBUILD")
        _read_one(arguments, first_line, last_line)  # refuse the deferred instruction as if it were on its own
    return Instruction(name=name.upper(), arguments=arguments, flags=flags, first_line=first_line, last_line=last_line)


def _read_flags(rest: str) -> tuple[tuple[Flag, ...], str]:
    flags = []
    while match := re.match(r"\s*--([A-Za-z][\w.-]*)(?:=((?:\"[^\"]*\"|'[^']*'|\\.|[^\s\"'\\])*))?(?=\s|$)", rest):
        flags.append(Flag(name=match.group(1).lower(), value=match.group(2)))
        rest = rest[match.end() :]
    return tuple(flags), rest.strip()


def _read_heredocs(read: Instruction, lines: Sequence[str], at: int) -> Iterator[Heredoc]:
    """The here-documents that the instruction opens, whose bodies begin at index ``at``."""
    name, _, deferred = read.arguments.partition(" ") if read.name == "ONBUILD" else (read.name, "", read.arguments)
    if name.upper() not in WITH_HEREDOCS:
        return
    for match in (_HEREDOC.match(word) for word in _split_words(deferred)):
        end = re.sub(r"[\"'\\]", "", match.group(2)) if match else ""
        if match is None or not end:
            continue
        strips = match.group(1) == "-"
        body: list[str] = []
        for line in lines[at:]:
            text = line.lstrip("\t") if strips else line
            if text == end:
                break
            body.append(text)
        else:
            raise DockerfileError(read.first_line, f"the heredoc {end[:40]!r} has no end")
        at += len(body) + 1
        yield Heredoc(name=end, text="\n".join(body), last_line=at)


def _split_words(text: str) -> Iterator[str]:
    """Words of a shell line with their quotes; an unclosed quote extends to the end of the line."""
    for match in re.finditer(r"(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|\\.|[^\s\"'\\])+", text):
        yield match.group()


def _split_stages(instructions: Sequence[Instruction]) -> tuple[DockerStage, ...]:
    stages: list[list[Instruction]] = []
    defaults: dict[str, str] = {}
    for one in instructions:
        if one.name == "FROM":
            stages.append([one])
        elif stages:
            stages[-1].append(one)
        elif one.name == "ARG":
            for name, equals, value in (word.partition("=") for word in _split_words(one.arguments)):
                if equals:
                    defaults[name] = expand_variables(value.strip("\"'"), defaults)
        else:
            raise DockerfileError(one.first_line, f"{one.name} comes before the first FROM")
    return tuple(_make_stage(index, found, defaults) for index, found in enumerate(stages))


def _make_stage(index: int, instructions: Sequence[Instruction], defaults: Mapping[str, str]) -> DockerStage:
    words = instructions[0].arguments.split()
    if not words or not (len(words) == 1 or (len(words) == 3 and words[1].lower() == "as")):
        raise DockerfileError(instructions[0].first_line, "FROM needs an image, or an image AS a name")
    return DockerStage(
        index=index,
        base=expand_variables(words[0].strip("\"'"), defaults),
        name=words[2].lower() if len(words) == 3 else None,
        instructions=tuple(instructions),
    )


def expand_variables(text: str, values: Mapping[str, str]) -> str:
    """``text`` with the known variables filled in; an unknown variable without a default stays as it is.

    >>> expand_variables("a:${TAG:-1}-$X", {"X": "y"})
    'a:1-y'
    """

    def fill(match: re.Match[str]) -> str:
        name, kind, word = match.group(1) or match.group(4), match.group(2), match.group(3) or ""
        known = values.get(name)
        is_set = bool(known) if kind and kind.startswith(":") else known is not None
        if kind and kind.endswith("+"):
            return word if is_set else ""
        if is_set:
            return known or ""
        return word if kind else match.group()

    return _VARIABLE.sub(fill, text)
