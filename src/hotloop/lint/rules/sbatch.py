"""The static checks of Slurm's batch scripts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.save_notice import find_notice_s
from hotloop.core.sbatch_options import LONG, OF_SRUN, RENAMED, SHORT, find_long
from hotloop.lint.formats.batch import Batch, BatchOption


@lint_rule("cores-not-passed-on", "srun does not pass the job's cores on to its tasks", reads="sbatch")
def cores_not_passed_on(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `--cpus-per-task` in a job whose `srun` does not repeat it.

    ## Why it costs
    Since Slurm 22.05 srun no longer takes it from the job: each task may get one core, whatever the job has.

    ## How to tell
    An `#SBATCH --cpus-per-task` of at least 2, an srun without the option, and no `SRUN_CPUS_PER_TASK`. It depends on
    Slurm's version and the cluster's settings, so this is never above `low`.

    ## What to do
    `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK`, or `srun --cpus-per-task=$SLURM_CPUS_PER_TASK`.

    ## When it is wrong
    With an older Slurm, or where a site restores the old behaviour.
    """
    option = batch.option("cpus-per-task")
    if option is None or (batch.count("cpus-per-task") or 1) < 2 or "SRUN_CPUS_PER_TASK" in batch.text:
        return
    for command in batch.find(r"(^|[\s;&(])srun\s")[:1]:
        if not re.search(
            r"cpus-per-task|\s-c\s*\d|\s-c\s*\$|exclusive|cpu[-_]bind=none|SRUN_ARGS|\$\{?ARGS", command.text
        ):
            yield LintFinding(
                severity=Severity.LOW,
                line=command.line,
                message="srun may give each task one core: it does not take the job's --cpus-per-task",
                advice="export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
            )


@lint_rule("ignored-sbatch-line", "an #SBATCH line stands behind the first command and is ignored", reads="sbatch")
def ignored_sbatch_line(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `#SBATCH` lines behind the first command of a batch script.

    ## Why it costs
    sbatch stops reading options at the first line that is neither empty nor a comment. The job runs with the cluster's
    defaults instead: other limits, other devices, no signal before the end.

    ## How to tell
    A command, an assignment or `set -e` stands above the line. Lines inside of heredocs are left out.

    ## What to do
    Move all `#SBATCH` lines up, right below the first line.

    ## When it is wrong
    If the line is kept as a note; write `##SBATCH` then.
    """
    if batch.late and batch.options:
        lines = ", ".join(str(line) for line, _ in batch.late[1:6])
        more = f" (also line {lines})" if lines else ""
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=batch.late[0][0],
            message=f"sbatch does not read this line: line {batch.commands[0].line} above it is a command{more}",
            advice="move #SBATCH lines above the first command",
        )


@lint_rule("late-signal", "the signal before the time limit comes too late for a save", reads="sbatch")
def late_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the seconds of `--signal=...@SECONDS` with how long a checkpoint takes, if `--save-seconds` says it.

    ## Why it costs
    The job is killed in the middle of the save: the time since the last checkpoint is lost, and perhaps the file.

    ## How to tell
    The warning comes fewer seconds before the limit than the save takes; Slurm may be up to 60 s late or early.

    ## What to do
    Ask for the signal two saves and 10 s before the end, as `hotloop launch` does.

    ## When it is wrong
    If the save that `--save-seconds` states is not the one that the handler makes.
    """
    signal = batch.signal
    option = batch.option("signal")
    if batch.save_s is not None and signal is not None and option is not None and signal[1] < batch.save_s:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=option.line,
            message=f"the signal comes {signal[1]} s before the end, and a save takes {batch.save_s:g} s",
            advice=f"--signal={signal[0]}@{find_notice_s(batch.save_s)}",
        )


