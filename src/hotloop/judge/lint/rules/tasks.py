"""Checks of the commands that a job starts on its pods or machines: Kubernetes, SkyPilot and dstack alike."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.judge.lint.checks import HIGH, LIKELY, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.launch_lines import LaunchLine
from hotloop.judge.lint.shell import ShellCommand
from hotloop.judge.lint.tasks import TRAINS, Task

JOBS = "kubernetes skypilot dstack"
LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|::1)?(:\d+)?$")
KNOWS_NODES = re.compile(
    r"NODE_?RANK|NODE_?S?_IPS?\b|NODES_NUM|NUM_NODES|NNODES|MASTER_|WORLD_SIZE|\bRANK\b|INDEX|HOSTFILE|(?i:\bray\b|mpi|hostname)"
)
STARTS_ITSELF = re.compile(
    r"(?i)gpu|devi|nproc|num_proc|world|tensor|parallel|\btp\b|strategy|ddp|fsdp|spawn|conf|\.ya?ml|\.json|accelerat|multi|hydra"
)
"""Texts that show that a script started with python may still use several GPUs."""


def _meets(task: Task, launch: LaunchLine) -> bool:
    """Whether the nodes should meet: the launcher gets their number, and several run it."""
    nodes = launch.options.get("nnodes", "1")
    return (
        launch.launcher in ("torchrun", "accelerate")
        and "config-file" not in launch.options
        and task.nodes != 1
        and nodes != "1"
        and not launch.is_standalone
        and "PET_" not in task.given
    )


def _is_first_only(task: Task, command: ShellCommand) -> bool:
    """Whether only the node of rank 0 runs a command."""
    conditions = " ".join(one.text for one in task.script.commands if "condition" in one.blocks)
    is_asked = re.search(r"(RANK|INDEX)\}?\"?'? *(==|=|-eq) *[\"']?0", conditions)
    return "if" in command.blocks and is_asked is not None and not re.search(r"(?i)\bray\b|hostfile|mpirun", task.text)


LONE_NODES = table_rule(
    "lone-nodes",
    "each node trains alone, or waits for nodes that never join",
    """## What it does
    Compares `--nnodes`, `--node-rank`, `--master-addr` and `--standalone` of torchrun, accelerate and deepspeed with
    the number of pods (`parallelism`, `replicas`) or nodes (`num_nodes`, `nodes`) that run the command.

    ## Why it costs
    Without `--nnodes`, every node trains its own model and writes to the same place; with a wrong number, node rank or
    address, the rendezvous waits until its timeout. You pay for all GPUs, but only one node's work is kept, or none.

    ## How to recognize it
    More than one node runs the command, and its options are literal or missing. The finding is `likely` for a plain
    `python` command whose script does not mention nodes.

    ## What to do
    Set `--nnodes`, `--node-rank` and `--master-addr` (or `--rdzv-endpoint`) from the scheduler's variables.

    ## When it is wrong
    Ignore the finding if each node should work alone, for example on one shard of a search.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: [(task, *task.training)] if task.training and not task.is_wired else [],
    checks=(
        FieldCheck(
            at=lambda task, command, launch: only(
                command, task.nodes > 1 and len(task.launches) == 1 and _is_first_only(task, command)
            ),
            severity=HIGH,
            message=(
                "only the node of rank 0 starts {2.script}: you pay for the rest of the {0.nodes} nodes, which are idle"
            ),
            advice="start it on each node, with its rank",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                launch.launcher == "python"
                and task.nodes > 1
                and task.gpus
                and task.is_training
                and not KNOWS_NODES.search(task.text),
            ),
            severity=HIGH,
            message="each of {0.nodes} nodes trains alone: {2.script} starts without a node rank or an address",
            advice="start it with torchrun and --nnodes, --node-rank and --master-addr",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, command, launch: only(command, task.nodes > 1 and launch.is_standalone),
            severity=HIGH,
            message="--standalone on {0.nodes} nodes: each node trains alone",
            advice="give --nnodes={0.nodes} and --rdzv-endpoint or --node-rank and --master-addr",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                task.nodes > 1
                and launch.launcher in ("torchrun", "accelerate")
                and "config-file" not in launch.options
                and not launch.is_standalone
                and "nnodes" not in launch.options
                and not re.search(r"PET_NNODES|ACCELERATE_CONFIG", task.given),
            ),
            severity=HIGH,
            message="{2.launcher} without --nnodes: each of {0.nodes} nodes trains alone",
            advice="give --nnodes={0.nodes}, --node-rank and --master-addr",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at("--(nnodes|num[-_]machines)"),
                launch.nodes and task.nodes and launch.nodes != task.nodes and launch.launcher != "deepspeed",
            ),
            severity=HIGH,
            message=(
                "--nnodes={2.nodes}, but {0.nodes} nodes (pods) run it: they wait for nodes that "
                "never join, or some are left out"
            ),
            advice="--nnodes={0.nodes}",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at("--(node|machine)[-_]rank"),
                _meets(task, launch)
                and launch.options.get("node-rank", "").isdecimal()
                and not re.search(
                    r"RANK|INDEX",
                    "".join(
                        word.text for one in task.script.commands if "condition" in one.blocks for word in one.words
                    ),
                ),
            ),
            severity=HIGH,
            message="--node-rank={2.options[node-rank]} on each of {0.nodes} nodes: they all claim the same rank",
            advice="take it from the node's index: $SKYPILOT_NODE_RANK, $DSTACK_NODE_RANK, $(JOB_COMPLETION_INDEX)",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                _meets(task, launch) and not {"node-rank", "rdzv-backend", "rdzv-endpoint"} & set(launch.options),
            ),
            severity=HIGH,
            message="no --node-rank on {0.nodes} nodes: they are all rank 0",
            advice="take it from the node's index: $SKYPILOT_NODE_RANK, $DSTACK_NODE_RANK, $(JOB_COMPLETION_INDEX)",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command, _meets(task, launch) and LOCAL.match(launch.address) and "MASTER_ADDR" not in task.given
            ),
            severity=HIGH,
            message=(
                "the address of the rendezvous (--master-addr, --rdzv-endpoint) is missing or local: each of {0.nodes} "
                "nodes waits for the others on itself"
            ),
            advice="give the address of the first node",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                _meets(task, launch)
                and re.search(r"\$\(?\{?(hostname|HOSTNAME|POD_IP|POD_NAME)|tail -n? ?-?1\b", launch.address),
            ),
            severity=HIGH,
            message="{2.address} is a different address on each node, or not rank 0's: they do not meet",
            advice="give the address of the first node",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command, _meets(task, launch) and re.match(r"\$\{?(SKYPILOT_NODE_IPS|DSTACK_NODES_IPS)", launch.address)
            ),
            severity=HIGH,
            message="{2.address} is the list of all addresses, not a single address",
            advice='take its first line: $(echo "$SKYPILOT_NODE_IPS" | head -n1)',
        ),
    ),
)


