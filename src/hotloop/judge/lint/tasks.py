"""Task: the programs that a job's file, of any format, starts on each of its pods or machines, and their resources."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .checks import ReadPlace
from .launch_lines import LaunchLine, read_launch
from .shell import ShellCommand, ShellScript, parse_shell
from .yaml_fields import Field

TRAINS = re.compile(
    r"(?i)torchrun|torch\.distributed|accelerate\s+launch|\bdeepspeed\b|train\w*\.(py|sh)|-m\s+[\w.]*train\b|finetun"
    r"|fine[-_]tun|pretrain|\bsft\b|\bfit\b|axolotl|llamafactory|tune run"
)
SERVES = re.compile(
    r"(?i)\bserve|\bserver|vllm|uvicorn|gunicorn|sglang|triton|text-generation|\binfer|predict|jupyter|gradio"
)
IDLES = re.compile(
    r"(?i)\bsleep|busybox|pause|nccl|nvidia-smi|_?tests?\b|\w+-smi\b|bench|vector-?add|download|\becho\b"
)
WORKS = re.compile(
    r"(?i)\b(embed|encode|caption|transcribe|score|export|eval\w*|generat\w*|label|index|convert|extract|tokeni\w+)\b"
    r"|--(num[-_])?shards?\b"
)
"""Words of a program that works through its data once, and resumes by what it has written."""
_REFERENCE = re.compile(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_SAVES = re.compile(
    r"(?i)--?([\w.]*(ckpt|checkpoint|output|save|results?|work|root|logging|exp|snapshot)[-_.]?)+(dir|path|folder|to)$"
    r"|--?(ckpt|checkpoints?|output|out|save|snapshots?)$"
)
_NO_FOLDER = re.compile(r"(?i)resume|load|init|from|pretrained|on[-_]|data|base")
_SAVE_VARIABLE = re.compile(r"(?i)(^|_)(CKPT|CHECKPOINTS?|OUTPUT|SAVE|SNAPSHOTS?)(_?(DIR|PATH|FOLDER|ROOT))?$")
_WORKERS = re.compile(r"(?i)--?[\w.]*?(num[-_]?)?(loader|data|dataloader)?[-_]?(num[-_])?workers([-_]per[-_]\w+)?$")
_SPLITS = re.compile(r"--(?:tensor[-_]parallel[-_]size|tp(?:[-_]size)?)[= ]['\"]?(\d+)\b")
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "ten": 10, "twenty": 20}
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIME = re.compile(
    r"(?i)\b(\d+(?:\.\d+)?|two|three|four|five|six|seven|eight|ten|twenty)[\s-]*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?)\b"
)


class TaskVariable(NamedTuple):
    """``value`` is None if it comes from elsewhere: a secret, the caller's environment."""

    name: str
    value: str | None
    line: int


