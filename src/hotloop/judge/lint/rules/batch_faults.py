"""Checks of a batch script as rows: what never ends, what ends the script, and what the job asks for."""

from __future__ import annotations

import re

from hotloop.judge.lint.checks import HIGH, LIKELY, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.formats.batch import OUTPUT, Batch
from hotloop.judge.lint.shell import ShellCommand

ENDLESS = re.compile(
    r"nvidia-smi\b.*\s(-l|-lms|--loop|--loop-ms)\b|nvidia-smi\s+(dmon|pmon)\b(?!.*\s-c)|dcgmi\s+dmon\b(?!.*\s-c)"
    r"|gpustat\b.*\s(-i|--interval|--watch)|(watch|htop|nvtop)\s|top\s(?!.*-n)|(vmstat|iostat|mpstat|sar|pidstat|dstat)\s+"
    r"(-\S+\s+)*\d+\s*$|tail\s+-\w*[fF]\b|tail\s+--follow|tensorboard\s|mlflow\s+(server|ui)|jupyter|redis-server"
    r"|python\S*\s+-m\s+(http\.server|visdom)|sleep\s+inf|vllm\s+serve|prometheus|node_exporter|nvitop|inotifywait\s+-m"
)
"""Programs that run until they are killed."""


def _is_endless(command: ShellCommand) -> bool:
    is_loop = "condition" in command.blocks and "loop" in command.blocks and command.name in ("true", ":", "sleep")
    return is_loop or ENDLESS.match(command.text) is not None


def _waits(batch: Batch) -> list[ReadPlace]:
    """Each ``wait`` without a process id after a program in the background that never ends and that nothing kills."""
    starts = [one for one in batch.commands if one.is_background and _is_endless(one)]
    waits = [one for one in batch.script.named("wait") if not one.arguments and "function" not in " ".join(one.blocks)]
    kills = [one.line for one in batch.script.named("kill", "pkill", "killall", "scancel")]
    held = [
        (one, [start for start in starts if start.line < one.line])
        for one in waits
        if not any(start.line < kill < one.line for start in starts for kill in kills)
    ]
    return [ReadPlace(one.line, before[-1].text[:60]) for one, before in held[:1] if before]


def _blocked(batch: Batch) -> list[ReadPlace]:
    """A program in the foreground that never ends and that a training follows."""
    last = max((run.line for run in batch.trainings), default=0)
    places = [one for one in batch.commands if _is_endless(one) and not one.is_background and one.line < last]
    ends = [one.line for one in batch.script.named("break", "exit", "return") if "loop" in one.blocks]
    return [
        ReadPlace(one.line, one.text[:60])
        for one in places
        if not re.search(r"function|\bif\b", " ".join(one.blocks)) and not any(one.line < end < last for end in ends)
    ]


ENDLESS_WAIT = table_rule(
    "endless-wait",
    "the script waits for a program that never ends",
    """## What it does
    Looks for a `wait` without a process id after a monitor or server in the background (`nvidia-smi -l`, `while true`,
    `tensorboard`), for such a program in the foreground before training, and for Ray daemons that outlive their step.

    ## Why it costs
    `wait` waits for all background processes: after training, the job holds its idle GPUs until the time limit, and
    nothing after the `wait` runs. Slurm kills a step's daemons when the step ends.

    ## How to recognize it
    The program runs until it is killed, and no `kill` comes before the `wait`.

    ## What to do
    Keep the process id of the training command and use `wait "$pid"`, or kill the monitor first; start Ray with
    `--block` and `&`.

    ## When it is wrong
    Ignore the finding if another program ends the monitor.
    """,
    reads="sbatch",
    about=lambda batch: [(batch,)] if batch.is_job else [],
    checks=(
        FieldCheck(
            at=_waits,
            severity=HIGH,
            message="wait also waits for {text!r}, which never ends: the job holds its GPUs until the time limit",
            advice='wait "$pid" for the training command only, or kill the monitor before it',
        ),
        FieldCheck(
            at=_blocked,
            severity=HIGH,
            message="{text!r} never ends and runs in the foreground: the training command is never reached",
            advice="end the line with &, and kill it after training",
        ),
        FieldCheck(
            at=lambda batch: (
                [
                    run
                    for run in batch.runs
                    if run.step == "srun"
                    and run.words[:2] == ("ray", "start")
                    and "--block" not in run.words
                    and not re.search(r"sleep|wait|tail|--block", run.command.text)
                ][:1]
                and [
                    ReadPlace(run.line, " ".join(run.words)[:40])
                    for run in batch.runs
                    if run.step == "srun" and run.words[:2] == ("ray", "start") and "--block" not in run.words
                ]
            ),
            severity=HIGH,
            message="ray start without --block returns, the step ends, and Slurm kills the Ray daemons that it started",
            advice="ray start --block, and & after the srun command",
        ),
    ),
)