def _visible(task: Task, launch: LaunchLine) -> int | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible; None without it."""
    shown = launch.variables.get("CUDA_VISIBLE_DEVICES", task.values.get("CUDA_VISIBLE_DEVICES", "$"))
    return None if "$" in shown else len([one for one in shown.split(",") if one.strip() not in ("", "-1")])


_SPLIT, _COUNT = "--(tensor|tp)", "--(nproc|num[-_](processes|gpus))"
SPREADS = re.compile(r"--?nnodes|dist-init-addr|\bray|node[-_]rank|headless|multi[-_]?node")
"""Texts of a server that splits its model over several pods."""
_TOTALS = r"DSTACK_GPUS_NUM|WORLD_SIZE|TOTAL_GPUS|NUM_GPUS_TOTAL"
SERVER = LaunchLine(launcher="", script="", is_module=False, arguments=())
"""The name for a program that is not a Python script."""
PROCESSES_AND_GPUS = table_rule(
    "processes-and-gpus",
    "the launcher starts more or fewer processes than the job has GPUs",
    """## What it does
    Compares the processes of torchrun, accelerate, deepspeed or a plain `python`, and `CUDA_VISIBLE_DEVICES`, with the
    GPUs that the pod or machine asks for.

    ## Why it costs
    More processes than GPUs fail with "invalid device ordinal"; fewer processes leave GPUs idle that you pay for.

    ## How to recognize it
    Both numbers are literal. The finding is `likely` for a plain `python` command on several GPUs, because its script
    may start processes itself.

    ## What to do
    Set `--nproc-per-node` to the number of GPUs, or ask for fewer GPUs.

    ## When it is wrong
    Ignore the finding if one process drives several GPUs, as model-parallel inference does.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: (
        [(task, *(task.training or (task.script.commands[0], SERVER)))]
        if task.gpus and (task.tensor_parallel or (task.training and (task.is_training or task.processes is not None)))
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at(_SPLIT), task.tensor_parallel > task.gpus and not SPREADS.search(task.text)
            ),
            severity=HIGH,
            message=("--tensor-parallel-size exceeds the {0.gpus} requested GPUs: the server fails when it starts"),
            advice="ask for that many GPUs",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at(_SPLIT),
                0 < task.tensor_parallel < task.gpus
                and not re.search(r"pipeline|data[-_]parallel|--[pd]p\b|expert|replica", task.text),
            ),
            severity=HIGH,
            message="--tensor-parallel-size {0.tensor_parallel} on {0.gpus} GPUs: the server leaves the others idle",
            advice="--tensor-parallel-size {0.gpus}, or ask for fewer GPUs",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at(_COUNT),
                task.nodes > 1
                and launch.launcher == "torchrun"
                and re.search(_TOTALS, launch.options.get("nproc-per-node", "")),
            ),
            severity=HIGH,
            message=(
                "{2.options[nproc-per-node]} counts the GPUs of all {0.nodes} nodes: each node starts too many "
                "processes, and those without a GPU fail (invalid device ordinal)"
            ),
            advice="$DSTACK_GPUS_PER_NODE, $SKYPILOT_NUM_GPUS_PER_NODE",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at(_COUNT),
                task.nodes > 1
                and launch.launcher == "accelerate"
                and re.search(r"GPUS_PER_NODE", launch.options.get("num-processes", "")),
            ),
            severity=HIGH,
            message=(
                "--num_processes {2.options[num-processes]} counts the GPUs of one node, but accelerate takes the "
                "total of all {0.nodes} nodes: the others stay idle, or it is refused"
            ),
            advice="--num_processes $((NODES * GPUS_PER_NODE))",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(command, (_visible(task, launch) or 99) < task.gpus),
            severity=HIGH,
            message="CUDA_VISIBLE_DEVICES hides some of {0.gpus} GPUs: they stay idle",
            advice="remove CUDA_VISIBLE_DEVICES",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(command.at(_COUNT), (task.processes or 0) > task.gpus),
            severity=HIGH,
            message="{0.processes} processes and {0.gpus} GPUs: those without a GPU fail (invalid device ordinal)",
            advice="--nproc-per-node={0.gpus}, or ask for {0.processes} GPUs",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(command.at(_COUNT), 0 < (task.processes or 0) <= task.gpus / 2),
            severity=HIGH,
            message=(
                "{0.processes} of {0.gpus} GPUs get a process (--nproc-per-node, --num_processes): the others stay idle"
            ),
            advice="--nproc-per-node={0.gpus}, or ask for fewer GPUs",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command.at(_COUNT), task.gpus / 2 < (task.processes or 0) < task.gpus
            ),
            severity=MEDIUM,
            message=(
                "{0.processes} of {0.gpus} GPUs get a process (--nproc-per-node, --num_processes): the others stay idle"
            ),
            advice="--nproc-per-node={0.gpus}, or ask for fewer GPUs",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                launch.launcher == "python"
                and task.gpus > 1
                and TRAINS.search(launch.script)
                and not STARTS_ITSELF.search(
                    f"{' '.join(launch.arguments)} {launch.script} {task.given} {launch.step}"
                ),
            ),
            severity=HIGH,
            message="one python process for {0.gpus} GPUs: the others stay idle",
            advice="torchrun --nproc-per-node={0.gpus}",
            confidence=LIKELY,
        ),
    ),
)


