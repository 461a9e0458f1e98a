"""Checks of a batch script's #SBATCH lines: those that sbatch refuses, ignores, or reads as something else."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintEdit, LintFinding, lint_rule
from hotloop.core.sbatch_options import LONG, OF_SRUN, RENAMED, SHORT, find_long
from hotloop.judge.lint.formats.batch import Batch, BatchOption

_WEIGHTY = re.compile(
    r"gres|gpu|\btime\b|\bnodes\b|ntasks(?!-per-core)|\bmem|array|cpus|\s-[tNnGca]\b|signal|requeue|partition|\s-p\b"
)
"""Options without which the job gets other devices or another limit."""
_SLIGHT = re.compile(
    r"^#+\w*\s+-+(ntasks-per-core|threads-per-core|hint|job-name|J|comment|mail\S*)\b[^#]*$", re.IGNORECASE
)
"""A line without which the job only has another name, fewer mails or more threads of a core."""


@lint_rule("ignored-sbatch-line", "an #SBATCH line is ignored: it follows a command, or is misspelled", reads="sbatch")
def ignored_sbatch_line(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `#SBATCH` lines after the first command, with spaces before `#`, or misspelled (`#SBTACH`, `#sbatch`).

    ## Why it costs
    sbatch stops reading at the first command. The job runs with the cluster's defaults: different devices or a
    different time limit.

    ## How to recognize it
    A command, an assignment or `set -e` is above the line. The severity is high if the line is about devices, cores,
    memory, time or signals. Lines inside heredocs are not checked.

    ## What to do
    Move all `#SBATCH` lines up, right below the first line. `hotloop lint --fix` does this.

    ## When it is wrong
    Ignore the finding if the line is kept as a note; in that case, write `##SBATCH`.
    """
    first = batch.commands[0].line if batch.commands else 0
    lines = batch.text.split("\n")
    late = [at for at, _ in batch.late if at > first and batch.options]
    moved = "".join(re.sub(r"^\s*#\w+", "#SBATCH", lines[at - 1]) + "\n" for at in late)
    edits = [_replace(at, "") for at in late] + [_replace(first, moved, 0)]
    problems = [(late[0], late, f"line {first} above it is a command", edits)] if late else []
    for at in [at for at, _ in batch.late if at <= first and batch.options]:
        fixed = re.sub(r"^\s*#\w+", "#SBATCH", lines[at - 1]) + "\n"
        problems.append((at, [at], "#SBATCH is misspelled, or not at the start of the line", [_replace(at, fixed)]))
    for line, places, problem, repair in problems:
        text = " ".join(lines[at - 1].strip() for at in places)
        more = f" (also line {', '.join(map(str, places[1:6]))})" if places[1:] else ""
        yield LintFinding(
            severity=Severity.HIGH
            if _WEIGHTY.search(text)
            else Severity.LOW
            if _SLIGHT.search(text)
            else Severity.MEDIUM,
            line=line,
            message=f"sbatch ignores {lines[line - 1].strip()[:60]}: {problem}{more}",
            advice="move #SBATCH lines above the first command",
            edits=tuple(repair) if max(places) < len(lines) else (),
        )


def _replace(line: int, text: str, count: int = 1) -> LintEdit:
    return LintEdit(first_line=line, first_column=1, last_line=line + count, last_column=1, text=text)