def _failing(batch: Batch) -> list[ReadPlace]:
    """Assignments of the output of a search that finds nothing at the first start, where that ends the script."""
    is_piped = batch.is_set("pipefail")
    plain = [one for one in batch.commands if batch.is_set("e") and one.assignments and not one.words]
    exits = [one for one in plain if not (one.before or one.after or {"condition", "function"} & set(one.blocks))]
    found = [(one, word.text) for one in exits for _, word in one.assignments]
    return [
        ReadPlace(one.line, text[:60])
        for one, text in found
        if (match := _SEARCHES.match(text.strip('"')))
        and "||" not in text
        and (is_piped or "|" not in text)
        and ("*" in match[0] or match[1] == "grep")
    ]


_SEARCHES = re.compile(r"\$\(\s*(ls|grep)\b[^|)]*(ckpt|checkpoint|step|epoch|latest|last|resume|\.pt|\.pth|\*)[^|)]*")
_COUNTS = re.compile(r"(?m)^[ \t]*((?:let )?[(\"']*(\w+)\+\+[)\"']*)[ \t]*$")


def _sorted(batch: Batch) -> list[ShellCommand]:
    """Commands that take the last name of a list in alphabetical order as the newest checkpoint."""
    is_padded = re.search(
        r"(step|epoch|checkpoint|ckpt|iter)\w*[-_=]?0\d|%0\dd|:0\d+d?\}|zero[- ]?pad|zfill", batch.text
    )
    places = [one for one in batch.commands if _LISTS.search(one.text) and not is_padded]
    return [one for one in places if not _BY_TIME.search(one.text)][:1]


_LISTS = re.compile(
    r"\b(ls|find)\b[^|]*?(checkpoint|ckpt|step|epoch|global_step)s?[-_=]?\*[^|]*(\|\s*(sort|grep[^|]*)\s*)?\|\s*"
    r"(tail\s+(-n\s*|-)1|sort\s+-r\s*\|\s*head\s+(-n\s*|-)1)\b"
)
_BY_TIME = re.compile(r"\b(ls|find)\s[^|]*-\w*[tv]\b|\bls\s+-\w*[tv]|sort\s+[^|]*-\w*[VngkK]|printf|%T|maxdepth.*%[TC]")
STOPPED_SCRIPT = table_rule(
    "stopped-script",
    "the script ends early, or resumes from the wrong checkpoint",
    """## What it does
    Looks for commands that fail in a sound run while `set -e` is on (a search for checkpoints at the first start,
    `((i++))` at zero), for a `timeout` that is longer than the job, and for the newest checkpoint by name.

    ## Why it costs
    The job ends before training begins, its continuation is never submitted, or it goes back to an old checkpoint at
    each start: in alphabetical order, `step_95000` comes after `step_100000`.

    ## How to recognize it
    `set -e` (with `pipefail` for pipes) is on and no `||` follows; or `ls ... | tail -n 1` has no `-t`, `-v` or `sort
    -V`, and the names show no leading zeros.

    ## What to do
    Use `... || true`, `i=$((i + 1))`, and `ls -t | head -n 1` or `sort -V | tail -n 1`.

    ## When it is wrong
    Ignore the finding if the names have leading zeros, or the folder is never empty.
    """,
    reads="sbatch",
    about=lambda batch: [(batch,)],
    checks=(
        FieldCheck(
            at=_failing,
            severity=HIGH,
            message="{text} fails when nothing matches, as at the first start, and set -e ends the script there",
            advice="add || true inside the $( )",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda batch: [
                ReadPlace(batch.text.count("\n", 0, match.start(1)) + 1, match[1])
                for match in (_COUNTS.finditer(batch.text) if batch.is_set("e") else ())
                if [word.text for word in batch.script.assigned(match[2])][:1] == ["0"]
            ],
            severity=HIGH,
            message="{text} returns 1 while the count is 0: set -e ends the script there",
            advice="i=$((i + 1))",
        ),
        FieldCheck(
            at=_sorted,
            severity=HIGH,
            message=(
                "the newest checkpoint is chosen in alphabetical order: step_95000 comes after step_100000, and"
                " each start goes back to it"
            ),
            advice="ls -t | head -n 1, or sort -V | tail -n 1",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda batch: [
                ReadPlace(run.line, match[0])
                for run in batch.trainings
                if run.launch
                and batch.limit_s
                and (match := re.search(r"timeout (?:\S+ )*?(\d+)([smhd]?)$", " ".join(run.launch.prefixes)))
                and int(match[1]) * {"m": 60, "h": 3600, "d": 86400}.get(match[2], 1) >= batch.limit_s
            ],
            severity=HIGH,
            message=(
                "{text} ends no earlier than the job's time limit: Slurm kills the job first, and what follows "
                "the timeout never runs"
            ),
            advice="a timeout some minutes below --time",
        ),
    ),
)