FEW_CPUS = table_rule(
    "few-cpus",
    "ranks and loader workers share too few CPUs",
    """## What it does
    Compares the CPU limit with the GPUs and with the loader workers that an option requests.

    ## Why it costs
    Each rank needs a CPU for its Python process and more CPUs for its workers. With too few CPUs, batches arrive late,
    and the GPUs wait for tens of percent of each step.

    ## How to recognize it
    There are fewer CPUs than GPUs, or fewer than half as many CPUs as ranks and workers can keep busy.

    ## What to do
    Ask for as many CPUs per GPU as the node has (12 to 24), or use fewer workers.

    ## When it is wrong
    Ignore the finding if the data is already on the GPU and the loader has nothing to do.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: (
        [(task,)] if task.cpus is not None and task.gpus and (task.is_training or task.workers) else []
    ),
    checks=(
        FieldCheck(
            at=lambda task: only(
                ReadPlace(task.lines["cpus"], f"{task.cpus:g}"),
                task.cpus < max(task.gpus, task.gpus * (1 + task.workers) / 2),
            ),
            severity=MEDIUM,
            message=(
                "{text} CPUs for {0.gpus} GPUs and {0.workers} loader workers per rank: the ranks wait for their "
                "batches"
            ),
            advice="ask for 8 or more CPUs per GPU, or use fewer workers",
        ),
    ),
)


SWALLOWED_SIGNAL = table_rule(
    "swallowed-signal",
    "a shell keeps the signal from the training process",
    """## What it does
    Looks for a training command that a shell starts without `exec`, in a pipe or with commands after it, if the file
    shows that training should save when it is stopped (a grace period, `--save-on-sigterm`).

    ## Why it costs
    The shell is process 1: it gets SIGTERM and does not pass it on. The training process never gets the signal and is
    killed when the grace period ends; its work since the last checkpoint is lost.

    ## How to recognize it
    The container runs `sh -c` without `exec`, or `bash -c` with a pipe or several commands. Since version 5.1, bash
    replaces itself with a plain last command, so the finding is `likely` for several commands.

    ## What to do
    Put `exec torchrun ...` last; for a log, put `exec > >(tee -a LOG) 2>&1` before it, or use a trap that waits.

    ## When it is wrong
    Ignore the finding if the image has an init program that signals the entire process group (`tini -g`), or if the pod
    shares its process namespace.
    """,
    reads="kubernetes dstack",
    each="tasks",
    about=lambda file, task: (
        [(task, *task.training)]
        if task.shell
        and task.is_warned
        and task.training
        and not task.script.named("trap", "tini", "dumb-init")
        and "exec" not in (task.training[0].name, *task.training[1].prefixes)
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda task, command, launch: only(command, command.before in ("|", "|&")),
            severity=MEDIUM,
            message=(
                "the pipe keeps SIGTERM from {2.script}: the shell is process 1 and keeps the signal, so nothing is "
                "saved before the kill"
            ),
            advice="exec > >(tee -a LOG) 2>&1, then exec the training command",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command, "|" not in command.before and (task.shell == "sh" or len(task.commands) > 1)
            ),
            severity=MEDIUM,
            message=(
                "{0.shell} keeps SIGTERM from {2.script}, which starts without exec: the shell is process 1 and "
                "does not pass signals on, so nothing is saved before the kill"
            ),
            advice="exec the training command as the last command",
            confidence=LIKELY,
        ),
    ),
)


def _after(task: Task, command: ShellCommand) -> list[ShellCommand]:
    at = task.script.commands.index(command)
    return [
        one for one in task.script.commands[at + 1 :] if not any(block.startswith("function") for block in one.blocks)
    ]


_HOLDS = re.compile(r"sleep\s+(inf|\d{4,}|\d+[hd])|tail\s+-f\s+/dev/null")


LOST_EXIT_CODE = table_rule(
    "lost-task-exit-code",
    "a failed training run counts as a success or goes unnoticed",
    """## What it does
    Looks at how the script handles the exit code of the training command: finds pipes without `pipefail`, `|| true`,
    `&` without `wait`, and `sleep infinity` after the command.

    ## Why it costs
    A failed run counts as succeeded: nothing restarts it, and nobody notices. A training process in the background is
    killed when the script ends; if a sleep follows the training command, the job holds its GPUs forever.

    ## How to recognize it
    The rule looks at the operator between the training command and the next command, and at `set -o pipefail` before
    them.

    ## What to do
    Use `set -o pipefail` and `wait` at the end, and no `|| true` or sleep after the training command.

    ## When it is wrong
    Ignore the finding if somebody reads the log, or keeps the pod in order to inspect it.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: [(task, *task.training)] if task.shell and task.is_training and task.training else [],
    checks=(
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                command.before in ("|", "|&") and not re.search("pipefail|PIPESTATUS", task.text),
            ),
            severity=MEDIUM,
            message=("the pipe has the exit code of its last command: if {2.script} fails, the job counts as done"),
            advice="set -o pipefail before it",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                command.before == "||"
                and re.match(r"true|:|echo|exit 0", (_after(task, command) or [command])[0].text),
            ),
            severity=MEDIUM,
            message=(
                "|| hides the exit code of {2.script}: if it fails, the job counts as done and nothing starts it again"
            ),
            advice="let it fail",
        ),
        FieldCheck(
            at=lambda task, command, launch: [one for one in _after(task, command) if _HOLDS.match(one.text)],
            severity=HIGH,
            message="{text} after {2.script}: the job holds its GPUs forever after training has ended",
            advice="remove it",
        ),
        FieldCheck(
            at=lambda task, command, launch: only(
                command,
                command.is_background
                and not any(one.name in ("wait", "tail", "sleep", "fg") for one in _after(task, command))
                and all(one.is_background or one.name in ("echo", "jobs", "disown") for one in _after(task, command)),
            ),
            severity=HIGH,
            message=(
                "{2.script} runs in the background and the script ends: it is killed at once, and the job counts "
                "as done"
            ),
            advice="remove the &, or end with wait",
        ),
    ),
)


