"""Checks of what a batch script starts: processes against nodes, GPUs and tasks, rendezvous, and job arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.core.torchrun_options import LAYOUT
from hotloop.judge.lint.formats.batch import CONTAINED, OUTPUT, TRAINS, Batch, StartedProgram, compute

_RANK = re.compile(r"(?<!\\)\$\{?(SLURM_(?:PROCID|LOCALID|NODEID))\b")


_USES_RANK = re.compile(
    r"(?i)(rank|(proc|local|node)_?id|gpu|device|index)\w*[\"']?[= ]+[\"']?[^\s=]{0,40}\$\{?SLURM_(PROC|LOCAL|NODE)ID"
)
"""A rank's variable under a name or option of a rank or device; in a path or a name, it chooses no rank."""
_SHOWS = ("echo", "printf", "[", "[[", "test", "hostname")


@lint_rule("rank-of-batch-shell", "a rank is read in the batch shell, where it is always 0", reads="sbatch")
def rank_of_batch_shell(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `$SLURM_PROCID`, `$SLURM_LOCALID` and `$SLURM_NODEID` where the batch shell itself expands them.

    ## Why it costs
    The batch shell runs once, and all three variables are 0 there. Either every task gets rank 0 and the rendezvous
    never completes, or all processes use GPU 0.

    ## How to recognize it
    In a job with several tasks or nodes, the variable is assigned to a name of a rank or device, or passed as such an
    option, and is neither in single quotes nor escaped. Unquoted heredocs that write a script count too.

    ## What to do
    Use `srun bash -c 'RANK=$SLURM_PROCID python train.py'`, or read SLURM_PROCID in Python.

    ## When it is wrong
    Ignore the finding if the value is only printed.
    """
    tasks = max(
        [batch.tasks_per_node * batch.nodes, *(batch.tasks_of(run) * batch.nodes_of(run) for run in batch.runs)]
    )
    codes = [code for run in batch.trainings if (code := batch.read_script(run))]
    own_ranks = " ".join(codes) if codes and all("SLURM_PROCID" in code for code in codes) else ""
    is_dynamic = re.search(r"rdzv[-_]backend[= ]\s*[\"']?c10d", batch.text)
    for command in batch.commands if batch.is_job and max(tasks, batch.nodes) > 1 and "SLURM_" in batch.text else ():
        written = [word.raw for _, word in command.assignments if not word.is_literal]
        written += [word.raw for word in command.words if not word.is_literal]
        written += [command.heredoc] if command.heredoc and not command.is_quoted_heredoc else []
        used = _USES_RANK.search(command.text + (command.heredoc or ""))
        name = next((name for name, word in command.assignments if _RANK.search(word.raw)), "")
        used = None if name and own_ranks and not re.search(rf"\b{name}\b", own_ranks) else used
        match = next((match for text in written if (match := _RANK.search(text))), None) if used else None
        at = command.at(f".*{re.escape(match[0])}") if match else command
        is_shown = command.name in _SHOWS or {"if", "condition"} & set(command.blocks)
        is_ignored = is_dynamic and re.search(r"(?i)(machine|node)[-_]rank[= ]", command.text)
        if match and not is_shown and not is_ignored:
            yield LintFinding(
                severity=Severity.HIGH,
                line=at.line,
                message=f"the batch shell expands ${match[1]} once, to 0: every task and node gets rank 0",
                advice=f"let each task expand it: srun bash -c '... ${match[1]} ...', or read it in Python",
            )


@lint_rule("launch-on-one-node", "a multi-node job starts training on the first node only", reads="sbatch")
def launch_on_one_node(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a multi-node job that starts its training command without srun, or with an srun that has only one task or
    node.

    ## Why it costs
    A batch script runs only on the first node. Either the launcher waits for the other nodes until it gives up, or
    training runs on one node while you pay for the others, which are idle.

    ## How to recognize it
    `--nodes` is at least 2, torchrun or Python starts the training script, and no srun, mpirun, ssh, pdsh or Ray starts
    it on the other nodes.

    ## What to do
    Use `srun torchrun --nnodes $SLURM_NNODES --rdzv-backend c10d --rdzv-endpoint $HOST:29500 train.py`, with one task
    per node.

    ## When it is wrong
    Ignore the finding if the Python program starts the other nodes itself.
    """
    others = r"\b(ssh|pdsh|clush|ray|submitit|parallel|flux|hostfile|dask)\b"
    runs = batch.trainings if batch.nodes > 1 and not re.search(others, batch.text) else ()
    launched = [run for run in runs if run.launch]
    if launched and sum(batch.nodes_of(run) for run in launched) < batch.nodes:
        run = launched[0]
        how = f"srun with {batch.nodes_of(run)} node" if run.step else "no srun starts it on the others"
        yield LintFinding(
            severity=Severity.HIGH,
            line=run.line,
            message=f"starts only on the first of {batch.nodes} nodes: {how}",
            advice="start it with srun, one task per node",
        )


@lint_rule(
    "launcher-per-task", "each srun task starts a launcher, and each launcher starts all processes", reads="sbatch"
)
def launcher_per_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `srun torchrun` (or `accelerate launch`) with several tasks per node.

    ## Why it costs
    Each task starts a launcher, and each launcher starts one process per device: with 8 tasks, 64 processes share 8
    devices, or the second launcher fails because its port is taken.

    ## How to recognize it
    `--ntasks-per-node` or `--ntasks` assigns several tasks to a node, and no option limits the launcher to one process.

    ## What to do
    Use `#SBATCH --ntasks-per-node=1` with torchrun, or `srun python train.py` with one task per device.

    ## When it is wrong
    Ignore the finding if a configuration file limits the launcher to one process.
    """
    for run in batch.trainings:
        tasks = batch.tasks_of(run)
        if run.launch and run.launch.launcher != "python" and run.step and tasks > 1:
            processes = run.launch.options.get("nproc-per-node", run.launch.options.get("num-processes", ""))
            if processes not in ("1", ""):
                yield LintFinding(
                    severity=Severity.HIGH,
                    line=run.line,
                    message=f"{tasks} tasks per node start {tasks} launchers ({run.launch.launcher}) with {processes} "
                    "processes each",
                    advice="ask for --ntasks-per-node=1 with a launcher",
                )


_HERE = re.compile(r"localhost|127\.0\.0\.1|0\.0\.0\.0|::1")
_OF_TASK = re.compile(r"\$\(\s*hostname\b[^|]*\)|`\s*hostname\b[^|]*`|\$\{?(HOSTNAME|SLURMD_NODENAME)\b")


_SHARED = ("rdzv-id", "master-port", "rdzv-endpoint", "MASTER_PORT")
"""Options and variables that must have one value on all nodes."""
_DRAWN = re.compile(r"\$\{?(S?RANDOM|\$|SLURM_(PROCID|NODEID|TASK_PID))|\b(shuf|uuidgen|date)\b")
_NODE_LIST = re.compile(r"[\"']?\$\{?SLURM(_JOB)?_NODELIST\}?(:\S*)?[\"']?")


@lint_rule("loopback-master", "nodes or tasks do not agree on the address of the master", reads="sbatch")
def loopback_master(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a master or rendezvous address that differs between nodes or is not an address: `localhost`, a
    `$(hostname)` that each task expands, the full node list, or the login node. Also looks for a `--rdzv-id` or port
    that each node draws at random.

    ## Why it costs
    Each node waits at an address that the others never use, until the rendezvous times out.

    ## How to recognize it
    The job has several nodes, and `MASTER_ADDR`, `--master_addr` or `--rdzv_endpoint` has such a value.

    ## What to do
    Use `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)` in the batch shell.

    ## When it is wrong
    Ignore the finding if only one node takes part in that run.
    """
    places: list[tuple[int, str, str, bool | None, tuple[str, ...]]] = [
        (command.line, word.raw, batch.resolve(word.text), False, command.blocks)
        for command in batch.commands
        for name, word in command.assignments
        if name == "MASTER_ADDR"
    ]
    for run in batch.runs:
        is_inner = run.inner is not run.command and bool(run.step)
        own = [word for name, word in run.inner.assignments if name == "MASTER_ADDR" and is_inner]
        addresses = [word.raw for word in own] + ([run.launch.address] if run.launch and run.launch.address else [])
        places += [(run.line, address, address, is_inner, run.command.blocks) for address in addresses]
    for run in [one for one in batch.runs if one.step and one.inner is not one.command]:
        given = [*(run.launch.options.items() if run.launch else ()), *((n, w.raw) for n, w in run.inner.assignments)]
        drawn = [pair for pair in given if pair[0] in _SHARED and _DRAWN.search(pair[1])]
        names = [(batch.line_of(run, name.replace("-", "_")), f"{name} {value}") for name, value in drawn]
        places += [(line, text, text, None, run.command.blocks) for line, text in names]
    for line, raw, address, by_task, blocks in places if batch.nodes > 1 else ():
        problems = (
            (by_task is None, f"each node expands {address} itself, to another value: the nodes never meet"),
            (_HERE.match(address), f"each of {batch.nodes} nodes looks for the master on itself ({address})"),
            (by_task and _OF_TASK.search(raw), f"each task expands {raw[:40]} itself: every node is its own master"),
            (_NODE_LIST.fullmatch(address), f"{address} is a list such as node[01-04], not an address"),
            ("SLURM_SUBMIT_HOST" in address, "SLURM_SUBMIT_HOST is the login node, where the job runs no process"),
        )
        for problem in [text for is_so, text in problems if is_so and not {"if", "case"} & set(blocks)][:1]:
            yield LintFinding(
                severity=Severity.HIGH,
                line=line,
                message=problem,
                advice='MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )


@lint_rule("missing-node-rank", "launchers of several nodes do not find each other", reads="sbatch")
def missing_node_rank(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for torchrun and accelerate commands on several nodes that have no address or no node rank, use
    `--standalone`, give a number of nodes that differs from the job's, or have options after the script's name.

    ## Why it costs
    Every node is rank 0 of its own group: the rendezvous times out, or each node trains alone and overwrites the
    others' checkpoints.

    ## How to recognize it
    srun starts the launcher on several nodes, and its options name neither the address nor the node's rank.

    ## What to do
    Use `--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$HOST:$PORT`, before the script's name.

    ## When it is wrong
    Ignore the finding if PET_ variables or accelerate's configuration file set these options.
    """
    for run in batch.trainings if "PET_" not in batch.text else ():
        nodes, launch = batch.nodes_of(run), run.launch
        if launch is None or launch.launcher == "deepspeed" or (launch.launcher == "python" and run.step != "srun"):
            continue
        options, is_torchrun, is_plain = launch.options, launch.launcher == "torchrun", launch.launcher == "python"
        is_many, tasks = nodes > 1 and not is_plain, batch.tasks_of(run) * nodes
        world = batch.resolve("${WORLD_SIZE:-}")
        late = [word for word in launch.arguments if word.startswith("--") and _name(word) in LAYOUT | {"standalone"}]
        has_rank = {"node-rank", "config-file"} & set(options) or options.get("rdzv-backend", "static") != "static"
        problems = (
            (is_torchrun and late and "nproc-per-node" not in options,
             f"{' '.join(late[:1])} follows the script: torchrun ignores it there, and starts one process"),
            (is_many and launch.is_standalone,
             f"--standalone: each of {nodes} nodes trains alone, and overwrites the others' files"),
            (is_many and is_torchrun and (launch.nodes == 1 or "nnodes" not in options),
             f"--nnodes is 1 on each of {nodes} nodes: each trains alone, and overwrites the others' files"),
            (is_many and launch.nodes and launch.nodes != nodes and ":" not in options["nnodes"],
             f"--nnodes={launch.nodes} in a job of {nodes} nodes: the rendezvous waits forever"),
            (is_many and is_torchrun and not launch.address,
             "no --rdzv-endpoint or --master-addr: each node looks for the others on itself"),
            (is_many and not has_rank, "no --node-rank (--machine_rank): every node is rank 0"),
            (is_plain and world.isdecimal() and int(world) != tasks,
             f"WORLD_SIZE={world} and {tasks} tasks of srun: the process group waits forever, or refuses ranks"),
        )  # fmt: skip
        for problem in [text for is_so, text in problems if is_so][:1]:
            yield LintFinding(
                severity=Severity.HIGH,
                line=run.line,
                message=problem,
                advice="--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$HOST:$PORT before the script",
            )


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("_", "-")


@lint_rule("fixed-port", "jobs that share a node use the same port, or the port is invalid", reads="sbatch")
def fixed_port(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a constant port (including the launcher's default, 29500) in a job that may share its node with another
    task of its array, for ports above 65535, and for ports that each task draws at random.

    ## Why it costs
    The second task on a node fails with "address already in use", or joins the process group of the first task.

    ## How to recognize it
    The job is an array or asks for fewer GPUs than a node has, and does not use `--exclusive`. The severity is medium
    in an array and low otherwise. It is high if `SLURM_JOB_ID` is used as a port without a modulo.

    ## What to do
    Use `MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))`, or `--standalone` if there is only one node.

    ## When it is wrong
    Ignore the finding if a node never runs two of these tasks.
    """
    written = [
        (command.line, batch.resolve(word.text))
        for command in batch.commands
        for name, word in command.assignments
        if re.fullmatch(r"(\w*_)?PORT", name)
    ]
    found = [
        (line, Severity.HIGH, f"{port} is not a valid port once job ids exceed 65535")
        for line, port in written
        if re.search(r"SLURM_(ARRAY_)?JOB_?ID", port) and not re.search(r"%|tail|cut|:\d* ?-\d|rev|mod|\|", port)
    ]
    is_array = bool(batch.value("array")) and not batch.value("array").endswith("%1")
    is_shared = is_array or (batch.nodes == 1 and 0 < (batch.gpus_per_node or 8) < 4)
    is_whole = batch.option("exclusive") or (batch.gpus_per_node or 0) >= 8 or not batch.is_job
    for run in batch.trainings if is_shared and not is_whole else ():
        is_plain = run.launch is None or run.launch.launcher == "python"
        default = "29500" if not is_plain and not written and is_array else ""
        port = (run.launch and run.launch.port) or (written[-1][1] if written and is_plain else default)
        is_free = run.launch and (run.launch.is_standalone or "rdzv-backend" in run.launch.options)
        if port.isdecimal() and port != "0" and not is_free and batch.nodes_of(run) == 1:
            found.append(
                (
                    run.line,
                    Severity.MEDIUM if is_array else Severity.LOW,
                    f"all tasks or jobs use port {port}: the second one on a node fails with 'address already in use'",
                )
            )
    for line, severity, message in found:
        yield LintFinding(
            severity=severity,
            line=line,
            message=message,
            advice="--standalone, or MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            confidence=Confidence.CERTAIN if is_array else Confidence.LIKELY,
        )


_KNOWS_DEVICES = re.compile(
    r"(?i)gpu|device|parallel|strategy|world|nproc|num_proc|trainer|lightning|pl_|accelerat|spawn|tensor|\btp\b|vllm|ray"
)
_USES_SEVERAL = re.compile(
    r"(?i)parallel|device_map|trainer|lightning|accelerat|spawn|device_count|cuda:[1-9{]|device_ids|vllm|\bray\b|horovod|"
    r"deepspeed|fabric|colossal|multiprocess|Popen|subprocess"
)
_OTHER_COUNTS = r"(worker|batch|epoch|layer|accum|seed|step)"
_ONE_DEVICE = re.compile(
    r"(?:^|\s)(?:\S*[-_.])?(?:(?:gpu|device|gpu[-_]ids?|local[-_]rank)[= ](?:cuda:)?\d|device[= ]cuda|\S*[= ]?cuda:\d|"
    r"(?:gpus|devices|num[-_]gpus|n[-_]?gpus?)[= ]1)(?=\s|$)"
)


@lint_rule("idle-gpus", "the processes that are started do not match the GPUs that the job asks for", reads="sbatch")
def idle_gpus(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the number of GPUs on each node with the number of processes that launchers and tasks start, and with the
    GPUs in `CUDA_VISIBLE_DEVICES`.

    ## Why it costs
    You pay for GPUs that no process uses, and other jobs wait for them. A process without a GPU fails with "invalid
    device ordinal".

    ## How to recognize it
    The number of processes per node (`--nproc-per-node` times the tasks per node, or the number of tasks with plain
    Python) differs from the number of GPUs. The severity is high if more than half of the GPUs are idle, or if
    processes have no GPU. Commands that run at the same time (`&`) are added up.

    ## What to do
    Ask for as many GPUs as processes, or start one process per GPU: `--nproc-per-node=$SLURM_GPUS_ON_NODE`.

    ## When it is wrong
    Ignore the finding if one process uses several GPUs (model parallelism, DataParallel, Lightning).
    """
    runs = batch.trainings if batch.gpus_per_node else ()
    counts = [batch.processes_of(run) or 0 for run in runs]
    gpus, parallel = batch.gpus_per_node or 0, [run for run in runs if run.command.is_background]
    most = sum(counts) if parallel else max(counts, default=0)
    for run in [run for run, count in zip(runs, counts, strict=True) if count == max(counts)][:1]:
        is_plain = run.launch is not None and run.launch.launcher == "python"
        devices = (run.launch.variables if run.launch else {}).get("CUDA_VISIBLE_DEVICES", "") or batch.resolve(
            "${CUDA_VISIBLE_DEVICES:-}"
        )
        listed = devices.strip(",\"'").split(",") if re.fullmatch(r"[\d,\"']+", devices) and not parallel else []
        used, words = min(most, len(listed) or most), " ".join(run.words)
        per_task = run.step_options.get("gpus-per-task") or batch.value("gpus-per-task")
        several = (
            _USES_SEVERAL.search(batch.read_script(run) + words)
            or "DataParallel" in batch.text
            or per_task.rpartition(":")[2] not in ("", "1")
            or re.search(rf"--(?!\S*{_OTHER_COUNTS})\S+[= ]{gpus}(\s|$)", words)  # it gets the number of GPUs
        )
        is_many = bool(several or (_KNOWS_DEVICES.search(words) and not _ONE_DEVICE.search(words)))
        by_itself = is_plain and ((not (run.step and most > 1) and is_many) or len(listed) == gpus)
        is_unsure = by_itself or 0 in counts or any("loop" in other.command.blocks for other in parallel)
        problems = (
            (listed and int(listed[0] or 0) >= gpus, Severity.HIGH,
             f"CUDA_VISIBLE_DEVICES={devices} names none of the job's GPUs (0 to {gpus - 1})"),
            (listed and most > len(listed) and not is_plain, Severity.HIGH,
             f"{most} processes see only GPUs {devices}"),
            (most > gpus and not is_plain and not parallel, Severity.HIGH,
             f"{most} processes on a node's {gpus} GPUs: invalid device ordinal"),
            (most > gpus and run.step and is_plain and not parallel, Severity.HIGH,
             f"{most} tasks for {gpus} GPUs of each node: several processes share one"),
            (0 < used < gpus, Severity.HIGH if used * 2 < gpus else Severity.MEDIUM,
             f"{used} of {gpus} GPUs of each node are used: {gpus - used} GPUs are idle"),
        )  # fmt: skip
        for severity, message in [(severity, text) for is_so, severity, text in problems if is_so and not is_unsure][
            :1
        ]:
            yield LintFinding(
                severity=severity,
                line=batch.line_of(run, run.launch.script if is_plain and run.launch else "nproc"),
                message=message,
                advice="start one process (task) per GPU, or ask for fewer GPUs",
                confidence=Confidence.LIKELY if is_plain else Confidence.CERTAIN,
            )


@lint_rule("shared-gpu", "background training runs share GPU 0, or wait for each other", reads="sbatch")
def shared_gpu(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for training commands that `&` starts at the same time on the GPUs of one job.

    ## Why it costs
    Without `CUDA_VISIBLE_DEVICES`, all of them use GPU 0, and the other GPUs are idle. Under srun, a step takes all of
    the job's resources unless it has `--exact`, so the steps run one after the other.

    ## How to recognize it
    There are several background commands (or one in a loop) without `CUDA_VISIBLE_DEVICES` or a device option, or
    several steps without `--exact`, `--overlap` or GPUs of their own.

    ## What to do
    Use `srun --exact -n1 --gpus=1 --mem=... python a.py &` for each, then `wait`; or `CUDA_VISIBLE_DEVICES=$i python
    a.py &`.

    ## When it is wrong
    Ignore the finding if the Python program chooses its own device.
    """
    runs = [run for run in batch.trainings if run.command.is_background]
    is_several = len(runs) > 1 or any("loop" in run.command.blocks for run in runs)
    exact = {"exact", "exclusive", "overlap", "cpus-per-task", "cpus-per-gpu"}  # options that imply --exact for a step
    whole = [run for run in runs if run.step == "srun" and not exact & set(run.step_options)]
    chooses = re.search(r"(?i)CUDA_VISIBLE|--?\w*(device|gpu)", re.sub(r"(?m)^#.*", "", batch.text))
    devices = {"gres", "gpus", "gpus-per-task", "gpus-per-node", "tres-per-task", "overlap"}
    problems = (
        (whole and not re.search("SLURM_EXACT|SRUN_CPUS_PER_TASK", batch.text),
         "a step without --exact takes the whole job: these background steps run one after the other"),
        (runs and runs[0].step == "srun" and not devices & set(runs[0].step_options),
         "a step without --gpus takes all of the job's GPUs: these background steps run one after the other"),
        (runs and not runs[0].step and not chooses,
         f"all of them use GPU 0: the other {(batch.gpus_per_node or 1) - 1} are idle"),
    )  # fmt: skip
    is_one_node = batch.nodes == 1 and (batch.gpus_per_node or 0) > 1
    for problem in [text for is_so, text in problems if is_so and is_several and is_one_node][:1]:
        yield LintFinding(
            severity=Severity.HIGH,
            line=runs[0].line,
            message=problem,
            advice="srun --exact --ntasks=1 --gpus=1 --mem=M ... & for each, or CUDA_VISIBLE_DEVICES=$i before each",
            confidence=Confidence.LIKELY,
        )


_STAMPED = re.compile(r"datetime|strftime|getpid|uuid|time\.time\(|mkdtemp")
_DEFAULT = re.compile(
    rf"(?im)[\"']--({OUTPUT})[\"'][^)]{{0,200}}?default\s*=\s*[\"']([^\"'{{}}]+)[\"']|^\s*({OUTPUT})\s*:\s*[\"']?([\w./-]+)"
)
"""The options of a script or configuration that name the folder to which a training script writes."""
_ID = r"[\"']*\$(?:\{?SLURM_ARRAY_TASK_ID\}?|\(\(\s*\$?\{?SLURM_ARRAY_TASK_ID\}?\s*\)\))[\"']*"
_LINE_OF_TASK = re.compile(
    rf"sed\s.*?{_ID}\s*[\"']?(?:p|q|!d|\{{)|(?:NR\s*==\s*|head\s+-n?\s*|cut\s.*-f\s*){_ID}(?!\s*\+|\w)|"
    rf"-v\s*(\w+)={_ID}\s.*NR\s*==\s*\1\b(?!\s*\+)"
)


@lint_rule("array-shares-folder", "the tasks of an array write to one folder, or all do the same work", reads="sbatch")
def array_shares_folder(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Follows `SLURM_ARRAY_TASK_ID` through the script's variables to the command, its output folder, and the lists that
    the id indexes.

    ## Why it costs
    Tasks overwrite each other's checkpoints and resume from the wrong ones. An index past the end of a list gives an
    empty value. If a list is longer than the array, some entries are never used. If nothing reads the task id, all N
    tasks repeat the same work.

    ## How to recognize it
    An argument such as `--output-dir` has the same value in all tasks, and no name or tag in the command differs; the
    ids in `--array` exceed the length of the list; or neither the script nor the Python file next to it reads the id.
    Arrays that run one task at a time (`%1`) are not checked.

    ## What to do
    Use `--output-dir runs/sweep/$SLURM_ARRAY_TASK_ID`, and `--array=0-7` for a list of 8.

    ## When it is wrong
    Ignore the finding if the Python program makes a folder for each set of arguments.
    """
    match = re.fullmatch(r"(\d+)-(\d+)(?:%(\d+))?", batch.value("array"))
    first, last = (int(match[1]), int(match[2])) if match and match[3] != "1" else (0, 0)
    found: list[tuple[int, Severity, str]] = []
    runs = batch.trainings if first < last else ()
    code = re.sub(r"(?m)#.*|^\s*echo.*", "", batch.text) + "".join(batch.read_script(run) for run in runs)
    if runs and not re.search(r"SLURM_(ARRAY|JOB)", code):
        found.append(
            (
                runs[0].line,
                Severity.HIGH,
                f"all {last - first + 1} tasks of the array do the same work: nothing reads SLURM_ARRAY_TASK_ID",
            )
        )
    for run in runs if not found and not _STAMPED.search(code) else ():
        raw = " ".join(word.raw for word in run.command.words)
        config = run.argument(r"(?:[\w.]+\.)?(?:config|cfg)(?:[-_](?:file|path))?")
        texts = batch.read_script(run) + "\n" + ((config and batch.read_beside(config[1])) or "")
        default = _DEFAULT.search(texts) if len(texts) > 1 and "SLURM_" not in texts else None
        made = [batch.resolve(word) for one in batch.script.named("mkdir") for word in one.arguments if "/" in word]
        saved = run.argument("checkpoint|ckpt|save|model[-_]?out")
        written = run.argument(OUTPUT) or (saved if saved and saved[1].startswith(tuple(made)) else None)
        pair = (written and (written[0], batch.place_of(run, written[1]) or written[1])) or (
            default and (default[1] or default[3], default[2] or default[4])
        )
        named = run.argument(r"(?:[\w.]+\.)?\w*(?:name|tag|suffix|exp|id)")
        is_path = pair and re.match(r"[\w./~$@{\"-]*[A-Za-z]", pair[1]) and not pair[1].startswith("-")
        is_own = not pair or batch.varies(pair[1]) or (named and batch.varies(named[1]))
        if pair and is_path and not is_own and batch.varies(raw):
            found += [
                (
                    batch.line_of(run, pair[0]),
                    Severity.HIGH,
                    f"all tasks of the array write to {pair[0]} {pair[1]}, and overwrite each other",
                )
            ]
        same = _same_seed(batch, run)
        found += (
            [
                (
                    batch.line_of(run, same),
                    Severity.HIGH,
                    f"{same} is the same in all tasks of the array, and only "
                    "their folders and names differ: they repeat one run",
                )
            ]
            if same and last - first > 1
            else []
        )
        for log in [one for one in run.command.redirects if re.match(r"\d?>\s*[^>&\s]*\w", one)]:
            if not batch.varies(log) and "/dev/" not in log:
                found += [
                    (
                        batch.line_of(run, log),
                        Severity.MEDIUM,
                        f"all tasks of the array write their log to {log.lstrip('12> ')}, and overwrite each other's",
                    )
                ]
    for command in batch.commands if first < last and last >= (batch.gpus_per_node or 8) else ():
        shown = [word.text for name, word in command.assignments if name == "CUDA_VISIBLE_DEVICES"]
        if any(re.fullmatch(r"\$\{?SLURM_ARRAY_TASK_ID\}?", batch.resolve(text)) for text in shown):
            found += [
                (
                    command.line,
                    Severity.HIGH,
                    f"CUDA_VISIBLE_DEVICES is the task's id, up to {last}, but each task "
                    f"has {batch.gpus_per_node} GPUs, from 0: the others see no GPU",
                )
            ]
    for command, folder in batch.deletions if runs else ():
        if not batch.varies(folder):
            found += [(command.line, Severity.HIGH, f"each task of the array deletes {folder}, where the others write")]
    lists = {name: (word.raw, c.line) for c in batch.commands for name, word in c.assignments if word.raw[:1] == "("}
    for name, (raw, line) in lists.items() if first < last else ():
        use = re.search(rf"\$\{{{name}\[\$?\{{?SLURM_ARRAY_TASK_ID\}}?\s*([-+]\s*\d+)?\]", batch.text)
        shift = int((use[1] or "0").replace(" ", "")) if use else 0
        count = len(re.findall(r"\"[^\"]*\"|'[^']*'|[^\s()]+", re.sub(r"(?m)(^|\s)#.*", "", raw[1:-1])))
        is_known = use and not re.search(r"[{*?\[$`]", raw)
        if is_known and last + shift >= count:
            found.append(
                (line, Severity.HIGH, f"--array ends at {last}, and {name} has {count} entries: the last gets none")
            )
        elif is_known and (first + shift == 1 or last + shift == count - 2):
            found.append(
                (line, Severity.MEDIUM, f"--array={batch.value('array')} leaves one of the {count} {name} out")
            )
    found += _repeated_points(batch, lists, first, last) if first < last else []
    for command in batch.commands if last and not first else ():
        if re.match(r"sed|awk|head|cut", command.name) and _LINE_OF_TASK.search(batch.resolve(command.text[:2000])):
            found += [
                (
                    command.line,
                    Severity.MEDIUM,
                    f"{command.name} counts from 1: task 0 of the array gets no line (off by one)",
                )
            ]
    for line, severity, message in found:
        yield LintFinding(
            severity=severity,
            line=line,
            message=message,
            advice="include $SLURM_ARRAY_TASK_ID in it; use $((SLURM_ARRAY_TASK_ID + 1)) for line numbers",
            confidence=Confidence.LIKELY,
        )


_OF_ID = re.compile(r"SLURM_ARRAY_TASK_ID")
_NAMES = re.compile(
    r"(?i)(?:[\w.]+[._-])?(?:name|tag|suffix|exp|id|dir|path|out|log|group|project|port|run|data\w*)\d*"
)
_POINT = re.compile(r"^\$\{(\w+)\[(.+)\]\}$")


def _same_seed(batch: Batch, run: StartedProgram) -> str:
    """A literal seed, as written, of a training whose tasks differ only in options of places and names; else empty."""
    pair = run.argument(r"(?:[\w.]+\.)?(?:random[-_]?|global[-_]?)?seed")
    exported = [(name, word.raw) for one in batch.commands for name, word in one.assignments if one.words]
    words = [word.raw for word in run.command.words]
    options = [
        (words[at - 1] if "=" not in word and at else word.partition("=")[0], word) for at, word in enumerate(words)
    ]
    by_id = [name for name, raw in (*options, *exported) if any(map(_OF_ID.search, batch.trace(raw)))]
    is_named = all(_NAMES.fullmatch(name.strip("-+\"'")) for name in by_id)
    return f"{pair[0]}" if pair and re.fullmatch(r"\d+", pair[1]) and by_id and is_named else ""


def _repeated_points(
    batch: Batch, lists: dict[str, tuple[str, int]], first: int, last: int
) -> list[tuple[int, Severity, str]]:
    """Indexes into several lists that give fewer combinations than the array has tasks, although there are more."""
    sizes = {name: len(raw[1:-1].split()) for name, (raw, _) in lists.items() if not re.search(r"[{*?\[$`\"']", raw)}
    found = [
        (match[1], match[2], one.line)
        for one in batch.commands
        for _, word in one.assignments
        if (match := _POINT.match(word.text.strip('"'))) and match[1] in sizes
    ]
    texts = [re.sub(r"\$\{#(\w+)\[@\]\}", lambda size: str(sizes.get(size[1], "")), index) for _, index, _ in found]
    texts = [re.sub(r"^\$\(\(|\)\)$", "", batch.resolve(text)) for text in texts]
    points = {tuple(compute(re.sub(r"\$?\{?SLURM_ARRAY_TASK_ID\}?", str(at), text)) for text in texts)
              for at in range(first, min(last, first + 500) + 1)}  # fmt: skip
    total = prod(sizes[name] for name, _, _ in found)
    is_known = len(found) > 1 and not any(None in point for point in points) and last - first < 500
    message = f"the indexes give only {len(points)} of {total} combinations to {last - first + 1} tasks, several twice"
    is_short = is_known and len(points) < min(total, last - first + 1)
    return [(found[0][2], Severity.HIGH, message)] if is_short else []


_INDEX = r"\$?\{?(?:SLURM_LOCALID|LOCAL_RANK|SLURM_PROCID|local_rank|LOCALID)\b"
_BY_RANK = re.compile(
    rf"cuda:{_INDEX}|(?:gpu|device|gpu[-_]id)[= ]\$\{{?\w*(?:LOCAL)|CUDA_VISIBLE_DEVICES=[\"']?{_INDEX}"
)
_CODE_BY_RANK = re.compile(
    r"set_device\([^)\n]*(?:local_?rank|LOCALID|LOCAL_RANK)|cuda:\{[^}\n]*(?:local_?rank|LOCALID|LOCAL_RANK)|"
    r"device\(\s*[\"']cuda[\"'],\s*[^)\n]*local_?rank|cuda:[\"']\s*\+\s*str\([^)\n]*local_?rank",
    re.IGNORECASE,
)


@lint_rule(
    "gpu-of-another-task",
    "tasks see only one GPU but use another index, or all tasks use the first GPU",
    reads="sbatch",
)
def gpu_of_another_task(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the GPUs that each srun task can see (`--gpus-per-task=1`, `--gpu-bind`) with the device index that the
    task uses.

    ## Why it costs
    A task that is bound to one GPU sees it as cuda:0: `cuda:$LOCAL_RANK` is an "invalid device ordinal" in all tasks
    except the first. Without the binding, each task sees all GPUs, and `cuda:0` is the same GPU for all tasks.

    ## How to recognize it
    A job has several tasks per node, and the command or the Python file next to it uses `cuda:$SLURM_LOCALID`,
    `CUDA_VISIBLE_DEVICES=$SLURM_LOCALID` or `set_device(local_rank)` with a binding, or `cuda:0` without a binding.

    ## What to do
    Use `cuda:0` with `--gpus-per-task=1`, or `cuda:$SLURM_LOCALID` with `--gpus-per-node`.

    ## When it is wrong
    Ignore the finding if the site turns the binding off.
    """
    for run in batch.trainings:
        options = {option.name: option.value for option in batch.options} | dict(run.step_options)
        bind = options.get("gpu-bind", options.get("tres-bind", ""))
        per_task = options.get("gpus-per-task", options.get("ntasks-per-gpu", ""))
        is_one = per_task.rpartition(":")[2] == "1" or re.search(r"(single|per_task):1\b|map_gpu|map:", bind)
        is_bound, tasks = is_one and "none" not in bind, batch.tasks_of(run)
        is_plain = run.step == "srun" and run.launch is not None and run.launch.launcher == "python"
        words, code = run.inner.text + " ".join(run.words), batch.read_script(run)
        by_rank = _BY_RANK.search(words) or _CODE_BY_RANK.search("" if "device_count" in code else code)
        is_first = re.search(r"cuda:0(?=\W|$)", words) and "CUDA_VISIBLE_DEVICES" not in batch.text
        problems = (
            (is_bound and by_rank and not re.search(r"LOCAL_RANK=[\"']?0\b", batch.text),
             f"each task sees one GPU, cuda:0 (gpus-per-task, gpu-bind): {(by_rank or [''])[0]} is an invalid device "
             "ordinal in all tasks except the first"),
            (not is_bound and not per_task and (batch.gpus_per_node or 0) > 1 and is_first,
             f"each of {tasks} tasks sees all GPUs of the node and uses cuda:0: the other GPUs are idle"),
        )  # fmt: skip
        for message in [text for is_so, text in problems if is_so and is_plain and tasks > 1][:1]:
            yield LintFinding(
                severity=Severity.HIGH,
                line=batch.line_of(run, "cuda:"),
                message=message,
                advice="cuda:0 with --gpus-per-task=1, or --gpus-per-node with cuda:$SLURM_LOCALID",
                confidence=Confidence.LIKELY,
            )


_LOCAL = re.compile(
    r"(?:\$\{?(?:SLURM_)?(?:TMPDIR|TMP|LOCAL_?SCRATCH|LOCAL|JOB_?TMP|NVME)\b|/tmp/|/dev/shm/|/local|/nvme|/raid|/mnt/local)"
)


@lint_rule("first-node-only", "files are staged on, or left on, the disk of one node", reads="sbatch")
def first_node_only(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for data that the batch shell of a multi-node job copies to a node's own disk, and for results that are
    written to such a disk, to a folder that the script removes, or to a container's own disk, and are copied back
    never or only after everything has succeeded.

    ## Why it costs
    The other nodes have no data and fail. When the job ends, the files on a node's own disk are deleted.

    ## How to recognize it
    `cp`, `rsync`, `tar` or `unzip` writes to `$TMPDIR`, `/tmp`, `/dev/shm` or the like without srun; or an output
    folder is there, with no `cp` or `rsync` after the training command (high), or only outside traps, loops and
    background programs (medium). Paths in a container are traced through its mounts.

    ## What to do
    Use `srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 cp ...`, or `sbcast`. Copy results back at the end and in a
    trap.

    ## When it is wrong
    Ignore the finding if that folder is shared between the nodes.
    """
    copies = re.compile(r"(\S*/)?(cp|rsync|tar|unzip|unsquashfs|rclone|mv|zstd|aws|gsutil|scp)$")
    moved = [run for run in batch.runs if copies.match(run.words[0])]
    last = max((run.line for run in batch.trainings), default=0)
    found: list[tuple[int, Severity, str]] = []
    for run in moved if batch.nodes > 1 else ():
        target = next(
            (run.words[at + 1] for at, word in enumerate(run.words[:-1]) if word in ("-C", "-d")), run.words[-1]
        )
        if not run.step and _LOCAL.match(batch.resolve(target)) and run.line < last:
            found.append(
                (
                    run.line,
                    Severity.HIGH,
                    f"stages to {target} on the first node only: the other {batch.nodes - 1} nodes lack these files",
                )
            )
    traps = [command for trap in batch.traps for command in trap.commands]
    ends = [one for one in batch.commands if one.line > last or "function" in " ".join(one.blocks)]
    named = [batch.resolve(word).rstrip("/*") for one in (*ends, *traps) if one.name == "rm" for word in one.arguments]
    removed = [folder for folder in named if len(folder) > 3 and "/" in folder]
    for run in _run_trainings(batch) if batch.is_job else ():
        for name, path in _find_outputs(batch, run):
            place = batch.place_of(run, path)
            root = next((folder for folder in removed if f"{place}/".startswith(f"{folder}/")), "")
            is_inside = (
                not place and _KEEPS_NOTHING.search(run.command.text) and not _KEEPS_CONTAINER.search(batch.text)
            )
            copied = [copy for copy in moved if any((root or place) in word for word in copy.words[1:-1])]
            later = [copy.command for copy in copied if copy.line > run.line or copy.command.blocks]
            is_safe = any({*one.blocks} or one.is_background for one in later) or any(
                copies.match(one.name) for one in traps
            )
            if is_inside:
                found.append((run.line, Severity.HIGH, f"{name} {path} is in no mount of the container: lost with it"))
            elif place and (root or _LOCAL.match(place)) and not is_safe and not _UPLOADS.search(run.command.text):
                lost = "nothing copies it back: lost with the job"
                late = "only the end of the script copies it back: the time limit or a failure loses all of it"
                severity = Severity.MEDIUM if later else Severity.HIGH
                line = later[0].line if later else batch.line_of(run, name)
                found.append((line, severity, f"{name} {path} is on a disk of the job, and {late if later else lost}"))
    for line, severity, message in found:
        yield LintFinding(
            severity=severity,
            line=line,
            message=message,
            advice="srun --ntasks-per-node=1 cp ..., or sbcast; keep checkpoints on a shared file system, or copy them "
            "back in a trap and in the background",
            confidence=Confidence.LIKELY,
        )


_UPLOADS = re.compile(r"upload|push|s3://|gs://|remote")
_KEEPS_NOTHING = re.compile(r"--container-image|\s--rm\b")
_KEEPS_CONTAINER = re.compile(r"--container-(name|save)|--container-mounts=?\s*[\"']?/:/|enroot")
_RESULTS = re.compile(r"(?i)(?:APPTAINER|SINGULARITY)ENV_\w*(?:results|output|ckpt|checkpoint)\w*")


def _run_trainings(batch: Batch) -> list[StartedProgram]:
    """The trainings, and programs in a container whose name says that they train, even if they are no Python files."""
    others = [run for run in batch.runs if run.launch is None and batch.mounts_of(run) is not None]
    return [*batch.trainings, *(run for run in others if TRAINS.search(" ".join(run.words)))]


def _find_outputs(batch: Batch, run: StartedProgram) -> list[tuple[str, str]]:
    """The names and paths, as the run gets them, of the folders to which it writes."""
    pair = run.argument(OUTPUT)
    is_log = pair is not None and re.match(r"(?i)log|(\w*[-_.])?tensorboard", pair[0])
    if pair is not None:
        return [] if is_log or not re.match(r"[/$~]", pair[1]) else [(f"--{pair[0]}", batch.resolve(pair[1]))]
    given = [entry for one in batch.commands for entry in one.assignments if batch.mounts_of(run)]
    return [(name, batch.resolve(word.text)) for name, word in given if _RESULTS.fullmatch(name)][:1]


_CPU_WORK = re.compile(
    r"^(?:python\S*\s+-m\s+)?(?:pip3?|conda|mamba|uv)\s+(?:pip\s+)?(?:install|create|env create|sync)\b|"
    r"^wget\b|^curl\s.*-[oO]\b|^(?:huggingface-cli|hf)\s+download|^git\s+clone|^(?:gsutil|aws s3)\s"
)


_OWN_ENVIRONMENT = re.compile(r"(?:TMPDIR|/tmp|TASK_ID|JOB_ID)\S*/bin/activate|--container-image|--no-container-mount")


@lint_rule("gpus-wait-for-cpu-work", "GPUs wait while the job downloads, installs or prepares data", reads="sbatch")
def gpus_wait_for_cpu_work(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for installs, downloads and data preparation in a job with GPUs, and for training commands that run one after
    the other on a node with several GPUs.

    ## Why it costs
    In the meantime, all GPUs of the job are idle, but you pay for them. In an array, each task repeats the work at the
    same time.

    ## How to recognize it
    `pip install`, `wget`, `hf download` or the like runs before training (low), or a Python program whose name says
    that it prepares or tokenizes data does (medium). The severity is also medium if the tasks of a step or array
    install packages at the same time.

    ## What to do
    Do this work once in a job without GPUs, and start the training job with `--dependency=afterok`.

    ## When it is wrong
    Ignore the finding if it takes only a few seconds.
    """
    last = max((run.line for run in batch.trainings), default=0)
    has_own = _OWN_ENVIRONMENT.search(batch.text) if last else None
    for run in batch.runs if last else ():
        name = run.launch.script.rsplit("/", 1)[-1] if run.launch else ""
        is_costly = bool(re.search(r"(?i)preproc|prepare_?data|tokeni[sz]e|download", name) or batch.value("array"))
        is_work = _CPU_WORK.match(" ".join(run.words)) or (name and is_costly and not run.is_training)
        blocks = " ".join((*run.command.blocks, *run.inner.blocks))
        choices = r"\b(if|case|condition|substitution" + ("" if name else "|function") + r")\b"
        is_choice = re.search(choices, blocks) or run.command.after or run.inner.after
        words = " ".join(run.words)
        tasks = batch.tasks_of(run) if run.step == "srun" else 1
        is_array = bool(batch.value("array")) and not batch.value("array").endswith("%1")
        is_local = re.search(r"TMPDIR|/tmp|PROCID|LOCALID|%[at]", words) or has_own
        if is_choice or not is_work or run.line > last:
            continue
        message = f"{batch.gpus_per_node} GPUs of each node are idle during {words[:50]!r}"
        is_together = not name and (tasks > 1 or is_array) and not is_local and not batch.varies(words)
        if is_together:
            message = (
                f"all tasks of {'a node' if tasks > 1 else 'the array'} run {words[:50]!r} at the same time, in one "
                "environment or folder"
            )
        if is_together or (batch.gpus_per_node and not run.command.is_background):
            yield LintFinding(
                severity=Severity.MEDIUM if is_together or (is_costly and batch.gpus_per_node != 1) else Severity.LOW,
                line=batch.line_of(run, words[:10]),
                message=message,
                advice="do it once, in a job without GPUs, before this one (--dependency=afterok)",
            )


@lint_rule("container-without-gpus", "a container is started without access to the GPUs", reads="sbatch")
def container_without_gpus(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `singularity exec`, `apptainer run` or `docker run` without the option that gives the container access to
    GPUs.

    ## Why it costs
    torch finds no CUDA device in the container: training fails, or runs on the CPU while the GPUs are idle.

    ## How to recognize it
    The job asks for GPUs, but the command has none of the options `--nv`, `--rocm` and `--gpus`.

    ## What to do
    Use `singularity exec --nv image.sif python train.py` or `docker run --gpus all`.

    ## When it is wrong
    Ignore the finding if the site's configuration always gives containers access to GPUs.
    """
    is_contained = batch.gpus_per_node and re.search("singularity|apptainer|docker|podman", batch.text)
    is_given = is_contained and re.search(r"(singularity|apptainer)_nv|rocm|lumi|\bhip_|\bamd", batch.text.lower())
    for run in _run_trainings(batch) if is_contained and not is_given else ():
        words = run.launch.prefixes if run.launch else run.words
        prefix = " ".join(words)[:400]
        given = [word for at, word in enumerate(words[:-1]) if word[:1] == "$" and not words[at - 1].startswith("-")]
        passes = re.search(r"--(nv|nvccli|gpus|device|runtime)\b", prefix) or given or "NVIDIA_VISIBLE" in prefix
        if re.search(CONTAINED, prefix) and not passes:
            yield LintFinding(
                severity=Severity.HIGH,
                line=run.line,
                message=f"{prefix[:60]!r} passes no GPU into the container: torch finds no CUDA device",
                advice="--nv, or --gpus all",
            )