@lint_rule("launch-on-one-node", "a job of several nodes starts its training on the first only", reads="sbatch")
def launch_on_one_node(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a job of several nodes whose training is started without srun.

    ## Why it costs
    A batch script runs on the first node alone. Either the launcher waits for the others until it gives up, or the
    training runs on one node and the rest are paid for nothing.

    ## How to tell
    `--nodes` is at least 2, torchrun or Python starts a training, and no srun, mpirun, ssh, pdsh or Ray occurs.

    ## What to do
    `srun torchrun --nnodes $SLURM_NNODES --rdzv-backend c10d --rdzv-endpoint $HOST:29500 train.py`, with one task per
    node.

    ## When it is wrong
    If the Python program starts the other nodes itself.
    """
    starters = (
        r"\b(srun|mpirun|mpiexec|orterun|ssh|pdsh|clush|ray|sbatch|submitit|deepspeed|parallel|horovodrun|flux|prun)\b"
    )
    if batch.nodes < 2 or re.search(starters, "\n".join(one.text for one in batch.commands)):
        return
    for command in batch.find(
        r"^\s*(\w+=\S+\s+)*(torchrun|python3?\s+-m\s+torch\.distributed|python3?\s+\S*train\S*\.py)"
    )[:1]:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=command.line,
            message=f"starts on the first of {batch.nodes} nodes only: no srun brings it to the others",
            advice="start it with srun, one task per node",
        )


@lint_rule(
    "launcher-per-task", "srun starts a launcher for each task, and each launcher starts all processes", reads="sbatch"
)
def launcher_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `srun torchrun` (or `accelerate launch`) in a job with several tasks per node.

    ## Why it costs
    Each task starts a launcher, and each launcher starts one process per device: with 8 tasks 64 processes share 8
    devices, or the second launcher fails on a port that is taken.

    ## How to tell
    `--ntasks-per-node` is above 1, and srun's own command line does not set it to 1.

    ## What to do
    `#SBATCH --ntasks-per-node=1` with torchrun, or `srun python train.py` with one task per device.

    ## When it is wrong
    If the launcher is told to start a single process.
    """
    tasks = batch.count("ntasks-per-node") or 1
    for command in batch.find(
        r"(^|\s)srun\s[^;|&]*\b(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))\b"
    ):
        own = re.search(r"--ntasks-per-node|\s-n\s*[\d$]|--ntasks[= ]", command.text)
        single = re.search(r"nproc[-_]per[-_]node[= ]\"?1\b", command.text)
        if tasks > 1 and not own and not single:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=command.line,
                message=f"{tasks} tasks per node start {tasks} launchers, and each starts one process per device",
                advice="ask for --ntasks-per-node=1 with a launcher",
            )