_HAS_DASH = re.compile(
    r"(?i)^(?!.*(alpine|ubi\d|rocky|centos|amazon)).*(ubuntu|debian|python|torch|cuda|nvcr|tensorflow|vllm|rocm)"
)
"""Images of Debian or Ubuntu."""
BASH_IN_SH = table_rule(
    "bash-in-sh",
    "sh runs syntax that only bash knows",
    """## What it does
    Looks for `source`, `[[`, `set -o pipefail` and `<( )` in a script that `sh -c` runs.

    ## Why it costs
    In Debian's and Ubuntu's images, `sh` is dash, which reports "source: not found" or "Illegal option -o pipefail".
    The command is skipped, or the container ends before training begins.

    ## How to recognize it
    The command is `sh -c` or `/bin/sh -c`, and the image's name shows that it is Debian or Ubuntu.

    ## What to do
    Use `bash -c`, or `. FILE` instead of source.

    ## When it is wrong
    Ignore the finding if sh is bash in the image, as in Red Hat's images, or if busybox supports the syntax.
    """,
    reads="kubernetes dstack",
    each="tasks",
    about=lambda file, task: [(task,)] if task.shell == "sh" and _HAS_DASH.search(task.image) else [],
    checks=(
        FieldCheck(
            at=lambda task: [
                one
                for one in task.script.commands
                if one.name in ("source", "[[", "pushd", "shopt")
                or "<(" in one.text
                or (one.name == "set" and "pipefail" in one.text)
            ][:1],  # alpine, Red Hat and images of unknown systems: their sh may know it
            severity=HIGH,
            message="sh is dash in most images and does not support bash's {text}: the command fails",
            advice="start the script with bash -c",
            confidence=LIKELY,
        ),
    ),
)


