"""slurm: an sbatch script. The nodes need only Slurm, bash and the training's own Python."""

from __future__ import annotations

import re
import shlex

from hotloop.ahead.launch.request import STOPPED_CODE, LaunchRequest
from hotloop.ahead.launch.target import TRAINING_OPTIONS, LaunchTarget, assign_script, training_environment
from hotloop.core.errors import UsageError, suggest_known
from hotloop.core.sbatch_options import LONG, find_long

FIRST_PORT, PORTS = 10000, 20000
"""Below the ports that Linux assigns to outgoing connections."""
BY_OPTION = {"time": "--time", "cpus-per-task": "--cpus"}
"""Option of sbatch -> the launcher's option that alone sets it. sbatch also accepts the start of a name."""
VALUELESS = frozenset(
    {"contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "nice", "no-kill", "overcommit", "oversubscribe"}
    | {"quiet", "reboot", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"}
)
"""Options of sbatch that need no value: https://slurm.schedmd.com/sbatch.html"""
PROBE_S = 60
"""Time for a node to respond."""
MOST_NOTICE_S = 65_535
"""The most seconds that sbatch accepts in --signal."""
EARLY_S = 30
"""Time between slurmctld's checks of its jobs' limits: the signal comes at the last check that is in time."""


class Slurm(LaunchTarget):
    id = "slurm"
    summary = "an sbatch script: runs torchrun on every node, saves, and requeues itself before its time limit"
    suffix = ".sbatch"
    takes = TRAINING_OPTIONS | {"gpu", "time", "slurm_option"}
    submit = ("sbatch",)

    def find_warnings(self, request: LaunchRequest) -> tuple[str, ...]:
        found = list(super().find_warnings(request))
        names = [given.partition("=")[0] for given in request.slurm_options]
        found += [
            f"sbatch has no option {name!r} by its manual{suggest_known(name, sorted(LONG)).partition('; known')[0]}"
            for name in names
            if not find_long(name)
        ]
        if request.cpus is None and not request.is_whole_node:
            found.append("Slurm gives a task one core: add --cpus N, the cores that all ranks of a node share")
        return tuple(found)

    def write(self, request: LaunchRequest) -> str:
        return "\n".join(
            (
                "#!/bin/bash",
                f"# Nodes: {request.nodes}, processes per node: {request.processes_per_node}. Start: sbatch FILE.",
                "# To make it save and continue later: scancel --batch --signal=TERM JOBID.",
                "# Keep checkpoints on a file system that all nodes share.",
                *_directives(request),
                "",
                *_environment(request),
                "",
                assign_script("node"),
                *_body(request),
                "",
            )
        )


def read_time_s(text: str) -> int | None:
    """sbatch's --time in seconds, rounded up to whole minutes as Slurm does; None for 0, no limit. Raises UsageError.

    >>> [read_time_s(text) for text in ("90", "1:30", "24:00:00", "2-12", "1-0:30", "0")]
    [5400, 120, 86400, 216000, 88200, None]
    """
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", text)
    if found is None:
        raise UsageError(f"--time {text}: give minutes, hours:minutes:seconds or days-hours, such as 24:00:00")
    days, *rest = found.groups()
    first, second, third = (int(one or 0) for one in rest)
    begins_with_hours = days is not None or rest[2] is not None
    seconds = first * 3600 + second * 60 + third if begins_with_hours else first * 60 + second
    return -(-(int(days or 0) * 86_400 + seconds) // 60) * 60 or None


def _check_notice(request: LaunchRequest) -> None:
    """Raises UsageError if the training would be asked to stop before it makes progress, and so start and stop forever.

    A start reads the checkpoint, which takes about as long as a save, and then makes a step: the notice's own formula.
    So it needs as long before the signal as after it.
    """
    notice_s, why = request.notice_s, request.notice_reason
    if notice_s > MOST_NOTICE_S:
        raise UsageError(f"Slurm signals at most {MOST_NOTICE_S} s before the end, too late for this save: {why}")
    time_s = None if request.time is None else read_time_s(request.time)
    least_s = 2 * notice_s + EARLY_S
    if time_s is not None and time_s < least_s:
        raise UsageError(
            f"--time {request.time} ({time_s} s): the signal to save comes {notice_s} s before the end, so every start "
            f"would stop before any progress ({why}); give --time {-(-least_s // 60)} (minutes) or more, or a "
            "shorter save with --save-s"
        )


def _directives(request: LaunchRequest) -> list[str]:
    _check_notice(request)
    options: list[tuple[str, str | None]] = [
        (f"job-name={request.name}", None),
        (f"nodes={request.nodes}", None),
        ("ntasks-per-node=1", "one torchrun per node, which starts the node's ranks"),
    ]
    if request.gpus_per_node:
        options.append((f"gres=gpu:{request.gpus_per_node}", None))
    if request.cpus is not None:
        options.append((f"cpus-per-task={request.cpus}", "shared by all ranks of a node and their loader workers"))
    elif request.is_whole_node:
        options += [
            ("exclusive", "the entire node, because training uses all its GPUs; otherwise a task gets one core"),
            ("mem=0", "and all of the node's memory"),
        ]
    if request.time is not None:
        options.append((f"time={request.time}", None))
    options += [
        (
            f"signal=B:TERM@{request.notice_s}",
            f"before the time ends; only to this script, which passes it to the ranks\n{request.notice_reason}",
        ),
        ("requeue", "Slurm may restart the job after a preemption or a node failure"),
        ("open-mode=append", "one log for all starts of the job"),
        ("output=%x-%j.log", None),
        (
            "propagate=NONE",
            "limits such as the limit on locked memory (pinned buffers) come from the node, not from the login shell",
        ),
    ]
    own = {option.partition("=")[0] for option, _ in options} | set(BY_OPTION)
    for given in request.slurm_options:
        name, equals, value = given.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise UsageError(f"--slurm-option {given}: give NAME=VALUE with the long name, such as partition=gpu")
        taken = next((one for one in sorted(own) if one.startswith(name.removeprefix("no-"))), None)
        if taken is not None:
            instead = f", by {BY_OPTION[taken]}" if taken in BY_OPTION else ""
            raise UsageError(f"--slurm-option {given}: the script itself sets {taken}{instead}")
        if not value and (equals or name not in VALUELESS):
            raise UsageError(f"--slurm-option {given}: {name} needs a value, such as partition=gpu")
        options.append((given, None))
    lines = []
    for option, why in options:
        lines += [f"# {line}" for line in (why or "").splitlines()]
        lines.append(f"#SBATCH --{_quote(option)}")
    return lines


def _quote(option: str) -> str:
    r"""The value quoted for sbatch, which splits a line at spaces and reads # as a comment, unless they are quoted.

    >>> print(_quote("comment=#1 \"a\""), _quote("partition=gpu"))
    comment="#1 \"a\"" partition=gpu
    """
    name, _, value = option.partition("=")
    if not re.search(r"[\s\"'\\#]", value):
        return option
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'{name}="{escaped}"'


def _environment(request: LaunchRequest) -> list[str]:
    lines = []
    for name, noted in training_environment(request).items():
        lines += [f"# {noted.why}", f"export {name}={shlex.quote(noted.value)}"]
    return [
        *lines,
        "# torchrun's layout, and its rendezvous: the address by which Slurm itself reaches the first node",
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "PET_MASTER_ADDR=$(scontrol --oneliner show node \"$first\" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')",
        "export PET_MASTER_ADDR",
        f"export PET_MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS})) # differs between jobs that share a node",
        f"export PET_NNODES={request.nodes} PET_NPROC_PER_NODE={request.processes_per_node}",
    ]


def _body(request: LaunchRequest) -> list[str]:
    words = " ".join(shlex.quote(word) for word in request.command.words)
    cpus = "" if request.cpus is None else f" --cpus-per-task={request.cpus}"
    return [
        "asked=",
        "# Slurm sends a step's signal to every process of the step; only the node's shell listens to USR1.",
        "stop() {",
        "  asked=1",
        '  scancel --signal=USR1 "$SLURM_JOB_ID"',
        "}",
        "trap stop TERM",
        "",
        "# --wait: after a node ends, the other nodes may finish saving, but do not hang because of a lost peer",
        "# --cpu-bind: the ranks of a node share its task's cores",
        f"srun --kill-on-bad-exit=0 --wait={request.notice_s} --cpu-bind=none{cpus} \\",
        '  sh -c \'export PET_NODE_RANK=$SLURM_NODEID; script=$1; shift; exec sh -c "$script" node "$@"\' start \\',
        f'  "$node" {words} &',
        "step=$!",
        'until wait "$step"; code=$?; ! kill -0 "$step" 2>/dev/null; do :; done',
        "",
        "# Ranks fail when a peer is gone, long before Slurm notices that its node is gone: such a node cannot run "
        "`true`.",
        "is_node_lost() {",
        f"  ! timeout {PROBE_S} srun --overlap --nodes={request.nodes} --ntasks={request.nodes} true",
        "}",
        "",
        f"# {STOPPED_CODE}: a node was asked to stop. A run that failed on its own is not restarted.",
        f'if [ -n "$asked" ] || [ "$code" = {STOPPED_CODE} ] || {{ [ "$code" != 0 ] && is_node_lost; }}; then',
        "  trap '' TERM",
        "  # A job that was canceled, or that Slurm itself requeues, is no longer RUNNING: leave it to Slurm.",
        '  if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "  fi",
        "fi",
        'exit "$code"',
    ]
