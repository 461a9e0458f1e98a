"""A Dockerfile and its surroundings -> DockerBuild: layers with the state in which each begins, and the folder sent."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hotloop.core.build_context import History, Ignore, match_sources, read_history, scan_context
from hotloop.core.dockerfile import (
    Dockerfile,
    DockerfileError,
    DockerStage,
    Instruction,
    expand_variables,
    parse_dockerfile,
)
from hotloop.core.errors import UsageError
from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding
from hotloop.judge.lint.commands import BuildCommand, Install, describe_work, read_commands, read_install
from hotloop.judge.lint.files import LintFormat, NotRead, SourceFile, Surroundings
from hotloop.judge.lint.shell import split_words

MOST_FILES = 10_000
"""The most files of a context that are checked."""
MOST_TEXT = 1 << 18
MOST_STARS = 6
"""The most wildcards in one ignore pattern: more only cost time."""
HISTORY_S = 3.0
MOST_LAYERS = 300
MOST_ABOVE = 12_000
"""The most characters of earlier instructions that a table row searches."""
FEW_COMMITS = 4
LISTS = re.compile(
    r"(?i)(.*/)?(requirements?(/.*)?|_?_?(version|about|package_info|init)_?_?\.py|[\w.-]*(requirements?|constraints?|environment|conda)[\w.-]*\.(txt|in|ya?ml|lock)|pyproject\.toml|"
    r"setup\.(py|cfg)|[\w.-]*lock([\w.-]*)?|pipfile|package\.json|go\.(mod|sum)|cargo\.toml|readme.*|licen[sc]e.*|"
    r"manifest\.in|\.python-version|version(\.txt)?)$"
)
"""Files that list packages to install, and other files that packaging reads."""
CODE = re.compile(r"\.(py|pyx|sh|ya?ml|json|toml|cfg|cu|cpp|c|h|ipynb|[jt]sx?)$")
FOLDER = re.compile(r"^\.?/?$|(^|/)[^./]+/?$")
UNTOLD = re.compile(r"(?i)docker|deploy|container|build|infra|ci$|images?$")
"""Folders with Dockerfiles whose context is usually another folder."""
UNKNOWN = re.compile(r"[$*?\[:<]|\.\.")
"""Characters in a COPY's source that make it something other than a literal path below the context."""

CPU = re.compile(
    r"(?i)\bcpu[- ]?(only|pool|image|inference|service|node|version|build)|(\b(on|for|only) (the )?|no gpu.{0,20})"
    r"cpus?\b|device\([\"']cpu[\"']\)|device[\"',= :]+cpu\b"
)
GPU = re.compile(r"(?i)cuda|nccl|\bgpus?\b|rocm|device_map|accelerat|lightning|\w*Trainer\(|vllm|sglang")
BRINGS_CUDA = re.compile(r"(?m)^(torch|sentence[-_]transformers|easyocr|openai-whisper|ultralytics)")
NEEDS = re.compile(
    r"^(import|from|def|class|async def) |torch\.compile|cuda|from_pretrained|snapshot_download|torch\.load"
    r"|create_model|nvc\."
)
"""Lines of code that show what a program needs, and where functions begin."""
MOST_SCRIPTS = 200
IMPORT = re.compile(r"(?m)^(?:from|import) +([\w.]+)(?: +import +(\w+))?")
ENVIRONMENT = re.compile(
    r"(site|dist)-packages|venv|/(env|install|deps|packages|wheels?)(/|$)|\.local/?$|/usr/local/?$"
)
"""Folders of an image with installed packages."""