_UPLOADS = re.compile(r"\b(aws s3|gsutil|gcloud storage|rclone|azcopy|(huggingface-cli|hf) upload|push_to_hub|s5cmd)\b")


LOST_CHECKPOINTS = table_rule(
    "lost-checkpoints",
    "checkpoints are written to a place that does not last",
    """## What it does
    Traces the folders that the training command gets for checkpoints and output (`--ckpt`, `--output-dir`, `CKPT_DIR`)
    to their volume, bucket or disk.

    ## Why it costs
    Files on the container's own disk, in an emptyDir or in a bucket that is mounted in `COPY` mode disappear with the
    pod or machine: after an eviction, training starts over, and after the end of the run, the model is gone. On a
    read-only mount, the first save fails.

    ## How to recognize it
    The rule looks for the longest mount path that contains the folder; there may be none.

    ## What to do
    Mount a claim or a `MOUNT` or `MOUNT_CACHED` bucket at that folder, or use a remote path (`s3://`, `gs://`).

    ## When it is wrong
    Ignore the finding if the program uploads its files, or you do not need them.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: [(task,)] if task.is_training and not _UPLOADS.search(task.text) else [],
    checks=(
        FieldCheck(
            at=lambda task: task.losses,
            severity=HIGH,
            message="checkpoints and output do not last in {text}",
            advice="mount a claim, or a bucket in mode MOUNT or MOUNT_CACHED, at that folder, or save to a bucket",
            confidence=LIKELY,
        ),
    ),
)


_SAVES = re.compile(r"(?i)ckpt|checkpoint|save|output|resume|snapshot|persist|\.sh\b|\.ya?ml\b|\.json\b")
_RESUMES = re.compile(r"(?i)resume|restart|restore|load|latest|continue|auto|\.sh\b|\.ya?ml\b|\.json\b|recover")


SPOT_WITHOUT_RETRY = table_rule(
    "spot-without-retry",
    "training on spot nodes is not restarted, or starts from scratch",
    """## What it does
    Looks for spot or preemptible machines with retries turned off, and for training commands on such machines that save
    nothing or never resume.

    ## Why it costs
    Spot machines are taken away, often several times a day. Without a retry, training ends at that point; without a
    checkpoint, it starts from scratch.

    ## How to recognize it
    The rule recognizes spot machines by `use_spot`, `spot_policy`, node selectors and tolerations for spot pools;
    missing retries by `backoffLimit: 0` or the absence of `retry`; and saving by options and variables that name a
    checkpoint or `resume`.

    ## What to do
    Set the retry (`backoffLimit`, `retry`, `sky jobs launch`), save often and resume from the newest checkpoint.

    ## When it is wrong
    Ignore the finding if the script saves and resumes without an option.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: (
        [(task, f"{task.text} {' '.join(mount.path for mount in task.mounts)}")]
        if task.spot_line is not None and (task.is_training or task.gpus)
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda task, shown: only(ReadPlace(task.spot_line, ""), not task.retries),
            severity=HIGH,
            message=(
                "the first interruption of a spot machine ends training: no retry (backoffLimit, retry, "
                "job_recovery) starts it again"
            ),
            advice="allow retries: backoffLimit, retry with on_events: [interruption], sky jobs launch",
        ),
        FieldCheck(
            at=lambda task, shown: only(
                ReadPlace(task.spot_line, ""), task.is_training and task.retries and not _SAVES.search(shown)
            ),
            severity=HIGH,
            message="on spot machines without a checkpoint: each interruption restarts training from scratch",
            advice="save to a volume or bucket, and resume from the newest checkpoint",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task, shown: only(
                ReadPlace(task.spot_line, ""),
                task.is_training
                and task.retries
                and task.options
                and _SAVES.search(shown)
                and not _RESUMES.search(shown),
            ),
            severity=MEDIUM,
            message=(
                "on spot machines, training saves checkpoints but never resumes: each interruption restarts it from "
                "scratch"
            ),
            advice="--resume from the newest checkpoint",
            confidence=LIKELY,
        ),
    ),
)