_MODEL = r"(?:[ahbvl]\d{1,3}s?|rtx\w*|gh200|mi\d{3}x?|t4|p100|titan\w*|\d{4}ti|a\d{4})(?:[-_.]\w+)*"


def _features(batch: Batch, join: str) -> list[str]:
    """Names of GPU models that ``--constraint`` joins by an operator outside of brackets."""
    asked = batch.value("constraint").strip("\"'").lower()
    parts = re.split(re.escape(join), asked)
    return [part for part in parts if re.fullmatch(rf"(?:gpu[-_:]?)?{_MODEL}", part)] if "[" not in asked else []


def _option(batch: Batch, name: str) -> list[ReadPlace]:
    return [ReadPlace(one.line, one.value) for one in only(batch.option(name), batch.option(name))]


COSTLY_REQUEST = table_rule(
    "costly-request",
    "a job asks for hardware that it cannot get, does not use, or that differs between its nodes",
    """## What it does
    Looks for a `--constraint` that joins GPU models, and for `--exclusive` on nodes of which the job uses one GPU.

    ## Why it costs
    With `a100|h100`, Slurm decides for each node: the nodes differ, and each step waits for the slowest. With
    `a100&h100`, no node fits. An exclusive node leaves its other GPUs idle.

    ## How to recognize it
    The constraint has no square brackets and the job has several nodes; or the partition or a comment shows that the
    nodes have several GPUs.

    ## What to do
    Use `--constraint="[a100|h100]"`, and no `--exclusive` for a part of a node.

    ## When it is wrong
    Ignore the finding if the partition has only one of these models, or nodes of one GPU.
    """,
    reads="sbatch",
    about=lambda batch: [(batch,)] if batch.is_job else [],
    checks=(
        FieldCheck(
            at=lambda batch: _option(batch, "constraint") if batch.nodes > 1 and len(_features(batch, "|")) > 1 else [],
            severity=MEDIUM,
            message=(
                "--constraint={text} is decided for each node: nodes get different GPU models, and each step "
                "waits for the slowest"
            ),
            advice='square brackets ask for one feature for all nodes: --constraint="[a100|h100]"',
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda batch: _option(batch, "constraint") if len({*_features(batch, "&")}) > 1 else [],
            severity=HIGH,
            message=(
                "--constraint={text} asks each node for two GPU models at once: no node fits, and the job stays pending"
            ),
            advice='--constraint="[a100|h100]"',
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda batch: (
                _option(batch, "exclusive") and [ReadPlace(batch.line("exclusive"), f"{batch.gpus_per_node}")]
                if batch.gpus_per_node == 1
                and re.search(
                    r"(?i)dgx|hgx|sxm|nvl|[48]x?-?gpu|(?<!\d)[48]x[ahv]\d+",
                    f"{batch.value('partition')} {batch.value('constraint')}",
                )
                else []
            ),
            severity=HIGH,
            message="--exclusive takes the whole node, and the job uses {text} GPU of it: the others are idle",
            advice="remove --exclusive",
            confidence=LIKELY,
        ),
    ),
)


def _copies(batch: Batch) -> list[ReadPlace]:
    """Staging commands of a step that several tasks of a node run at once."""
    runs = [run for run in batch.runs if run.step == "srun" and batch.tasks_of(run) > 1]
    work = r"(rsync|cp|tar|unzip|unsquashfs|zstd|wget|curl|git|aws|gsutil|s5cmd|rclone)$"
    own = r"LOCALID|PROCID|flock|\bmkdir\b[^;&|]*\|\||-ne 0|-eq 0|if "
    return [
        ReadPlace(run.line, f"{run.words[0]} in {batch.tasks_of(run)} tasks")
        for run in runs
        if re.match(work, run.words[0]) and not re.search(own, run.command.text)
    ][:1]


def _empty(batch: Batch) -> list[ReadPlace]:
    """Variables of the batch shell in the text of another shell, which does not get them."""
    shells = [one for one in batch.commands if re.search(r"\b(ba|z|da)?sh\s+-\w*c\b|--wrap", one.text)]
    texts = [
        (word, word.text)
        for one in shells
        for word in one.words
        if word.quote == "'" or word.raw.startswith("--wrap='")
    ]
    own = {
        name
        for _, text in texts
        for name in re.findall(r"(?:^|[\s;(])(\w+)\+?=|\b(?:read|for)\s+(\w+)", text)
        for name in name
    }
    return [
        ReadPlace(word.line + text.count("\n", 0, match.start()), f"${match[1]}")
        for word, text in texts
        for match in re.finditer(r"(?<!\\)\$\{?(\w+)\}?(?![:\w]*[-=+?])", text)
        if match[1] in batch.own_variables - own
    ]