QUIET = ("mkdir", "echo", "ls", "pwd", "true", ":", "printf", "which", "cat")
STATE = ("cd", "pushd", "export", "source", ".", "alias", "ulimit", "umask", "set", "service", "conda", "su", "eval")
"""Commands that change the state of their shell, or print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFiles:
    """The folder that is sent: ``files`` are those that .dockerignore admits, with their sizes; None if there are too
    many. ``ignores`` is the text of the .dockerignore, None without one."""

    folder: str
    ignores: str | None
    files: Mapping[str, int] | None

    def measure(self, paths: Iterable[str]) -> int:
        return sum((self.files or {}).get(path, 0) for path in set(paths))


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One instruction with the state when it begins; an ONBUILD trigger appears as the instruction that it defers.

    ``shell`` is the shell that SHELL names, empty for /bin/sh; ``variables`` are those of ENV and ARG whose value is
    known.
    """

    build: DockerBuild
    instruction: Instruction
    stage: DockerStage
    workdir: str = "/"
    user: str = "root"
    shell: tuple[str, ...] = ()
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.instruction.name

    @property
    def line(self) -> int:
        return self.instruction.first_line

    @property
    def home(self) -> str:
        return self.variables.get("HOME") or ("/root" if self.user in ("root", "0") else f"/home/{self.user}")

    @cached_property
    def arguments(self) -> str:
        """The text with known variables filled in."""
        return expand_variables(self.instruction.arguments, self.variables)

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The names and values of ENV, ARG or LABEL as written; a value is empty if none is given."""
        words = split_words(self.instruction.arguments) if self.name in ("ENV", "ARG", "LABEL") else []
        if self.name == "ENV" and words and "=" not in words[0]:
            return [(words[0], " ".join(words[1:]))]
        return [(name, value) for name, _, value in (word.partition("=") for word in words)]

    @cached_property
    def commands(self) -> tuple[BuildCommand, ...]:
        """The commands that RUN, CMD or ENTRYPOINT starts, in order, including those passed to ``sh -c``."""
        one = self.instruction
        words = one.exec_form
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words or ())
        text, line = (quoted, one.first_line) if words is not None else _find_script(one)
        is_start = one.name in ("RUN", "CMD", "ENTRYPOINT")
        return tuple(read_commands(expand_variables(text, self.variables), line, self.workdir)) if is_start else ()

    @cached_property
    def works(self) -> list[tuple[str, BuildCommand]]:
        """The slow commands of a RUN, each with its kind."""
        commands = self.commands if self.name == "RUN" else ()
        return [(kind, command) for command in commands if (kind := describe_work(command))]

    @cached_property
    def installs(self) -> list[Install]:
        return [install for _, command in self.works if (install := read_install(command)) is not None]

    @cached_property
    def texts(self) -> list[tuple[str, str, int]]:
        return [(kind, text[:MOST_ABOVE], line) for kind, text, line in list_texts(self)[:MOST_LAYERS]]

    @cached_property
    def wanted(self) -> list[tuple[Install, list[str]]]:
        """The installs of a RUN, each with its requirements."""
        return [(install, self.build.list_requirements(self, install)) for install in self.installs]

    @cached_property
    def source_stage(self) -> DockerStage | None:
        """The earlier stage from which COPY --from copies."""
        name = self.instruction.flag("from") if self.name == "COPY" else None
        stage = self.build.dockerfile.find_stage(name) if name else None
        return stage if stage is not None and stage.index < self.stage.index else None

    @property
    def copies(self) -> bool:
        """Whether it is a COPY or ADD of files of the context."""
        return self.name in ("COPY", "ADD") and self.instruction.flag("from") is None

    @cached_property
    def taken(self) -> list[tuple[str, str]]:
        """Sources of a COPY, ADD or bind mount of the context, each with its path in the image; a folder's path ends in
        ``/``."""
        one = self.instruction
        if one.name == "RUN":
            mounts = [mount for mount in one.mounts if mount["type"] == "bind" and "from" not in mount]
            pairs = [(m.get("source") or m.get("src") or ".", m.get("target") or m.get("dst") or "/") for m in mounts]
            return [(source, posixpath.join(self.workdir, target)) for source, target in pairs]
        words = one.exec_form or split_words(self.arguments) if one.name in ("COPY", "ADD") and not one.heredocs else ()
        target = posixpath.join(self.workdir, words[-1]) if words else ""
        target += "/" if len(words) > 2 or target.endswith(".") else ""
        return [(word, target) for word in words[:-1] if "://" not in word]

    @property
    def sources(self) -> list[str]:
        return [source for source, _ in self.taken]

    @property
    def target(self) -> str:
        return posixpath.normpath(self.taken[0][1]) if self.taken else "/"

    @cached_property
    def files(self) -> Mapping[str, str]:
        """Paths of the image -> the files of the context that this layer puts there."""
        context = self.build.context
        found: dict[str, str] = {}
        for source, target in self.taken if context is not None and (self.copies or self.name == "RUN") else ():
            matched = _match(context.folder, context.ignores, source) if context is not None else {}
            for path, (inner, is_named) in matched.items():
                if is_named and not target.endswith("/"):
                    found[posixpath.normpath(target)] = path  # or below it, where that is a folder
                found[posixpath.normpath(posixpath.join(target, inner))] = path
        return found

    def report(
        self,
        severity: Severity,
        message: str,
        advice: str,
        line: int | None = None,
        confidence: Confidence = Confidence.CERTAIN,
    ) -> LintFinding:
        place = line or self.line
        return LintFinding(severity=severity, line=place, message=message, advice=advice, confidence=confidence)


class DockerBuild:
    """A parsed Dockerfile with everything that rules need."""

    def __init__(self, path: str, dockerfile: Dockerfile, text: str) -> None:
        self.path = path
        self.text = text
        self.dockerfile = dockerfile
        self.stages = dockerfile.stages

    @cached_property
    def chains(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers of each stage on which no other is built, those of its bases first; without a target, the image
        that is built is the last."""
        bases = {stage.base.lower() for stage in self.stages}
        return tuple(self.chain(one) for one in self.stages if one.name not in bases or one is self.stages[-1])

    @property
    def final(self) -> tuple[Layer, ...]:
        return self.chains[-1] if self.chains else ()

    def chain(self, stage: DockerStage) -> tuple[Layer, ...]:
        indices = {one.index for one in self.dockerfile.lineage(stage)}
        return tuple(layer for layer in self.layers if layer.stage.index in indices)

    @cached_property
    def global_arguments(self) -> Mapping[str, str]:
        """ARGs before the first FROM, with their defaults."""
        end = self.stages[0].first_line if self.stages else 0
        before = [one for one in self.dockerfile.instructions if one.first_line < end and one.name == "ARG"]
        words = [word.partition("=") for one in before for word in split_words(one.arguments)]
        return {name: value for name, _, value in words}

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of all stages, in order."""
        found: list[Layer] = []
        ends: list[Layer] = []
        for stage in self.stages:
            lineage = self.dockerfile.lineage(stage)
            begin = Layer(build=self, instruction=stage.instructions[0], stage=stage, variables={})
            at = replace(ends[lineage[-2].index], stage=stage) if len(lineage) > 1 else begin
            for one in stage.instructions:
                at = replace(at, instruction=_read_trigger(one) if one.name == "ONBUILD" else one)
                found.append(at)
                at = _follow(at)
            ends.append(at)
        return tuple(found)

    @cached_property
    def context(self) -> BuildFiles | None:
        """The folder, from the Dockerfile's own upwards, that has most of the copied files; None if no folder has
        any."""
        sources = [one.lstrip("/") for layer in self.layers if layer.copies for one in layer.sources]
        named = {one for one in sources if not UNKNOWN.search(one) and posixpath.normpath(one or ".") != "."}
        folder = Path(os.path.abspath(self.path)).parent
        best = (0 if named or UNTOLD.search(folder.name) else 1, folder)
        for candidate in (folder, *folder.parents[:6]):
            best = max(best, (sum((candidate / one).exists() for one in named), candidate), key=lambda pair: pair[0])
            if (candidate / ".git").exists():
                break
        if best[0] == 0:
            return None
        ignores = _read_ignores(self.path, best[1])
        return BuildFiles(folder=str(best[1]), ignores=ignores, files=_list_files(str(best[1]), ignores))

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """The Python files of the context that are copied, up to a bound, with their text."""
        paths = {path for layer in self.layers for path in layer.files.values() if path.endswith(".py")}
        folder = self.context.folder if self.context else ""
        return [(path, read_text(Path(folder, path)) or "") for path in sorted(paths)[:MOST_SCRIPTS]]

    @cached_property
    def code(self) -> str:
        return "\n".join(text for _, text in self.modules)

    @cached_property
    def uses(self) -> str:
        """The requirements of all layers, then the lines of the copied code that say what it needs when it runs."""
        wanted = [line for layer in self.layers[:MOST_LAYERS] for _, lines in layer.wanted for line in lines]
        return "\n".join((*wanted, *(line for line in self.code.split("\n") if NEEDS.search(line))))

    @cached_property
    def device(self) -> str:
        """The device on which the Dockerfile and its code run, as far as they show it: ``gpu``, ``cpu``, or empty."""
        text = f"{self.text}\n{self.code}"
        return "gpu" if GPU.search(text) else "cpu" if CPU.search(text) else ""

    def count_changes(self, paths: Collection[str]) -> tuple[int, int] | None:
        """Commits of the last months that changed one of these files of the context, and all of them; None if git does
        not know."""
        here = Path(self.context.folder) if self.context else Path("/")
        root = next((one for one in (here, *here.parents) if (one / ".git").exists()), None)
        history = _read_history(root) if root else None
        if root is None or history is None or len(history.commits) < FEW_COMMITS:
            return None
        wanted = {posixpath.normpath(posixpath.join(here.relative_to(root).as_posix(), path)) for path in paths}
        return sum(not wanted.isdisjoint(commit) for commit in history.commits), len(history.commits)

    def describe_churn(self, layer: Layer, spared: Collection[str] = ()) -> tuple[str, Confidence] | None:
        """How often the files of a COPY or mount change, except package lists and ``spared`` (paths of the image); None
        if they rarely do."""
        is_known = self.context is not None and len(self.context.files or ()) > 1
        paths = {path for there, path in layer.files.items() if there not in spared and not LISTS.match(path)}
        counted = self.count_changes(paths) if is_known else None
        if counted is not None:
            text = f"changed in {counted[0]} of the last {counted[1]} commits"
            return (text, Confidence.CERTAIN) if counted[0] else None
        named = paths if is_known else [one for one in layer.sources if not LISTS.match(one)]
        return (
            ("changes with the code", Confidence.LIKELY)
            if any(CODE.search(one) or (FOLDER.search(one) and not is_known) for one in named)
            else None
        )

    def find_dropped(self, folder: str) -> str:
        """A package below a folder of the context that .dockerignore drops and a copied file imports; empty if none."""
        context = self.context
        every = _list_files(context.folder, None) if context is not None and context.ignores else None
        if context is None or every is None or context.files is None:
            return ""
        dropped = [
            re.sub(r"(/__init__)?\.py$", "", path)
            for path in every
            if path.endswith(".py") and path not in context.files and (folder == "." or is_below(path, folder))
        ]
        packages = sorted({*dropped, *map(posixpath.dirname, dropped)} - {"", folder}, key=len)[:MOST_SCRIPTS]
        for path, text in self.modules if packages else ():
            names = {_resolve(module, name, path) for module, name in IMPORT.findall(text)}
            found = [
                one
                for one in packages
                if any(is_below(name.removeprefix("src/"), one.removeprefix("src/")) for name in names)
            ]
            if found and not any(is_below(path, found[0]) for path in context.files):
                return found[0]
        return ""

    def is_untracked(self, path: str) -> bool:
        """Whether git ignores a file of that name in the context, as for files that a build creates."""
        text = read_text(Path(self.context.folder, ".gitignore")) if self.context else None
        return posixpath.basename(path) in (text or "")

    def read_file(self, layer: Layer, path: str) -> str | None:
        """The text of a file of the context by its path in the image, as the layer finds it."""
        above = [one for one in self.chain(layer.stage) if one.line <= layer.line]
        source = next((one.files[path] for one in reversed(above) if path in one.files), None)
        return read_text(Path(self.context.folder, source)) if source is not None and self.context else None

    def list_requirements(self, layer: Layer, install: Install) -> list[str]:
        """The requirements of a pip or uv install, as written in the command and in the files that it names."""
        if install.tool not in ("pip", "uv"):
            return []
        texts = [self.read_file(layer, install.command.locate(one)) or "" for one in install.lists]
        lines = [re.split(r"\s#|\s--hash| \\$", line)[0].strip() for text in texts for line in text.split("\n")]
        return [*install.packages, *(line for line in lines if line and not line.startswith("#"))]


def parse_build(file: SourceFile, around: Surroundings) -> DockerBuild:
    """Raises NotRead if no builder would accept the file."""
    try:
        return DockerBuild(file.path, parse_dockerfile(file.text), file.text)
    except DockerfileError as error:
        raise NotRead(f"a Dockerfile that cannot be built ({error})") from None


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder or in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


class Fault(NamedTuple):
    """A row of a table of faults. ``on`` are the kinds of text (list_texts) in which ``pattern`` is searched.

    ``unless`` and ``needs`` are searched in all instructions of the stage down to this one, each one or more lines that
    end with its flags; ``never`` also in those below it; ``base`` in the name of the base image.
    The message may contain ``{0}`` (the text that was found), ``{base}`` and ``{user}``.
    """

    on: str
    pattern: str
    severity: Severity
    message: str
    advice: str
    unless: str = "(?!)"
    base: str = ""
    confidence: Confidence = Confidence.CERTAIN
    needs: str = ""
    never: str = "(?!)"


def find_faults(table: Sequence[Fault], chain: Sequence[Layer]) -> Iterator[LintFinding]:
    """The findings of the rows in a chain: the first for each row and layer, and one for the same fault of a stage."""
    above = ""
    whole = "\n".join(f"{layer.name} {layer.instruction.script}" for layer in chain)[:MOST_TEXT]
    found: dict[tuple[Fault, int, str], list[LintFinding]] = {}
    for layer in chain[:MOST_LAYERS]:
        filled = layer.arguments if layer.arguments != layer.instruction.arguments else ""
        above += f"{layer.name} {layer.instruction.script} {filled} {layer.instruction.flags or ''}\n"
        texts = layer.texts
        for fault in table:
            for kind, text, line in texts:
                match = re.search(fault.pattern, text) if kind in fault.on.split() else None
                base = chain[0].stage.base
                is_here = match and re.search(fault.base, base) and re.search(fault.needs, above[-MOST_ABOVE:])
                if match and is_here and not re.search(fault.unless, above[-MOST_ABOVE:]):
                    shown = re.sub(r"\s+", " ", (match.groupdict().get("it") or match.group()).strip())[:60]
                    message = fault.message.format(shown, base=base.rpartition("/")[2], user=layer.user)
                    key = (fault, layer.stage.index, text if layer.pairs else "")
                    found.setdefault(key, []).append(
                        layer.report(fault.severity, message, fault.advice, line, fault.confidence)
                    )
                    break
    for (fault, _, _), (first, *others) in found.items():
        lines = ", ".join(str(one.line) for one in others[:6])
        if not re.search(fault.never, whole):
            yield replace(first, message=f"{first.message}; again on line {lines}") if others else first


def list_texts(layer: Layer) -> list[tuple[str, str, int]]:
    """Texts of a layer with their kind and line.

    RUN or START (CMD, ENTRYPOINT): one command; USER-RUN: a command of a user other than root; LAST: the command
    with which a RUN ends after nothing but commands that change its shell, and each later instruction; LOST: a
    command whose exit code is lost, and why; SETUP: the setup.py that it runs; PACKAGE: one requirement; PACKAGES:
    all requirements of an install; CPU-PACKAGES: those of an image for CPUs; CONDA: packages that conda installs
    for GPUs, with their file; BROUGHT: one requirement of a stage whose environment is copied; SH: the unquoted
    text for /bin/sh; EXEC: a JSON array without a shell; ENV, ARG, LABEL: one pair. Any other instruction is the
    kind of its arguments; FROM has the text of all later instructions, if it names devel. RUN-FILE: a
    command, with the Python file that it starts; FROM-, USER-, ENV-, START-USES: the text, with the requirements and
    what the code needs.
    """
    one = layer.instruction
    if one.name == "FROM" and layer.build.dockerfile.find_stage(layer.stage.base) not in (None, layer.stage):
        return []
    uses = f"\t\n{layer.build.uses}"
    if layer.pairs:
        texts = [(one.name, f"{name}={value}", _find_pair(layer, name)) for name, value in layer.pairs]
        return [*texts, *((f"{kind}-USES", text + uses, line) for kind, text, line in texts)]
    kind = {"RUN": "RUN", "CMD": "START", "ENTRYPOINT": "START"}.get(one.name, "")
    found = [(kind, command.plain, command.line) for command in layer.commands]
    found += [("START-USES", text + uses, line) for _, text, line in found if kind == "START"]
    found += [("RUN-FILE", f"{one.plain}\t{_read_program(layer, one)}", one.line) for one in layer.commands]
    if one.name in ("FROM", "USER"):
        found.append((f"{one.name}-USES", one.script + uses, layer.line))
    if kind == "RUN" and layer.user not in ("root", "0", "") and "$" not in layer.user:
        found += [("USER-RUN", " ".join(command.shell.text.split()), command.line) for command in layer.commands]
    loud = [one for one in layer.commands if one.words and one.name not in QUIET]
    is_last = bool(loud) and not [
        one for one in layer.commands[layer.commands.index(loud[-1]) + 1 :] if one.name != "echo"
    ]
    is_there = is_last and loud[-1].name == "cd" and layer.workdir == loud[-1].locate(" ".join(loud[-1].words[1:]))
    is_state = is_last and all(one.name in STATE for one in loud) and "subshell" not in loud[-1].shell.blocks
    if kind == "RUN" and is_state and not is_there:
        below = [one for one in layer.build.chain(layer.stage) if one.line > layer.line][:MOST_LAYERS]
        later = "".join(f"\t{one.name} {' '.join(one.instruction.script.split())}" for one in below)[:MOST_ABOVE]
        found.append(("LAST", " ".join(loud[-1].shell.text.split()) + later, loud[-1].line))
    found += [("LOST", f"{command.plain}\t{why}", command.line) for command, why in _find_lost(layer)]
    for install, lines in layer.wanted:
        at, packages = install.command.line, "\n".join((*lines, f"\t{install.command.plain}"))
        found += [("PACKAGE", f"{line}\t{install.command.plain}", at) for line in lines]
        found.append(("PACKAGES", packages, at))
        if BRINGS_CUDA.search(packages) and layer.build.device == "cpu":
            found.append(("CPU-PACKAGES", packages, at))
        elif install.tool == "conda" and layer.build.device == "gpu":
            lists = [layer.build.read_file(layer, install.command.locate(one)) or "" for one in install.lists]
            found.append(("CONDA", "\n".join((*lists, install.command.plain)), at))
    if layer.source_stage is not None and ENVIRONMENT.search(" ".join(layer.sources)):
        brought = (
            ("BROUGHT", f"{line}\t{install.command.plain[:MOST_ABOVE]}", layer.line)
            for each in layer.build.chain(layer.source_stage)
            for install, lines in each.wanted
            for line in lines
        )
        found += islice(brought, MOST_LAYERS)
    is_shell = one.exec_form is not None and re.search(r'"(/\S+/)?(ba|da|z)?sh", *"-\w*c"', one.arguments) is not None
    if kind and one.exec_form is None and not layer.shell and not re.search(r"\b(ba|z)sh\b", one.arguments[:40]):
        text = one.heredocs[0].text if one.heredocs else one.arguments
        found.append(("SH", re.sub(r"'[^']*'|\"[^\"$]*\"|^#!.*[\s\S]*", "''", text), layer.line))
    elif one.exec_form is not None and not is_shell:
        found.append((f"EXEC-{one.name}", one.arguments, layer.line))
    for _, command in layer.works:
        projects = next((install.projects for install in layer.installs if install.command is command), ())
        own = (".",) if "setup.py" in command.plain else ()
        for path in {posixpath.join(command.locate(name), "setup.py") for name in projects or own}:
            found.append(("SETUP", f"{layer.build.read_file(layer, path) or ''}\t{command.plain}", command.line))
    later = "\t" * (one.name == "FROM") + (
        _read_later(layer.build) if one.name == "FROM" and "devel" in one.script else ""
    )
    return [*found, (one.name if not kind else f"{one.name}-TEXT", one.script + later, layer.line)]


def _find_pair(layer: Layer, name: str) -> int:
    """The line of a name of ENV, ARG or LABEL."""
    return next(
        (number for number, text in layer.instruction.lines if re.search(rf"\b{re.escape(name)}\b", text)), layer.line
    )


def _read_program(layer: Layer, command: BuildCommand) -> str:
    """The text of the Python file of the context that a RUN starts; empty if there is none."""
    named = re.match(r"python[\d.]* (?:-\w+ )*([\w./-]+\.py)\b", command.plain) if layer.name == "RUN" else None
    return (layer.build.read_file(layer, command.locate(named[1])) if named else None) or ""


def _read_later(build: DockerBuild) -> str:
    """All instructions and requirements; UNREAD if some are unknown, COMPILES if the code compiles."""
    words = [layer.instruction.script for layer in build.layers]
    for install, read in (pair for layer in build.layers[:MOST_LAYERS] for pair in layer.wanted):
        words += [*read, "UNREAD" if install.lists and len(read) == len(install.packages) else ""]
    compiles = "devel" in build.text and re.search(r"torch\.compile|cpp_extension|load_inline|triton|nvcc", build.code)
    return " ".join((*words, "COMPILES" if compiles else ""))


def _resolve(module: str, name: str, path: str) -> str:
    """The path that ``from module import name`` imports; a relative import is resolved from the importing file."""
    depth = len(module) - len(module.lstrip("."))
    folder = posixpath.join(posixpath.dirname(path), "../" * (depth - 1)) if depth else ""
    return posixpath.normpath(posixpath.join(folder, module.lstrip(".").replace(".", "/"), name))


def _find_lost(layer: Layer) -> Iterator[tuple[BuildCommand, str]]:
    """The slow commands of a RUN whose failure does not fail the build, each with the reason."""
    script = f"{layer.shell} {layer.instruction.script}"
    has_errexit = (
        re.search(r"(?m)set -\w*e|set -o errexit|#!.* -\w*e|'-\w*e\w*'|\b(ba|da)?sh -\w*e", script) is not None
    )
    for _, command in layer.works:
        later = layer.commands[layer.commands.index(command) + 1 :]
        after = [one for one in later if one.words and "substitution" not in one.shell.blocks]
        if {"substitution", "condition", "if", "case"} & set(command.shell.blocks):
            continue
        if (
            command.shell.before == "||"
            and after
            and not after[0].shell.before
            and re.match(r"(true|:|echo|exit 0)\b", after[0].plain)
        ):
            yield command, f"|| {after[0].name} swallows its failure"
        elif command.shell.before in ("|", "|&") and "pipefail" not in script:
            yield command, f"the pipe has the exit code of {after[0].name if after else 'its end'} (no pipefail)"
        elif command.shell.is_background:
            yield command, "& runs it in the background, where its exit code is lost"
        elif not has_errexit and not command.shell.before and any(not one.shell.after for one in after):
            yield command, "the shell continues if it fails: only the last command counts (no set -e, no &&)"


def _read_trigger(one: Instruction) -> Instruction:
    read = parse_dockerfile(f"FROM scratch\n{one.arguments}\n").instructions
    return replace(read[-1], first_line=one.first_line, last_line=one.last_line, lines=())


def _follow(at: Layer) -> Layer:
    """The state after a layer."""
    text = at.arguments.strip("\"'")
    if at.name == "WORKDIR":
        return replace(at, workdir=posixpath.normpath(posixpath.join(at.workdir, text)))
    if at.name == "USER":
        return replace(at, user=text.partition(":")[0].strip())
    if at.name == "SHELL":
        return replace(at, shell=at.instruction.exec_form or ())
    known = at.build.global_arguments if at.name == "ARG" else {}
    pairs = at.pairs if at.name in ("ENV", "ARG") else []
    set_to = {name: expand_variables(value, at.variables) or known.get(name, "") for name, value in pairs}
    return replace(at, variables={**at.variables, **{name: value for name, value in set_to.items() if value}})


def _find_script(one: Instruction) -> tuple[str, int]:
    """The shell's input, with its first line: line breaks are kept so that commands have their lines."""
    first = one.heredocs[0] if one.heredocs else None
    if first is not None and re.fullmatch(r"((/bin/)?(ba)?sh( -\w+)* )?\d*<<-?[\"']?\w+[\"']?", one.arguments.strip()):
        is_shell = re.match(r"(?!#!)|#!.*\b(ba|da|z)?sh\b", first.text) is not None
        return first.text if is_shell else "", first.last_line - first.text.count("\n") - 1
    bodies = "".join(f"\n{each.text}\n{each.name}" for each in one.heredocs)
    skipped = len("".join(text for _, text in one.lines).rstrip()) - len(one.arguments)
    text, at = "" if one.lines else one.arguments, one.first_line
    for number, line in one.lines:
        text += "\\\n" * (number - at) + line[max(0, skipped) :]
        skipped, at = skipped - len(line), number
    return text + bodies, one.first_line