_LONG = r"train|takes|runs?\b|epoch|hours|days|max[-_.]?(time|hours)|duration"


EARLY_DEADLINE = table_rule(
    "early-deadline",
    "a time limit ends training before it is done",
    """## What it does
    Compares `activeDeadlineSeconds` or `max_duration` with the duration that a comment or option in the file states, or
    with one hour for a training job on GPUs.

    ## Why it costs
    The limit covers all retries from the start. When it is reached, the pods are killed and not restarted.

    ## How to recognize it
    The limit is a literal value. The finding is `likely`, because only you know how long training takes.

    ## What to do
    Set the limit to more than the longest run that you expect, retries included.

    ## When it is wrong
    Ignore the finding if the job is a short test, or the limit should stop it.
    """,
    reads=JOBS,
    each="tasks",
    about=lambda file, task: [(task,)] if task.limit_s is not None and task.is_training else [],
    checks=(
        FieldCheck(
            at=lambda task: only(
                ReadPlace(task.lines["limit"], f"{task.limit_s:g}"), task.limit_s < task.stated_s(_LONG)
            ),
            severity=HIGH,
            message="killed after {text} s, retries included, but the file says that the run takes longer",
            advice="raise the limit above the longest run, or remove it",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda task: only(
                ReadPlace(task.lines["limit"], f"{task.limit_s:g}"),
                task.limit_s < 3600 and not task.stated_s(_LONG) and task.gpus,
            ),
            severity=MEDIUM,
            message="killed after {text} s, retries included: this is short for a training job",
            advice="raise the limit above the longest run, or remove it",
            confidence=LIKELY,
        ),
    ),
)