LOST_BY_TASKS = table_rule(
    "lost-by-tasks",
    "the tasks of a step repeat work, or do not get a variable",
    """## What it does
    Looks for copies that every task of a node makes, and for variables of the batch shell that another shell (`srun
    bash -c '...'`, `sbatch --wrap '...'`) expands although they are not exported.

    ## Why it costs
    Eight tasks copy the same files to the same folder of a node, at eight times the reads, and fail now and then on
    each other's files. A variable that is not exported is empty in the other shell.

    ## How to recognize it
    srun inherits the job's tasks per node, and nothing limits the copy to one of them; or the script sets the variable
    without `export`, and single quotes leave its expansion to the other shell.

    ## What to do
    Use `srun --ntasks-per-node=1 --ntasks=$SLURM_NNODES rsync ...`, and `export NAME` before srun.

    ## When it is wrong
    Ignore the finding if each task copies other files, or the caller exports the variable.
    """,
    reads="sbatch",
    about=lambda batch: [(batch,)],
    checks=(
        FieldCheck(
            at=_copies,
            severity=MEDIUM,
            message=(
                "{text} of each node at the same time: they read the same files several times and write to one folder"
            ),
            advice="srun --ntasks-per-node=1 --ntasks=$SLURM_NNODES",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=_empty,
            severity=HIGH,
            message="{text} is not exported: it is empty in the shell that expands it, within the single quotes",
            advice="export it, or pass it in the command",
        ),
    ),
)


def _submissions(batch: Batch) -> list[ShellCommand]:
    return [one for one in batch.commands if one.name == "sbatch" and one.arguments]


def _before(batch: Batch) -> list[ShellCommand]:
    """Submissions of the own script before training, which then run next to it."""
    last = max((run.line for run in batch.trainings), default=0)
    free = [
        one for one in batch.resubmits if not re.search(r"\s(-d\b|--dependency|--begin|-b\b|--hold|-H\b)", one.text)
    ]
    return [one for one in free if one.line < last and "function" not in " ".join(one.blocks) and not batch.traps]


CHAINED_JOBS = table_rule(
    "chained-jobs",
    "the parts of a chain of jobs run at the same time, or do not find each other's checkpoints",
    """## What it does
    Looks at jobs that submit their own continuation, and at `--dependency=singleton` with names that differ.

    ## Why it costs
    Two parts that run at once write the same checkpoints. A run folder that contains the job's id is empty for the next
    part: each part begins at step 0.

    ## How to recognize it
    `sbatch` of the own script before training has no `--dependency`; the output folder contains `SLURM_JOB_ID`; or a
    loop gives each job another name, so that `singleton` matches none.

    ## What to do
    Use `--dependency=afterany:$SLURM_JOB_ID`, a run folder without the job's id, and one job name for `singleton`.

    ## When it is wrong
    Ignore the finding if the parts write to folders of their own.
    """,
    reads="sbatch",
    about=lambda batch: [(batch,)] if "sbatch" in batch.text else [],
    checks=(
        FieldCheck(
            at=_before,
            severity=HIGH,
            message=(
                "the next part is submitted before training without a dependency: both run at once, and write "
                "the same checkpoints"
            ),
            advice="sbatch --dependency=afterany:$SLURM_JOB_ID",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda batch: [
                one
                for one in _submissions(batch)
                if "singleton" in one.text
                and "loop" in one.blocks
                and (name := re.search(r"(?:--job-name|\s-J)[= ]\s*[\"']?(\S*\$\S*)", one.text))
                and batch.varies(name[1])
            ],
            severity=HIGH,
            message="singleton waits only for jobs of the same name, and each job here has another: all run at once",
            advice="one --job-name for all parts, or --dependency=afterany:$previous",
        ),
        FieldCheck(
            at=lambda batch: [
                ReadPlace(batch.line_of(run, pair[0]), pair[1])
                for run in (batch.trainings if batch.resubmits else ())
                if (pair := run.argument(OUTPUT)) and re.search("resum|latest|last", run.inner.text)
                if any(re.search(r"SLURM_JOB_?ID", part) for part in batch.trace(pair[1]))
            ],
            severity=HIGH,
            message="{text} contains the job's id: the next job of the chain has another, and begins at step 0",
            advice="a run folder without SLURM_JOB_ID",
            confidence=LIKELY,
        ),
    ),
)
