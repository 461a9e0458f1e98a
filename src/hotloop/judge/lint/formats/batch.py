"""A Slurm batch script, or a shell script next to it -> Batch: its options, its commands, and all programs it starts.

directives          what sbatch reads, up to the first command
the batch shell     runs once, on the first node: it expands unquoted variables, and gets a signal only with ``B:``
srun, mpirun        start their command once per task; ``bash -c '...'`` and helper scripts are read as commands
                    whose variables each task expands itself
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hotloop.core.sbatch_options import FLAGS, SHORT
from hotloop.judge.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.judge.lint.launch_lines import SHELLS, LaunchLine, read_launch, unwrap
from hotloop.judge.lint.shell import ShellCommand, ShellScript, ShellWord, parse_shell, split_words

MOST_BESIDE = 1 << 18
"""The most bytes that are read of a script next to the batch script."""
MOST_TRAININGS = 50
"""The limit for one script; the rest repeats the same."""
MOST_VALUE = 4000
"""Characters of a variable's value that are put into a text, which may name it thousands of times."""
_VARIABLE = re.compile(r"(?<!\\)\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?:(:?[-=])([^{}]*))?\})")
_BLANK = re.compile(r"\s")
_ARITHMETIC = re.compile(r"\$\(\(([^()]{1,200})\)\)")
TRAINS = re.compile(r"(?i)train|fine.?tun|\bmain|\brun|sft|dpo|grpo|\bfit|learn|distill|ddp|fsdp|imagenet|gpt")
_PREPARES = re.compile(
    r"(?i)prepro|prepare|(^|_)prep(_|\.|$)|dataset\.|download|convert|tokeni|extract|setup|make_|build|merge|split|index|clean|evaluat|\beval|infer|"
    r"generat|plot|^venv$|^virtualenv$|^pip$|test|check|upload|ratio|route|report|summar|export|collect|aggregat|serve|bench|screen"
)

_NAME = re.compile(r"\$[{(]*[#!]?(\w+)")
_BY_TASK = re.compile(r"SLURM_(ARRAY_TASK_ID|JOB_?ID)|hostname|TMPDIR")
BY_START = re.compile(r"RANDOM|\$\$|\bdate\b|mktemp|uuid")
_OWN = re.compile(r"\$\{?(0|BASH_SOURCE|SLURM_JOB_NAME)\b|\$\(scontrol show job\b[^\n]*Command")
_SCRATCH = re.compile(r"(?i)(^|[/_])(tmp|temp|shm|local\w*|nvme|raid)(/|$)|\$\{?\w*TMP")
_NOT_KEPT = re.compile(r"(?i)cache|tmp|temp\b|data|local|nvme|scratch$|shm|tensorboard|wandb|lock")

CONTAINED = r"(?:\S*/)?(?:singularity|apptainer|docker|podman)\s+(?:exec|run)\b|pyxis"
"""The first words of a program in a container."""
_MOUNTS = re.compile(r"(?:^|\s)(?:--bind|-B|-v|--volume)[= ](\S+)")