_TRUE = r"(?i)(1|true|yes|on)$"
_RANK = "every node claims the same rank"
LEFT_OVER = (
    ("CUDA_LAUNCH_BLOCKING", _TRUE, MEDIUM, 1, "each kernel waits for the last one: the GPU idles between launches"),
    ("NCCL_SOCKET_IFNAME|GLOO_SOCKET_IFNAME", r"lo$", HIGH, 2, "the loopback interface does not reach other nodes"),
    ("NCCL_IB_DISABLE", r"1$", MEDIUM, 2, "NCCL does not use InfiniBand or RoCE: it reduces gradients over TCP"),
    ("NCCL_NET", r"(?i)socket$", MEDIUM, 2, "NCCL reduces gradients over TCP, not over the fast network"),
    ("NCCL_P2P_DISABLE", r"1$", MEDIUM, -2, "GPUs of a node exchange gradients through the host, not NVLink"),
    ("NCCL_SHM_DISABLE", r"1$", MEDIUM, -2, "ranks of a node exchange through sockets, not shared memory"),
    ("NCCL_P2P_LEVEL", r"(?i)(LOC|0)$", MEDIUM, -2, "GPUs of a node exchange gradients through the host, not NVLink"),
    ("NCCL_DEBUG", r"(?i)trace$", MEDIUM, 1, "each NCCL call is logged"),
    ("TORCH_DISTRIBUTED_DEBUG", r"(?i)detail$", MEDIUM, 1, "every collective is first checked on all ranks"),
    (
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        _TRUE,
        HIGH,
        1,
        "each tensor calls cudaMalloc and cudaFree, which wait for the GPU",
    ),
    ("NVIDIA_TF32_OVERRIDE", r"0$", MEDIUM, 1, "TF32 is off: fp32 matmuls run at a fraction of their speed"),
    ("TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE", _TRUE, MEDIUM, 1, "torch.compile does nothing"),
    ("CUDA_VISIBLE_DEVICES", r"(-1)?$", HIGH, 1, "no GPU is visible: training runs on the CPU or fails"),
    ("NVIDIA_VISIBLE_DEVICES", r"(?i)(none|void)?$", HIGH, 1, "the container gets no GPU"),
    ("MASTER_ADDR", LOCAL.pattern, HIGH, 2, "each node waits for the others on itself"),
    ("RANK|NODE_RANK|PET_NODE_RANK", r"\d+$", HIGH, 2, _RANK),
)
"""Variables, the faulty value, severity, the least nodes where it matters (negative: GPUs of a node), and its
effect."""