def read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MOST_TEXT).decode("utf-8", "replace")
    except OSError:
        return None


def _read_ignores(dockerfile: str, folder: Path) -> str | None:
    own = read_text(Path(f"{dockerfile}.dockerignore"))
    return own if own is not None else read_text(folder / ".dockerignore")


@lru_cache(maxsize=64)
def _list_files(folder: str, ignores: str | None) -> Mapping[str, int] | None:
    """The files of a context without git's own; None if there are too many."""
    lines = [line for line in (ignores or "").split("\n") if line.count("*") <= MOST_STARS]
    try:
        ignore = Ignore.read("\n".join((*lines, ".git")))
        return scan_context(Path(folder), ignore, most_files=MOST_FILES).files
    except (OSError, UsageError, re.error):
        return None


@lru_cache(maxsize=1024)
def _match(folder: str, ignores: str | None, source: str) -> Mapping[str, tuple[str, bool]]:
    """Files that a source copies, as returned by match_sources."""
    files = _list_files(folder, ignores) or {}
    return match_sources([source], files) if source.count("*") <= MOST_STARS else {}


@lru_cache(maxsize=16)
def _read_history(root: Path) -> History | None:
    history = read_history(root, HISTORY_S)
    return history if isinstance(history, History) else None


_NAME = re.compile(r"(?i)((.+\.)?(Dockerfile|Containerfile)|Dockerfile[._-].+)$")
_OTHER_NAME = re.compile(r"(?i)\.(dockerignore|md|py|sh|ya?ml|j2|jinja2?|tmpl|template|txt|json|bak|orig)$")

DOCKERFILE = LintFormat(
    id="dockerfile",
    title="Dockerfile",
    may_name=lambda name: _NAME.match(name) is not None and not _OTHER_NAME.search(name),
    parse=parse_build,
    is_sure=True,
    order=0,
)