TEMPLATE = re.compile(r"[${}<>%@\\]")
PLACEHOLDER = re.compile(r"[<{]|(#|@@?|%%|__)[A-Z]\w*(?<!_)\1|\b(YOUR|CHANGE|REPLACE|TODO|XXX)|[=:-][A-Z](\s|$)")
"""What another program, or the person, fills in before the script is submitted."""
OF_PLUGINS = ("container-", "no-container-")
"""Options of the container plugin that most clusters with GPUs have."""
_EXCLUSIVE = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("cpus-per-task", "cpus-per-gpu"),
    ("ntasks-per-gpu", "gpus-per-task"),
    ("ntasks-per-gpu", "ntasks-per-node"),
)
_VALUES = {
    "time": r"\d+|(\d+-)?\d+(:\d+){1,2}|\d+-\d+|infinite|unlimited",
    "mem": r"\d+([KMGT]B?)?", "mem-per-cpu": r"\d+([KMGT]B?)?", "mem-per-gpu": r"\d+([KMGT]B?)?",
    "gres": r"(?!gpus\b|\d)(none|(gres[:/])?[\w/.-]+([:=][\w.,:/()+-]+)?)", "nodes": r"\d+k?(-\d+k?)?|[\d,:-]+",
    "ntasks": r"\d+k?", "ntasks-per-node": r"\d+", "cpus-per-task": r"\d+",
    "dependency": r"((after(any|ok|notok|corr|burstbuffer)?:\d[\d_+:]*|singleton|expand:\d+)[,?]?)+",
    "array": r"\[?[\d,:-]+\]?(%\d+)?\]?", "open-mode": r"append|truncate|a|t", "signal": r"([RB]+:)?\w+(@\d+)?",
    "mail-type": r"(NONE|BEGIN|END|FAIL|REQUEUE|ALL|INVALID_DEPEND|STAGE_OUT|TIME_LIMIT(_[589]0)?|ARRAY_TASKS|,)+",
}  # fmt: skip
"""The values that sbatch accepts, by option; it refuses all others."""