class Mount(NamedTuple):
    """``loss`` describes what happens to files written there; empty if they outlive the pod or machine."""

    path: str
    loss: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """``nodes`` run it at once and have ``gpus`` and at most ``cpus`` each; 0 and None if the file does not say.

    ``lines`` are those of cpus, limit and shared. ``shell`` is the shell that runs ``script``: bash, sh, or empty if
    the words are the program itself. ``is_wired``: an operator gives each node its rank and address. ``is_warned``: a
    signal comes before the end, and the file makes use of it. ``spot_line`` is the line that asks for machines that may
    be taken away; ``retries`` is whether the job then starts again. ``limit_s``: the job is ended after that time.
    ``notes`` are the file's comments. ``loses_disk``: files outside mounts are gone after the run. ``trains``: the
    format shows that it is a training. ``shared_bytes``: the size of /dev/shm, None if it has no limit of its own.
    ``folder``: where it starts.
    """

    name: str
    script: ShellScript
    shell: str = "bash"
    nodes: int = 1
    gpus: int = 0
    cpus: float | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    variables: tuple[TaskVariable, ...] = ()
    mounts: tuple[Mount, ...] = ()
    is_wired: bool = False
    is_warned: bool = False
    spot_line: int | None = None
    retries: bool = True
    limit_s: float | None = None
    notes: str = ""
    loses_disk: bool = True
    trains: bool = False
    shared_bytes: float | None = None
    folder: str = ""
    image: str = ""

    @cached_property
    def launches(self) -> tuple[tuple[ShellCommand, LaunchLine], ...]:
        """The commands that start a Python program, with known variables replaced."""
        read = [(command, read_launch([self.expand(word.text) for word in command.words])) for command in self.commands]
        return tuple((command, launch) for command, launch in read if launch is not None)

    @cached_property
    def commands(self) -> list[ShellCommand]:
        """The commands that run separately, not as the words of another command."""
        return [command for command in self.script.commands if command.words and "substitution" not in command.blocks]

    @cached_property
    def assigned(self) -> list[TaskVariable]:
        """Variables of the file, and those that its script sets unconditionally."""
        commands = [one for one in self.script.commands if not {"if", "case"} & set(one.blocks)]
        given = [TaskVariable(name, word.text, one.line) for one in commands for name, word in one.assignments]
        return [*self.variables, *given]

    @cached_property
    def values(self) -> dict[str, str]:
        """Variables with a known value: those of the file, then those that the script sets."""
        return {one.name: one.value for one in self.assigned if one.value is not None}

    def expand(self, text: str) -> str:
        """The text with known variables replaced; twice, as a variable may contain another."""
        for _ in range(2 if "$" in text and len(text) < 10_000 else 0):
            text = _REFERENCE.sub(lambda one: self.values.get(one[1] or one[2] or one[4], one[3] or one[0]), text)[
                :20_000
            ]
        return text

    @cached_property
    def text(self) -> str:
        """Its commands, and the names of its variables."""
        return "\n".join([*(one.text for one in self.script.commands), *(one.name for one in self.variables)])

    @cached_property
    def is_training(self) -> bool:
        started = "\n".join(f"{'-m ' * one.is_module}{one.launcher} {one.script}" for _, one in self.launches)
        return self.trains or (bool(TRAINS.search(started or self.text)) and not SERVES.search(started))

    @cached_property
    def training(self) -> tuple[ShellCommand, LaunchLine] | None:
        """The last command that starts a training, else the last that starts a Python program."""
        trains = [pair for pair in self.launches if pair[1].launcher != "python" or TRAINS.search(pair[1].script)]
        return (trains or self.launches)[-1] if self.launches else None

    @cached_property
    def options(self) -> list[tuple[str, str, int]]:
        """Options of the started programs with their values, and the line; including Hydra's (``a.b=c``)."""
        pairs = [
            (word, following, command.line)
            for command, launch in self.launches
            for word, following in zip(launch.arguments, (*launch.arguments[1:], ""), strict=False)
            if re.match(r"-|\+*[a-z][\w.]+=", word)
        ]
        split = [(*word.partition("="), following, line) for word, following, line in pairs]
        return [
            (f"--{name.lstrip('-+')}", value if equals else following, line)
            for name, equals, value, following, line in split
        ]

    @cached_property
    def workers(self) -> int:
        """Loader workers of each process, if an option sets them."""
        return max(
            [int(value) for name, value, _ in self.options if value.isdecimal() and _WORKERS.match(name)], default=0
        )

    @cached_property
    def tensor_parallel(self) -> int:
        """GPUs over which a server splits its model, if an option sets them."""
        return max(map(int, _SPLITS.findall(self.text)), default=0)

    @cached_property
    def processes(self) -> int | None:
        """The processes that one node starts; None if the launcher or a variable decides."""
        if self.training is None:
            return None
        launch, given = self.training[1], self.given
        is_default = launch.launcher == "torchrun" and "nproc-per-node" not in launch.options
        return (None if self.is_wired or "NPROC" in given else 1) if is_default else launch.processes_per_node

    @cached_property
    def given(self) -> str:
        """Names of the variables with which the training starts."""
        return " ".join(
            [
                *(one.name for one in self.variables),
                *self.values,
                *(self.training[1].variables if self.training else ()),
            ]
        )

    @cached_property
    def losses(self) -> list[ReadPlace]:
        """Folders passed to the program for output that do not last, and why."""
        saved = [
            (value, line) for name, value, line in self.options if _SAVES.match(name) and not _NO_FOLDER.search(name)
        ]
        saved += [(one.value, one.line) for one in self.variables if one.value and _SAVE_VARIABLE.search(one.name)]
        found = {}
        removed = [one.text for one in self.script.commands if one.name == "rm"]
        is_unsaved = any(re.search(r"save[-_]strategy$", name) and value == "no" for name, value, _ in self.options)
        for path, line in saved if not is_unsaved else ():
            if (
                any(path in text for text in removed)
                or re.search(r"://|\$|^-|^\d*$", path)
                or not re.match(r"[/.~]|[\w-]+(/|$)", path)
            ):
                continue
            place = posixpath.normpath(posixpath.join(self.folder, path))
            fitting = [mount for mount in self.mounts if f"{place}/".startswith(f"{mount.path.rstrip('/')}/")]
            loss = "is on the disk of the container or machine, and is deleted with it" if self.loses_disk else ""
            mount = max(fitting, key=lambda mount: len(mount.path), default=Mount("it", loss, line))
            if mount.loss:
                found[path] = ReadPlace(mount.line, f"{path}: {mount.path} {mount.loss}")
        return list(found.values())

    def stated_s(self, about: str) -> float:
        """The longest time that a comment or option gives for something ("takes two minutes"); 0 if none does."""
        lines = [line for line in self.notes.split("\n") if not re.search(r"(?i)every|each|per\b|interval|ago", line)]
        lines += [
            f"{name} {value}" for name, value, _ in self.options if "every" not in name and "interval" not in name
        ]
        shown = [line for line in lines if re.search(f"(?i){about}", line)]
        return max((read_seconds(*one.groups()) for line in shown for one in _TIME.finditer(line)), default=0.0)