@lint_rule("loopback-master", "several nodes look for the master on themselves", reads="sbatch")
def loopback_master(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `MASTER_ADDR=localhost` (or 127.0.0.1) in a job of several nodes.

    ## Why it costs
    Each node waits for the first rank at its own address; after the timeout the job fails.

    ## How to tell
    `--nodes` is at least 2, and the address is assigned or passed as it stands.

    ## What to do
    `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.

    ## When it is wrong
    If each node is meant to train by itself.
    """
    pattern = r"(MASTER_ADDR=|--master[-_]addr[= ]|--rdzv[-_]endpoint[= ])[\"']?(localhost|127\.0\.0\.1)"
    if batch.nodes < 2 or len(batch.find(r"MASTER_ADDR=")) > 1:
        return
    for command in batch.find(pattern):
        if command.text.startswith((" ", "\t")):
            continue  # part of a branch
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=command.line,
            message=f"each of {batch.nodes} nodes looks for the master on itself",
            advice='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        )


@lint_rule("one-core-per-task", "a job with GPUs gets one core for a task and all its workers", reads="sbatch")
def one_core_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a job that asks for GPUs and says nothing about cores.

    ## Why it costs
    Slurm's default is one core per task: the training and all its DataLoader workers share it.

    ## How to tell
    There are GPUs, and no `--cpus-per-task`, `--cpus-per-gpu`, `--exclusive` or `--mincpus`. A cluster may have other
    defaults, so this is never above `low`.

    ## What to do
    `#SBATCH --cpus-per-task=N`, with a core for each worker and one for the training.

    ## When it is wrong
    If the partition gives whole nodes, or a default number of cores per GPU.
    """
    gpus = [
        one for one in batch.options if one.name.startswith(("gpus", "gres")) and re.search(r"gpu|^\d|:\d", one.value)
    ]
    cores = (
        "cpus-per-task",
        "cpus-per-gpu",
        "exclusive",
        "mincpus",
        "cores-per-socket",
        "threads-per-core",
        "ntasks-per-core",
    )
    if gpus and not any(batch.option(name) for name in cores) and batch.commands:
        yield LintFinding(
            severity=Severity.LOW,
            line=gpus[0].line,
            message="asks for GPUs but not for cores: by default a task and all its workers share one",
            advice="add #SBATCH --cpus-per-task=N",
        )


TEMPLATE = re.compile(r"[${}<>%@\\]")
OF_PLUGINS = ("container-", "no-container-")
"""What the plugin for containers that most clusters with GPUs have calls its options."""


@lint_rule("refused-option", "an #SBATCH line holds what sbatch does not know", reads="sbatch")
def refused_option(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the `#SBATCH` lines with the options of sbatch: misspelt ones, one dash for two, options of srun, words
    that belong to no option.

    ## Why it costs
    sbatch refuses the job. With one dash it may take it and read something else: `-output=log` writes to `utput=log`.

    ## How to tell
    The name is neither an option of sbatch (22.05, and those added up to 25.05) nor an abbreviation of a single one.
    `high` where a known name is near or srun has the option, `medium` where older versions had it, else `low`: a plugin
    of the cluster may add it.

    ## What to do
    Write the option that is named, or give it to srun.

    ## When it is wrong
    If a plugin of the cluster adds an option whose name is near to one of sbatch's.
    """
    for one in batch.options:
        if TEMPLATE.search(one.written):
            continue  # filled in before the file is submitted
        severity, message, advice = _judge(one)
        if severity is not None:
            yield LintFinding(severity=severity, line=one.line, message=message, advice=advice)


def _judge(one: BatchOption) -> tuple[Severity | None, str, str]:
    word, name = one.written, one.name
    if not word.startswith("-"):
        message = f"sbatch refuses {word!r}, which belongs to no option"
        return Severity.HIGH, message, "quote values with blanks, and begin comments with #"
    if not word.startswith("--"):
        long = word[1:].partition("=")[0]
        fix = f"--{word[1:]}" if len(long) > 2 and long in LONG else ""
        if word[1:2] not in SHORT:
            return Severity.HIGH, f"sbatch has no -{word[1:2]}", fix or f"its letters: {''.join(sorted(SHORT))}"
        if fix:
            return Severity.HIGH, f"sbatch reads {word} as -{word[1]} with the value {word[2:]!r}", fix
        return None, "", ""
    meant = find_long(name)
    if len(meant) == 1 or name.startswith(OF_PLUGINS):
        return None, "", ""
    if meant:
        return Severity.HIGH, f"sbatch refuses --{name}: it may be any of {len(meant)} options", f"--{meant[0]}"
    if name in RENAMED:
        return Severity.MEDIUM, f"sbatch has no --{name} any more", f"--{RENAMED[name]}"
    if name in OF_SRUN:
        return Severity.HIGH, f"sbatch refuses --{name}, an option of srun", f"srun --{name}"
    near = difflib.get_close_matches(name, sorted(LONG), n=1, cutoff=0.8)
    if near:
        return Severity.HIGH, f"sbatch refuses --{name}", f"--{near[0]}"
    return Severity.LOW, f"sbatch refuses --{name} unless a plugin of the cluster adds it", "see sbatch --help there"


@lint_rule("trap-behind-foreground", "a trap waits until the training that it should warn has ended", reads="sbatch")
def trap_behind_foreground(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `trap` in a script with `--signal=B:`, whose training runs in the foreground.

    ## Why it costs
    A shell runs a trap only when its foreground command has ended. The signal arrives in time, and nothing happens
    until the job is killed.

    ## How to tell
    The script traps the signal of `--signal=B:...`, and then starts srun, torchrun or Python without `&` and `wait`.

    ## What to do
    Start the training with `&`, keep its process id, pass the signal on in the trap (`kill -USR1 "$pid"`), and `wait`.

    ## When it is wrong
    If the trap only submits the job again after the training ended by itself.
    """
    signal = batch.signal
    if signal is None or not signal[2]:
        return
    waits = [one.line for one in batch.find(r"\bwait\b")]
    for trap in batch.find(rf"(^|[;\s])trap\s.*\b(SIG)?{signal[0]}\b")[:1]:
        if any(line >= trap.line for line in waits):
            continue  # what waits before it, does so in the function that the trap calls
        starts = batch.find(r"^\s*(time\s+)?(srun|torchrun|python3?|mpirun|bash)\s")
        foreground = [one for one in starts if not one.text.rstrip().endswith("&") and one.line > trap.line]
        if foreground:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=trap.line,
                message=f"this trap runs only after the command in line {foreground[0].line} has ended",
                advice="start that command with &, pass the signal on to it, and wait",
            )


PASSED_ON = frozenset({"TERM", "INT", "HUP", "QUIT"})
"""What torchrun passes on to the processes that it started (torch/distributed/elastic/multiprocessing)."""
_LAUNCHED = r"(^|\s)srun\s[^;|&]*\b(torchrun|accelerate\s+launch|torch\.distributed\.(run|launch))\b"


@lint_rule("undelivered-signal", "the signal before the time limit does not reach what handles it", reads="sbatch")
def undelivered_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares `--signal` with what could handle it: a `trap` of the batch script, or programs that srun started.

    ## Why it costs
    The last save never runs, and everything since the last checkpoint is computed again.

    ## How to tell
    With `B:` only the batch shell gets the signal; without it, only the programs that srun starts do. Medium where `B:`
    meets a script without `trap`, where `B:` is missing and the script starts its training without srun, or where srun
    starts torchrun or accelerate: they pass TERM, INT, HUP and QUIT on, and any other signal ends them.

    ## What to do
    `--signal=B:USR1@300` with a `trap` that passes it on to a background process or leaves a file that the training
    looks for, or `--signal=USR1@300` with an srun that starts one Python per rank.

    ## When it is wrong
    If a program that the script starts, such as submitit, sets the handler in another way.
    """
    signal = batch.signal
    option = batch.option("signal")
    if signal is None or option is None or batch.find(r"\bsubmitit\b|^\s*exec\s"):
        return
    traps, starts = batch.find(r"(^|[;&\s])trap\s"), batch.find(r"(^|[\s;&(\"'])(srun|mpirun)\b")
    sources = batch.find(r"^\s*(source|\.)\s")
    name, seconds, is_for_shell = signal
    problem = ""
    if is_for_shell and not traps and not sources:
        problem = f"only the batch shell gets {name} {seconds} s before the end, and it has no trap for it"
    elif not is_for_shell and not starts and batch.find(r"\b(python3?|torchrun|accelerate|deepspeed)\s"):
        problem = f"only programs under srun get {name} {seconds} s before the end, and nothing here runs under srun"
    elif not is_for_shell and name not in PASSED_ON and not batch.find(r"TORCHELASTIC_SIGNALS_TO_HANDLE"):
        launcher = batch.find(_LAUNCHED)
        if launcher:
            problem = (
                f"srun gives {name} to the launcher {seconds} s before the end, which ends by it and passes it on to "
                "no process that trains"
            )
    if problem:
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=option.line,
            message=problem,
            advice="B: needs a trap in this script; without B: let srun start the training itself",
        )


@lint_rule("unexpanded-variable", "a shell variable in an #SBATCH line stays as it is written", reads="sbatch")
def unexpanded_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `$NAME` and `${NAME}` in the values of `#SBATCH` lines.

    ## Why it costs
    sbatch reads these lines itself, without a shell: the job's output goes to a file or folder that is really called
    `$HOME`, or the job fails at once because that folder does not exist.

    ## How to tell
    A value holds a dollar sign and a name.

    ## What to do
    Write the path, use sbatch's own patterns (`%x` name, `%j` id, `%u` user), or give the option on the command line.

    ## When it is wrong
    If another program fills in the variables before the file is submitted.
    """
    for one in batch.options:
        if one.name and re.search(r"\$\{?[A-Za-z_]\w*", one.value):
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=one.line,
                message=f"sbatch does not expand {one.value} in --{one.name}",
                advice="write the value, use %x, %j or %u, or give the option on sbatch's command line",
            )