OUTPUT = (
    r"(?:[\w.]+\.)?(?:(?:output|out|save|ckpt|checkpoints?|work|log|results?|exp|run|default_root|model_save|saving)"
    r"[-_]?(?:dir|path|folder|root|directory|to)|output|out|ckpt|checkpoints|ckpts|save|runs|results)"
)
"""Names of options for the places to which a training writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    """An option of a ``#SBATCH`` line by its long name; ``value`` is empty for a flag.

    ``written`` is its word. A word that does not belong to an option has no name.
    """

    name: str
    value: str
    line: int
    written: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProgram:
    """A program that the script starts, with known variables replaced.

    ``command`` starts it in the script; ``inner`` is the same or, for ``bash -c`` or a helper script, the command in
    there. ``step`` is srun or mpirun, empty for programs that the batch shell itself starts.
    """

    command: ShellCommand
    inner: ShellCommand
    words: tuple[str, ...]
    step: str
    step_options: Mapping[str, str]
    launch: LaunchLine | None

    @property
    def line(self) -> int:
        return self.command.line

    @property
    def is_training(self) -> bool:
        """A launcher, or a Python program, whose name does not suggest that it prepares or evaluates something."""
        is_inner = self.launch is None or "substitution" in self.command.blocks
        return not is_inner and self.launch is not None and not _PREPARES.search(os.path.basename(self.launch.script))

    def argument(self, pattern: str) -> tuple[str, str] | None:
        """The first argument of the script whose name matches, without dashes, and its value."""
        words = self.launch.arguments if self.launch else ()
        for at, word in enumerate(words):
            name, equals, value = word.lstrip("-+").partition("=")
            if (word.startswith("-") or equals) and re.fullmatch(pattern, name, re.IGNORECASE):
                return name, value if equals else words[at + 1] if at + 1 < len(words) else ""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """``signals`` are names without SIG; ``commands`` are those that it runs, or those of the function that it
    names."""

    line: int
    signals: frozenset[str]
    commands: tuple[ShellCommand, ...]

    def runs(self, pattern: str) -> bool:
        return any(re.search(pattern, command.text) for command in self.commands)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """``options`` are those that sbatch reads; ``late`` are the lines with ``#SBATCH`` after the first command, or that
    sbatch does not accept as such. ``save_s`` is how long a checkpoint takes, if known.
    """

    options: tuple[BatchOption, ...]
    late: tuple[tuple[int, str], ...]
    script: ShellScript
    text: str
    folder: str
    name: str
    save_s: float | None = None

    @property
    def commands(self) -> tuple[ShellCommand, ...]:
        return self.script.commands

    @property
    def is_job(self) -> bool:
        return bool(self.options)

    def option(self, name: str) -> BatchOption | None:
        """The option as sbatch reads it: the last of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, BatchOption]:
        return {one.name: one for one in self.options}

    def value(self, name: str) -> str:
        found = self.option(name)
        return found.value if found else ""

    def count(self, name: str) -> int | None:
        """The value of an option as a number (the least of a range); None if it is not a number."""
        match = re.match(r"\d+", self.value(name))
        return int(match[0]) if match else None

    def line(self, *names: str) -> int:
        """The line of the first of these options that is present; else of the first option, or 1."""
        found = [option for name in names if (option := self.option(name))] or list(self.options)
        return found[0].line if found else 1

    @cached_property
    def nodes(self) -> int:
        return self.count("nodes") or 1

    @cached_property
    def tasks_per_node(self) -> int:
        return self.count("ntasks-per-node") or max(1, (self.count("ntasks") or 1) // self.nodes)

    @cached_property
    def gpus_per_node(self) -> int | None:
        """GPUs per node; None if the job does not say how many, 0 if it asks for none."""
        tasks = self.tasks_per_node
        for name, share in (("gres", 1.0), ("gpus-per-node", 1), ("gpus", 1 / self.nodes), ("gpus-per-task", tasks)):
            if (value := self.value(name)) and (name != "gres" or "gpu" in value):
                match = re.match(r"(?:gres:|gpu\b:?)*(?:[A-Za-z][\w.-]*:)?(\d+)?(?:\(|,|$)", value)
                return max(1, int(int(match[1] or 1) * share)) if match else None
        return None if any("gpu" in option.name or "tres" in option.name for option in self.options) else 0

    @property
    def cores_per_node(self) -> int | None:
        """CPUs per node that the job asks for; None if it leaves the number to the cluster."""
        per_gpu, per_task = self.count("cpus-per-gpu"), self.count("cpus-per-task")
        if per_gpu is not None and self.gpus_per_node:
            return per_gpu * self.gpus_per_node
        if self.option("exclusive") or self.option("mincpus") or (per_task is None and self.tasks_per_node > 1):
            return None
        return per_task * self.tasks_per_node if per_task is not None else None

    @property
    def limit_s(self) -> int | None:
        """Seconds of ``--time``: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; None for any other form."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", self.value("time"))
        if match is None:
            return None
        days, *parts = match.groups()
        numbers = [int(part) for part in parts if part]
        scales = (3600, 60, 1) if days or len(numbers) == 3 else (60, 1)
        return int(days or 0) * 86400 + sum(number * scale for number, scale in zip(numbers, scales, strict=False))

    @property
    def signal(self) -> tuple[str, int, bool] | None:
        """From ``--signal``: the name, the seconds before the end, and whether the batch shell gets it (``B:``)."""
        match = re.match(r"((?:[BR]+:)?)(?:SIG)?(\w+)(?:@(\d+))?$", self.value("signal"))
        if match is None:
            return None
        name = {"10": "USR1", "12": "USR2", "15": "TERM", "2": "INT"}.get(match[2], match[2])
        return name.upper(), int(match[3] or 60), "B" in match[1]

    def find(self, pattern: str) -> list[ShellCommand]:
        """Commands whose text matches the pattern."""
        return [command for command in self.commands if re.search(pattern, command.text)]

    def is_set(self, name: str) -> bool:
        """Whether the script turns an option on, with ``set`` or in its first line: a letter, or ``pipefail``."""
        return name in self._set or any(word[0] == "-" and name in word for word in self._set if len(name) == 1)

    @cached_property
    def _set(self) -> set[str]:
        words = self.text.partition("\n")[0].split()[1:] + [w for c in self.script.named("set") for w in c.arguments]
        return {word for word in words if word and word[0] != "+"}

    @cached_property
    def traps(self) -> tuple[Trap, ...]:
        found = []
        for command in self.script.named("trap"):
            handler, *signals = [word for word in command.arguments if word != "--"] or ["-"]
            if handler not in ("-", ""):
                inside = parse_shell(handler, command.line).commands
                called = {f"function:{part.name}" for part in inside}
                inside += tuple(part for part in self.commands if called & set(part.blocks))
                names = frozenset(name.removeprefix("SIG") for name in signals)
                found.append(Trap(line=command.line, signals=names, commands=inside))
        return tuple(found)

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Variables with a single value, as the batch shell sees them; ``\\$`` is a dollar sign that it does not
        expand."""
        known: dict[str, str] = {}
        if self.is_job:
            counts = {
                "NNODES": self.nodes, "JOB_NUM_NODES": self.nodes, "NTASKS_PER_NODE": self.count("ntasks-per-node"),
                "NTASKS": self.count("ntasks") or self.nodes * self.tasks_per_node, "GPUS": self.count("gpus"),
                "CPUS_PER_TASK": self.count("cpus-per-task"), "GPUS_ON_NODE": self.gpus_per_node or None,
                "GPUS_PER_NODE": self.count("gpus-per-node"),
            }  # fmt: skip
            known = {f"SLURM_{name}": str(count) for name, count in counts.items() if count is not None}
        several: set[str] = set()
        for command in self.commands:
            for name, word in command.assignments:
                text = word.text if not word.is_literal else word.text.replace("\\$", "$").replace("$", "\\$")
                own = _VARIABLE.search(text) if f"${{{name}" in text else None
                text = text.replace(own[0], own[4]) if own and own[2] == name and own[3] else text
                is_added = name in known and text.startswith(f"${{{name}}}") and "loop" not in command.blocks
                if is_added:
                    text = (known[name] + text.removeprefix(f"${{{name}}}")).replace(")(", " ")
                elif known.get(name, text) != text or "loop" in command.blocks:
                    several.add(name)
                known[name] = text
        return {name: text for name, text in known.items() if name not in several}

    def resolve(self, text: str) -> str:
        """The text after the batch shell has expanded known variables and their sums."""

        def put(match: re.Match[str]) -> str:
            value = self.values.get(match[1] or match[2])
            if value is None or re.match(r"\$\([^(]|`", value):  # unknown, or a command's output
                return match[4] if value is None and match[3] else match[0]
            return _squash(value.strip() if value[:1] != "(" else value[1:-1])[:MOST_VALUE]

        for _ in range(6 if "$" in text else 0):
            before, text = text, _ARITHMETIC.sub(_compute, _VARIABLE.sub(put, text[:20000]))
            if text == before:
                break
        return text

    def trace(self, text: str) -> list[str]:
        """The text, and every value that the script gives to a variable in it or in such a value."""
        waiting, seen = [text], set[str]()
        for part in waiting:  # grows
            names = {match[1] for match in _NAME.finditer(part)} - seen
            seen |= names
            waiting += [word.text for name in sorted(names) for word in self.script.assigned(name)]
        return waiting

    def varies(self, text: str) -> bool:
        """Whether a text differs between the tasks of an array: by their ids, randomness, time, or a choice in the
        script."""
        parts = self.trace(text)
        names = {match[1] for part in parts for match in _NAME.finditer(part)}
        return any(_BY_TASK.search(part) or BY_START.search(part) for part in parts) or bool(names & self._chosen)

    @cached_property
    def _chosen(self) -> set[str]:
        """Variables that are read, counted, or set in a condition or loop."""
        found = set(re.findall(r"\bfor\s+(\w+)\s+in\b", self.text))
        for command in self.commands:
            is_choice = {"if", "case", "loop"} & set(command.blocks)
            found |= {name for name, _ in command.assignments} if is_choice else set()
            found |= set(command.arguments) if command.name in ("read", "mapfile", "readarray", "getopts") else set()
        return found

    @cached_property
    def own_variables(self) -> set[str]:
        """Variables of the batch shell that no program gets: set, and never exported."""
        exports = [one for one in self.commands if one.name in ("export", "declare", "typeset")]
        exported = {name for one in exports for name, _ in one.assignments} | {
            w for one in exports for w in one.arguments
        }
        plain = {name for one in self.commands if not one.words for name, _ in one.assignments}
        return set() if self.is_set("a") or "allexport" in self._set else plain - exported

    @cached_property
    def resubmits(self) -> list[ShellCommand]:
        """Commands of a job that submit its own script again."""
        return [
            one
            for one in self.script.named("sbatch")
            if self.is_job and any(self._is_own(word) for word in one.arguments)
        ]

    def _is_own(self, word: str) -> bool:
        if any(_OWN.search(part) for part in self.trace(word)):
            return True
        name = os.path.basename(self.resolve(word))
        return not word.startswith("-") and len(os.path.splitext(name)[0]) > 3 and self.name.endswith(name)

    @cached_property
    def deletions(self) -> list[tuple[ShellCommand, str]]:
        """Unconditional ``rm`` of a folder that a training below gets and that is not data or a cache, with the
        folder."""
        found = []
        for command in self.script.named("rm"):
            below = [run for run in self.trainings if run.line > command.line and run.launch]
            words = [word for run in below if run.launch for word in run.launch.arguments if "/" in word]
            words += [pair[1] for run in below if (pair := run.argument(OUTPUT))]
            kept = {word.rpartition("=")[2].strip("/") for word in words}
            takes_folders = any(re.match(r"-\w*[rR]|--recursive$", word) for word in command.arguments)
            for word in command.arguments if not (command.blocks or command.after) else ():
                target = self.resolve(word).rstrip("/*").lstrip("/")
                if not takes_folders and not re.search(r"\.(pt|pth|ckpt|safetensors|bin)$", target):
                    continue  # a flag or a lock
                is_kept = any(f"{path}/".startswith(f"{target}/") for path in kept)
                is_scratch = _SCRATCH.search(target)
                if len(target) > 2 and is_kept and not is_scratch and not _NOT_KEPT.search(os.path.basename(target)):
                    found.append((command, word))
        return found

    def line_of(self, run: StartedProgram, text: str) -> int:
        """The line of a run's command that contains the text; else its first."""
        lines = self.text.split("\n")[run.line - 1 : run.command.last_line]
        return next((run.line + at for at, line in enumerate(lines) if text and text in line), run.line)

    @cached_property
    def runs(self) -> tuple[StartedProgram, ...]:
        """Every program that the script starts, in order; programs that ``bash -c`` and helper scripts start replace
        these."""
        found: list[StartedProgram] = []
        for command in (one for one in self.commands if one.words):
            words = [part for word in command.words for part in self._expand(word)]
            variables = [f"{name}={self.resolve(word.text)}" for name, word in command.assignments]
            waiting = [(command, [*variables, *words], "", dict[str, str]())]
            for inner, inner_words, step, options in waiting:  # grows: a shell's commands follow it
                wrapped = unwrap(inner_words)
                step, options = wrapped.step or step, {**options, **wrapped.step_options}
                text = self._read_inner(wrapped.words) if len(waiting) < 200 else None
                inside = parse_shell(text) if text else None
                for part in inside.commands if inside is not None and inside.is_whole else ():  # else: misread
                    waiting.append((part, [word.text for word in part.words], step, options))
                if wrapped.words and (text is None or not wrapped.words[0]):
                    launch = read_launch(inner_words)
                    found.append(
                        StartedProgram(
                            command=command,
                            inner=inner,
                            words=wrapped.words,
                            step=step,
                            step_options=options,
                            launch=launch,
                        )
                    )
        return tuple(found)

    @cached_property
    def trainings(self) -> tuple[StartedProgram, ...]:
        """Launchers, Python programs whose name suggests training, or the only program of a job with GPUs."""
        runs = [run for run in self.runs if run.launch and run.is_training]
        sure = [
            run for run in runs if run.launch and (run.launch.launcher != "python" or TRAINS.search(run.launch.script))
        ]
        return tuple(sure or (runs if self.gpus_per_node and len(runs) == 1 else []))[:MOST_TRAININGS]

    def nodes_of(self, run: StartedProgram) -> int:
        """The nodes on which a run starts: those of its srun, else only the first."""
        ntasks = _read_count(run.step_options.get("ntasks", ""))
        nodes = _read_count(run.step_options.get("nodes", "")) or (self.nodes if run.step else 1)
        return min(nodes, ntasks or nodes)

    def tasks_of(self, run: StartedProgram) -> int:
        """The tasks that srun starts of a run on each node."""
        tasks = _read_count(run.step_options.get("ntasks-per-node", ""))
        total = _read_count(run.step_options.get("ntasks", ""))
        if run.step != "srun" or tasks:
            return tasks or (1 if not run.step else (total or self.tasks_per_node * self.nodes) // self.nodes or 1)
        return max(1, total // self.nodes_of(run)) if total else self.tasks_per_node

    def mounts_of(self, run: StartedProgram) -> dict[str, str] | None:
        """The folders of the host in the container of a run, by their place in it; None without a container."""
        options = " ".join([*(run.launch.prefixes if run.launch else ()), *run.words[:60]])
        if "container-image" in run.step_options:
            options = f"-v {self.resolve(run.step_options.get('container-mounts', ''))} pyxis run"
        elif not re.match(CONTAINED, options):
            return None
        given = [part for match in _MOUNTS.finditer(options) for part in self.resolve(match[1]).split(",")]
        pairs = [part.strip("\"'").split(":") for part in given]
        return {pair[min(1, len(pair) - 1)].rstrip("/"): pair[0].rstrip("/") for pair in pairs}

    def place_of(self, run: StartedProgram, path: str) -> str:
        """The path on the host of a path that a run gets; empty if it exists only in the container."""
        mounts = self.mounts_of(run)
        if mounts is None or not path.startswith("/"):
            return path
        fitting = [inside for inside in mounts if f"{path.rstrip('/')}/".startswith(f"{inside}/")]
        inside = max(fitting, key=len, default=None)
        return "" if inside is None else mounts[inside] + path[len(inside) :]

    def processes_of(self, run: StartedProgram) -> int | None:
        """The processes that a run starts on each of its nodes; None if the launcher decides."""
        if run.launch is None or run.launch.launcher == "python":
            return self.tasks_of(run)
        asked = run.launch.options.get("nproc-per-node", "")
        each = run.launch.processes_per_node or (self.gpus_per_node if asked in ("gpu", "auto") else None)
        each = 1 if run.launch.launcher == "torchrun" and not asked else each
        return each * self.tasks_of(run) if each else None

    def read_beside(self, name: str) -> str | None:
        """The text of a file that the script names: in its folder, or in the folder above."""
        for folder in (self.folder, os.path.dirname(self.folder) or os.pardir):
            path = os.path.join(folder, re.sub(r"^.*\$[^/]*/|^/.*/", "", name))
            if os.path.isfile(path):
                try:
                    with open(path, encoding="utf-8", errors="replace") as file:
                        return file.read(MOST_BESIDE)
                except OSError:
                    return None
        return None

    def read_script(self, run: StartedProgram) -> str:
        """The text of the Python file that a run starts, if it is next to the script; else empty."""
        return (run.launch and self.read_beside(run.launch.script)) or ""

    def _expand(self, word: ShellWord) -> list[str]:
        """A word as the program gets it: several words if an unquoted variable or an array contains several."""
        if word.is_literal:  # commands for another shell: it expands the rest
            text = word.text.replace("\\$", "$")
            return [text.replace("$", "\\$") if " " in text else text]
        if word.quote and "[@]" not in word.raw:
            return [self.resolve(word.text)]
        text = _squash(self.resolve(word.text))
        return split_words(re.sub(r"(?m)(^|\s)#.*", "", text)) if _BLANK.search(text) else [text]

    def _read_inner(self, words: Sequence[str]) -> str | None:
        """The commands passed to a shell, or those of a script next to this one."""
        name = os.path.basename(words[0]) if words else ""
        if name in SHELLS:
            flag = next((at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
            if flag is not None:
                text = re.sub(r"(?<!\\)\$\([^()]*\)", "@output", " ".join(words[flag + 1 : flag + 2]))
                return re.sub(r"(?<!\\)\$(?=[\w{])", "@", text).replace("\\$", "$")
            name = next((word for word in words[1:] if not word.startswith("-")), "")
        return self.read_beside(words[0] if words[0].endswith(".sh") else name) if name.endswith(".sh") else None


def parse_batch(file: SourceFile, around: Surroundings) -> Batch | None:
    """None if sbatch would read no option and nothing starts a training: a script that only writes such files."""
    script = parse_shell(file.text)
    options: list[BatchOption] = []
    late: list[tuple[int, str]] = []
    lines = file.text.split("\n")
    first = min((command.line for command in script.commands), default=len(lines) + 1)
    inside = {at for one in script.commands for at in range(one.line + 1, _find_end(one) + 1)}
    for at, line in enumerate(lines, 1):
        if not line.lstrip().startswith("#") or at in inside or not (match := _DIRECTIVE.match(line)):
            continue
        if at < first and match[1] == "#SBATCH":
            options += _read_options(line.removeprefix("#SBATCH"), at)
        else:
            late.append((at, line.strip()))
    if not options and not late and not _STARTS.search(file.text):
        return None
    saving = re.search(r"(?i)#.*\b(?:save|checkpoint)\w*\s+takes?\D{0,20}(\d+)\s*(s|m)", file.text)
    save_s = int(saving[1]) * (60 if saving[2] in "mM" else 1) if saving else None
    return Batch(
        options=tuple(options),
        late=tuple(late),
        script=script,
        text=file.text,
        folder=os.path.dirname(file.path),
        name=os.path.basename(file.path),
        save_s=around.save_s if around.save_s is not None else save_s,
    )


_DIRECTIVE = re.compile(
    r"\s*(#(?!SBATCH)(?:SBATCH|SBTACH|SBACTH|SBATH|SABTCH|SBTCH|sbatch|Sbatch)|#SBATCH)\s*-|#SBATCH\s"
)
_STARTS = re.compile(r"\b(torchrun|accelerate\s+launch|deepspeed|torch\.distributed|srun|sbatch)\s")


def _squash(text: str) -> str:
    """The text without the spaces in its command substitutions, so that it stays one word."""
    if "`" not in text and "$(" not in text:
        return text
    return re.sub(r"`[^`]*`|\$\([^()]*\)", lambda found: re.sub(r"\s", "", found[0]), text)


def _read_count(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)(?:-\d+)?", text)
    return int(match[1]) if match else None


def _find_end(command: ShellCommand) -> int:
    return command.last_line + (command.heredoc.count("\n") if command.heredoc else 0)


def compute(text: str) -> int | None:
    """The value of a sum of numbers with parentheses, as the shell computes it; None if it is not one."""
    for _ in range(20 if len(text) < 200 else 0):
        text = re.sub(
            r"\(([^()]*)\)", lambda inner: _compute(inner).strip("$()"), f"({text})" if "(" not in text else text
        )
        if text.isdecimal():
            return int(text)
    return None


def _compute(match: re.Match[str]) -> str:
    """The value of a sum of numbers without parentheses, as the shell computes it."""
    text = re.sub(r"(?<![\w$])([A-Za-z_]\w*)", r"$\1", match[1].strip())
    operators: dict[str, Any] = {"*": int.__mul__, "/": int.__floordiv__, "%": int.__mod__, "+": int.__add__}
    operators["-"] = int.__sub__
    while part := re.search(r"(\d+)\s*([*/%])\s*(\d+)", text) or re.match(r"(\d+)\s*([+-])\s*(\d+)", text):
        if len(part[0]) > 40 or (part[2] in "/%" and not int(part[3])):
            break
        text = text[: part.start()] + str(operators[part[2]](int(part[1]), int(part[3]))) + text[part.end() :]
    return text if text.isdecimal() else f"$(({text}))"


def _read_options(text: str, line: int) -> Iterator[BatchOption]:
    words = split_words(text, comments="#" in text)
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


_OTHER = re.compile(r"(?i)(gnu)?makefile$|justfile$|(readme|licen[sc]e|changelog|jenkinsfile|vagrantfile)$")
"""Files without a suffix that no shell reads."""
SUFFIXES = ("", ".sh", ".bash", ".sbatch", ".slurm", ".batch", ".job")

SBATCH = LintFormat(
    id="sbatch",
    title="batch script",
    may_name=lambda name: os.path.splitext(name)[1].lower() in SUFFIXES and not _OTHER.match(name),
    holds=lambda data: (
        re.search(rb"(?m)^\s*#SBATCH\s|\b(torchrun|srun|sbatch|accelerate\s+launch|deepspeed)\s", data[:65536])
        is not None
    ),
    parse=parse_batch,
)