def read_seconds(count: str, unit: str) -> float:
    """Seconds from a number, in digits or as a word, and a unit, which is identified by its first letter."""
    return float(_NUMBERS.get(count.lower(), count)) * _UNITS_S[unit[:1].lower() or "s"]


def read_words(words: Sequence[Field]) -> tuple[ShellScript, str]:
    """The script of a command line that may run without a shell, and the shell that runs it: bash, sh, or none."""
    texts = [word.text or "" for word in words]
    for at in range(1, min(len(texts) - 1, 6)):
        names = [
            name for text in texts[:at] if (name := text.rsplit("/", 1)[-1]) in ("sh", "bash", "dash", "ash", "zsh")
        ]
        if names and re.fullmatch(r"-\w*c", texts[at]):
            given = words[min(at + 1 + (texts[at + 1] == "--"), len(words) - 1)]
            return parse_shell(given.text or "", given.first_line), "bash" if names[-1] in ("bash", "zsh") else "sh"
    line = first = words[0].line if words else 1
    joined = ""
    for word in words:  # each on its line of the file
        joined += (" \\\n" * max(0, word.line - line) or " ") + shlex.quote(word.text or "")
        line = first + joined.count("\n")
    return parse_shell(joined.lstrip(" "), first), ""


def read_notes(text: str) -> str:
    """The comments of a file, one per line."""
    return "\n".join(match[1] for match in re.finditer(r"(?m)(?:^|\s)#(?!!)(.*)$", text))


def read_variables(env: Field) -> list[TaskVariable]:
    """Variables from a mapping, a list of ``NAME=value`` and bare names, or a list of mappings with ``name`` and
    ``value``."""
    variables = [TaskVariable(name, value.text, value.line) for name, value in env.items]
    for entry in env.elements:
        name, equals, value = (entry.text or "").partition("=")
        named = TaskVariable(entry["name"].text or "", entry["value"].text, entry["value"].line)
        variables.append(named if entry.is_mapping else TaskVariable(name, value if equals else None, entry.line))
    return variables