@lint_rule(
    "refused-option",
    "an unknown option, value, or combination makes sbatch refuse the script",
    reads="sbatch",
    is_proof=True,
)
def refused_option(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the `#SBATCH` lines with the options of sbatch. Looks for misspelled options, one dash instead of two,
    options of srun, values in unknown forms (`--time=24h`), options that exclude each other (`--mem` and
    `--mem-per-cpu`), and a missing `#!` line.

    ## Why it costs
    sbatch refuses the job. With one dash, it may accept the line and misread it: `-output=log` writes to `utput=log`.

    ## How to recognize it
    The name is neither an sbatch option (of version 22.05, or added up to 25.05) nor an abbreviation of exactly one
    option. The severity is `high` if the name is close to a known name or srun has the option, `medium` if older
    versions had it, and `low` otherwise.

    ## What to do
    Use the option that the finding names, or pass the option to srun.

    ## When it is wrong
    Ignore the finding if a cluster plugin adds an option whose name is close to one of sbatch's.
    """
    lines = batch.text.split("\n")
    found: list[tuple[Severity, int, str, str]] = []
    for one in batch.options:
        is_template = TEMPLATE.search(one.written + one.value) or PLACEHOLDER.search(lines[one.line - 1])
        severity, message, advice = (None, "", "") if is_template else _judge(one)
        meant = find_long(one.name)
        wanted = _VALUES.get(meant[0]) if len(meant) == 1 and not is_template else None
        if severity is None and wanted and not re.fullmatch(wanted, one.value, re.IGNORECASE):
            severity, message = Severity.HIGH, f"sbatch refuses --{one.name}={one.value or ' without a value'}"
            advice = "write D-HH:MM:SS" if one.name == "time" else "see the option in `man sbatch`"
        found += [(severity, one.line, message, advice)] if severity else []
    for names in _EXCLUSIVE:
        given = [option for name in names if (option := batch.option(name))]
        message = " together with ".join(f"--{option.name}" for option in given)
        at = max((option.line for option in given), default=0)
        found += [(Severity.HIGH, at, f"sbatch refuses {message}: they are mutually exclusive", "keep one")] * (
            len(given) > 1
        )
    problems = ((not batch.text.startswith("#!"), "no #! on its first line"), ("\r\n" in batch.text, "DOS line breaks"))
    for problem in [text for is_so, text in problems if is_so and batch.is_job]:
        found.append(
            (Severity.HIGH, 1, f"sbatch refuses the script: {problem}", "begin with #!/bin/bash, end lines with \\n")
        )
    for severity, line, message, advice in dict.fromkeys(found):
        yield LintFinding(severity=severity, line=line, message=message, advice=advice)


def _judge(one: BatchOption) -> tuple[Severity | None, str, str]:
    word, name = one.written, one.name
    if not word.startswith("-"):
        message = f"sbatch refuses {word!r}, which belongs to no option"
        return Severity.HIGH, message, "quote values with spaces, put no spaces around =, and begin comments with #"
    if not word.startswith("--"):
        long = word[1:].partition("=")[0]
        fix = f"--{word[1:]}" if len(long) > 2 and long in LONG else ""
        if word[1:2] not in SHORT:
            return Severity.HIGH, f"sbatch has no option -{word[1:2]}", fix or f"options: {', '.join(sorted(SHORT))}"
        if fix:
            return Severity.HIGH, f"sbatch reads {word} as -{word[1]} with value {word[2:]!r}", fix
        return None, "", ""
    meant = find_long(name)
    if len(meant) == 1 or name.startswith(OF_PLUGINS):
        return None, "", ""
    if meant:
        return Severity.HIGH, f"sbatch refuses --{name}: it may mean any of {len(meant)} options", f"--{meant[0]}"
    if name in RENAMED:
        return Severity.MEDIUM, f"sbatch no longer has the option --{name}", f"--{RENAMED[name]}"
    if name in OF_SRUN:
        return Severity.HIGH, f"sbatch refuses --{name}, an option of srun", f"srun --{name}"
    near = difflib.get_close_matches(name, sorted(LONG), n=1, cutoff=0.8)
    if near:
        return Severity.HIGH, f"sbatch refuses --{name}", f"--{near[0]}"
    return Severity.LOW, f"sbatch refuses --{name} unless a cluster plugin adds it", "see sbatch --help there"


@lint_rule("unexpanded-variable", "a shell variable in an #SBATCH line is not expanded", reads="sbatch")
def unexpanded_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `$NAME`, `$(command)` and `~/` in the values of `#SBATCH` lines.

    ## Why it costs
    sbatch reads these lines without a shell: the output goes to a folder literally named `$HOME`, and the job fails
    before its first line because that folder does not exist. A number such as `--nodes=$N` is refused.

    ## How to recognize it
    A value contains a dollar sign and a name, or begins with `~`. The severity is low if the value is only a name
    (`--job-name`).

    ## What to do
    Write the path, use sbatch's own patterns (`%x` name, `%j` id, `%u` user), or give the option on the command line.

    ## When it is wrong
    Ignore the finding if another program fills in the variables before the file is submitted.
    """
    for one in batch.options:
        filled = PLACEHOLDER.search(one.value.replace("${", "$"))
        if one.name and not filled and re.search(r"\$[\w{(]|^~/", one.value):
            is_path = one.name in ("output", "error", "input", "chdir")
            is_name = one.name in ("job-name", "comment", "mail-user")
            yield LintFinding(
                severity=Severity.LOW
                if is_name
                else Severity.MEDIUM
                if is_path and "/" not in one.value
                else Severity.HIGH,
                line=one.line,
                message=f"sbatch does not expand {one.value} in --{one.name}"
                + (": there is no folder of that name, and the job fails before its first line" if is_path else ""),
                advice="write the value, use %x, %j or %u, or give the option on sbatch's command line",
            )


_HOURS = {*range(6, 30), 32, 36, 40, 48, 60, 72, 84, 96, 120, 144, 168} - {10, 15, 20, 25, 60, 120}
"""Numbers that are more likely hours than minutes as the time limit of a training run."""
_SMALL = re.compile(r"[1-9]\d{0,2}")
_SHORT_JOB = re.compile(r"(?i)debug|test|smoke|short|interactive|quick|toy|demo|hello|example|check|dev\b|bench|profil")


@lint_rule("wrong-unit", "--time or --mem is read in another unit than intended", reads="sbatch")
def wrong_unit(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `--time=24` (24 minutes), `--time=24:00` (24 minutes, 0 seconds), `--time=24-00:00:00` (24 days), and for
    `--mem=64` (64 MB).

    ## Why it costs
    Slurm kills the training process after minutes, or when it imports torch; or the job waits forever because no
    partition allows such a limit.

    ## How to recognize it
    A training job with GPUs is limited to a number of minutes or days that usually means hours; or a comment on the
    line mentions hours. The job's name and partition do not suggest a test. Or a memory size below 1000 has no K, M, G
    or T.

    ## What to do
    Use `--time=24:00:00` or `--time=1-00:00:00`, and `--mem=64G`.

    ## When it is wrong
    Ignore the finding if a run of that many minutes is intended; in that case, write `--time=00:24:00`.
    """
    value, lines = batch.value("time"), batch.text.split("\n")
    minutes, days = re.fullmatch(r"(\d+)(:00)?", value), re.fullmatch(r"(\d+)-0{1,2}(:0{1,2}){0,2}", value)
    says_hours = re.search(r"#.*#.*\b(h|hr|hrs|hours?)\b", lines[batch.line("time") - 1])
    is_short = _SHORT_JOB.search(f"{batch.value('job-name')} {batch.value('partition')} {batch.value('qos')}")
    count = int(match[1]) if (match := minutes or days) else 0
    looks = says_hours or (not is_short and (count in _HOURS or value[:1] == "0"))
    sizes = [
        (n, batch.value(n))
        for n in ("mem", "mem-per-cpu", "mem-per-gpu")
        if _SMALL.fullmatch(batch.value(n)) and not re.search(r"#.*#.*(?i:\bm(i?b|ega))", lines[batch.line(n) - 1])
        if batch.trainings or batch.gpus_per_node
    ]
    problems = [
        (minutes and batch.trainings and looks, "time", f"{count} minutes: training is then killed", "HH:00:00"),
        (days and count in _HOURS - {*range(6, 12), 14, 21, 28}, "time",
         f"{count} days: beyond the partition's limit, the job never starts", "D-HH:MM:SS"),
        *((True, name, f"{size} MB: the job is killed when it exceeds them", f"{size}G") for name, size in sizes),
    ]  # fmt: skip
    for name, effect, unit in [(name, effect, unit) for is_so, name, effect, unit in problems if is_so]:
        yield LintFinding(
            severity=Severity.HIGH,
            line=batch.line(name),
            message=f"--{name}={batch.value(name)} is {effect}",
            advice=f"--{name}={unit}",
            confidence=Confidence.LIKELY,
        )


@lint_rule("lost-log", "the log of a job is truncated, mixed or never opened", reads="sbatch")
def lost_log(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks at `--output` and `--error`: finds jobs that are requeued without `--open-mode=append`, arrays without `%a`,
    and log folders that the script itself creates.

    ## Why it costs
    When a job starts again, Slurm truncates the file: the first run's output, including its error, is overwritten.
    Without `%a`, all tasks of an array write to one file. If the folder does not exist yet, Slurm cannot open the log,
    and the job fails silently.

    ## How to recognize it
    The job uses `--requeue` or `scontrol requeue` without the open mode (low); the file pattern is the same for all
    tasks (medium); or the script runs `mkdir` for a folder that does not exist next to it (medium).

    ## What to do
    Use `#SBATCH --open-mode=append` (`hotloop lint --fix` adds it) and `--output=logs/%A_%a.out`, and run `mkdir`
    before sbatch.

    ## When it is wrong
    Ignore the finding if the cluster sets `JobFileAppend=1`, or the folder exists from an earlier run.
    """
    requeues, at = (
        batch.option("requeue") or batch.find(r"^\s*scontrol\s+requeue"),
        batch.line("requeue", "output"),
    )
    is_cut = batch.is_job and requeues and not batch.value("open-mode").startswith("a")
    edits = () if batch.option("open-mode") else (_replace(at + 1, "#SBATCH --open-mode=append\n", 0),)
    found: list[tuple[int, Severity, str, tuple[LintEdit, ...]]] = []
    found += [(at, Severity.LOW, "a requeue truncates the log: earlier output is overwritten", edits)] * bool(is_cut)
    for name in ("output", "error"):
        value, line = batch.value(name), batch.line(name)
        folder = value.rpartition("/")[0].removeprefix("./")
        if batch.value("array") and value and not re.search(r"%\d*[ajNn]|/dev/null", value):
            found.append(
                (
                    line,
                    Severity.MEDIUM,
                    f"all tasks of the array write to {value} without %a: they overwrite each other's log",
                    (),
                )
            )
        is_said = name == "error" and folder == batch.value("output").rpartition("/")[0].removeprefix("./")
        is_there = is_said or any(
            os.path.isdir(os.path.join(place, folder))
            for place in (batch.folder, f"{batch.folder or os.curdir}/..", "")
        )
        if (
            folder
            and not is_there
            and any(folder in [word.strip("./") for word in c.arguments] for c in batch.script.named("mkdir"))
        ):
            found.append(
                (
                    line,
                    Severity.MEDIUM,
                    f"Slurm opens {value} before the script makes {folder}: without that folder the job fails silently",
                    (),
                )
            )
    for line, severity, message, repair in found:
        yield LintFinding(
            severity=severity,
            line=line,
            message=message,
            advice="#SBATCH --open-mode=append, --output=logs/%A_%a.out, and mkdir before sbatch",
            edits=repair,
        )


@lint_rule("contradictory-options", "options of a job contradict each other", reads="sbatch")
def contradictory_options(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares `--nodes`, `--ntasks`, `--ntasks-per-node` and `--gpus`, and looks for options that are given twice.

    ## Why it costs
    `--ntasks` takes precedence, and `--ntasks-per-node` is only a limit: some nodes or GPUs are left without a task. If
    an option is given twice, the last line is used.

    ## How to recognize it
    `--ntasks` differs from `--nodes` times `--ntasks-per-node`, `--gpus` is not a multiple of the nodes, or two lines
    give the same option different values.

    ## What to do
    Leave `--ntasks` out, or make the numbers agree; keep one line of each option.

    ## When it is wrong
    Ignore the finding if the nodes are intended to have different numbers of tasks.
    """
    tasks, per_node, gpus, nodes = (batch.count(name) or 0 for name in ("ntasks", "ntasks-per-node", "gpus", "nodes"))
    is_exact = "-" not in batch.value("nodes")
    problems = (
        (0 < tasks < nodes, f"--ntasks={tasks} on {nodes} nodes: {nodes - tasks} nodes get no task"),
        (tasks and per_node and nodes and is_exact and tasks != per_node * nodes,
         f"--ntasks={tasks} takes precedence over {nodes} nodes x --ntasks-per-node={per_node}"),
        (gpus and nodes and gpus % nodes, f"--gpus={gpus} is for all {nodes} nodes together"),
    )  # fmt: skip
    for problem in [text for is_so, text in problems if is_so][:1]:
        line = batch.line("ntasks", "gpus")
        yield LintFinding(
            severity=Severity.HIGH,
            line=line,
            message=problem,
            advice="make --ntasks, --nodes, --ntasks-per-node and --gpus agree",
        )
    for at, one in enumerate(batch.options):
        before = next((other for other in batch.options[:at] if other.name == one.name and one.name), None)
        if before and before.value != one.value and one.name not in ("comment", "mail-type", "constraint"):
            yield LintFinding(
                severity=Severity.LOW if one.name in ("output", "error", "job-name") else Severity.MEDIUM,
                line=one.line,
                message=f"--{one.name}={one.value} replaces --{one.name}={before.value} on line {before.line}",
                advice="keep one of the two lines",
            )


_WORKERS = re.compile(
    r"num_workers\s*=\s*(\d{1,3})\b|[\"']--[\w-]*workers[\"'][^)]{0,200}?default\s*=\s*(\d{1,3})\b", re.IGNORECASE
)
_CORES = "cpus-per-task cpus-per-gpu exclusive mincpus cores-per-socket threads-per-core ntasks ntasks-per-core hint"


@lint_rule("one-core-per-task", "a job with GPUs has too few CPUs for its processes and workers", reads="sbatch")
def one_core_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the number of CPUs that a job asks for with its numbers of GPUs and processes, and with the number of
    DataLoader workers on its command line.

    ## Why it costs
    Slurm's default is one CPU per task: the training process and all its DataLoader workers share this CPU, and the
    GPUs wait.

    ## How to recognize it
    The job has GPUs but no `--cpus-per-task`, `--cpus-per-gpu`, `--exclusive` or `--mincpus`; or it has fewer CPUs than
    GPUs; or it has at most half as many CPUs as workers, whose number comes from the command or from the default in the
    Python file next to it. The severity is `low` if neither workers nor several processes on a node are known.

    ## What to do
    Use `#SBATCH --cpus-per-task=N`, with one CPU for each worker and one for each process.

    ## When it is wrong
    Ignore the finding if the partition allocates entire nodes or a default number of CPUs per GPU.
    """
    gpus, cores = batch.gpus_per_node or 0, batch.cores_per_node
    is_given = any(batch.option(name) for name in _CORES.split()) or batch.tasks_per_node >= gpus * 2
    is_given |= batch.value("mem") == "0"
    busy = 1
    found = [
        (gpus and not is_given and cores is None, batch.line("gres", "gpus-per-node", "gpus"),
         "no --cpus-per-task: by default, a task gets one CPU for all its processes and DataLoader workers"),
        (cores is not None and cores < gpus, batch.line("cpus-per-task", "cpus-per-gpu"),
         f"{cores} CPUs for {gpus} GPUs on each node: processes and DataLoader workers share them"),
    ]  # fmt: skip
    for run in batch.trainings:
        pair = run.argument(r"(?:[\w.]+\.)?(?:data_?)?(?:loader|dataloader|dl)?[-_.]?(?:num[-_])?_?workers")
        written = None if pair else _WORKERS.search(batch.read_script(run))
        asked = (written[1] or written[2]) if written else pair[1] if pair else ""
        workers = int(asked) * (batch.processes_of(run) or 1) if asked.isdecimal() else 0
        is_spread = run.launch is not None and run.launch.launcher not in ("python", "torchrun")
        busy = max(busy, workers, batch.processes_of(run) or 0, gpus if is_spread else 0)
        threads = batch.resolve("${OMP_NUM_THREADS:-0}")
        omp = int(threads) * (batch.processes_of(run) or 1) if threads.isdecimal() else 0
        most, what = max((workers, "DataLoader workers"), (omp, "threads (OMP_NUM_THREADS x processes)"))
        known = cores or (batch.count("cpus-per-task") or 0) * batch.tasks_per_node
        is_many = bool(gpus and (cores or omp >= workers) and known and most >= 2 * known)
        given = [one.line for one in batch.commands for name, _ in one.assignments if name == "OMP_NUM_THREADS"]
        line = given[0] if given and omp >= workers else batch.line_of(run, pair[0] if pair else "")
        found.append((is_many, line, f"{most} {what} on the {known} CPUs of a node"))
    for line, message in [(line, text) for is_so, line, text in found if is_so and batch.trainings][:1]:
        yield LintFinding(
            severity=Severity.MEDIUM if busy > 1 else Severity.LOW,
            line=line,
            message=message,
            advice="#SBATCH --cpus-per-task=N, one CPU for each process and worker",
            confidence=Confidence.LIKELY,
        )