@lint_rule("left-over-variable", "a variable slows down training or keeps its nodes apart", reads=JOBS, each="tasks")
def left_over_variable(file: object, task: Task) -> Iterator[LintFinding]:
    """## What it does
    Looks for variables that are left over from debugging or from other machines: `CUDA_LAUNCH_BLOCKING`,
    `NCCL_IB_DISABLE`, `NCCL_P2P_DISABLE`, `NCCL_SOCKET_IFNAME=lo`, `TORCH_DISTRIBUTED_DEBUG=DETAIL`, a fixed `RANK`, a
    local `MASTER_ADDR`.

    ## Why it costs
    These variables affect every step: kernels run one after the other, gradients take a slow path, or the nodes never
    connect to each other.

    ## How to recognize it
    The variable has such a value in the file or is exported by the script in the file. Network variables count only
    with several nodes or GPUs.

    ## What to do
    Remove the variable. Set such variables by hand in the run that you debug.

    ## When it is wrong
    Ignore the finding if the machine needs the variable because it has no InfiniBand, or because its GPUs cannot reach
    each other.
    """
    for variable in task.assigned if task.gpus or task.is_training else ():
        for names, faulty, severity, least, effect in LEFT_OVER:
            matters = (
                task.gpus >= -least if least < 0 else task.nodes >= least and not (task.is_wired and effect == _RANK)
            )
            if (
                matters
                and re.fullmatch(names, variable.name)
                and variable.value is not None
                and re.match(faulty, variable.value)
            ):
                yield LintFinding(
                    severity=severity,
                    line=variable.line,
                    message=f"{variable.name}={variable.value}: {effect}",
                    advice=f"remove {variable.name}",
                    confidence=LIKELY if least != 1 else Confidence.CERTAIN,
                )


_SECRET = re.compile(r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$")
_PLACEHOLDER = re.compile(
    r"(?i)^\W|[<>{}$ ]|your|change|example|replace|placeholder|todo|xxx|\*\*|\.\.\.|dummy|none|null|empty|fake|test"
    r"|_here|^(minio|postgres|mysql|admin|root|guest|super|password)|(?-i:KEY|TOKEN|SECRET)$|^(token|secret|password|key|true|false)$|my[-_]|/|insert"
)


PLAIN_SECRET = table_rule(
    "plain-secret",
    "the file contains a secret in plain text",
    """## What it does
    Looks for variables that are named like a secret and have a literal value.

    ## Why it costs
    Anyone who reads the repository, the object or the run's log has the secret. Once it is shared, it must be revoked.

    ## How to recognize it
    The name ends in TOKEN, SECRET, PASSWORD or KEY, and the value is not a placeholder.

    ## What to do
    Use `valueFrom: secretKeyRef`, SkyPilot's `secrets:`, or in dstack a bare name, which takes the value from your
    shell.

    ## When it is wrong
    Ignore the finding if the value is public, such as a key for a local test.
    """,
    reads="kubernetes skypilot dstack",
    each="tasks",
    checks=(
        FieldCheck(
            at=lambda task: [
                ReadPlace(variable.line, variable.name)
                for variable in task.assigned
                if len(variable.value or "") >= 8
                and _SECRET.search(variable.name)
                and not _PLACEHOLDER.search(variable.value or "")
            ],
            severity=HIGH,
            message="{text} is in plain text: anyone who reads the file or the object has this secret",
            advice="take it from a secret (secretKeyRef, secrets, a bare name), and revoke this value",
            confidence=LIKELY,
        ),
    ),
)
