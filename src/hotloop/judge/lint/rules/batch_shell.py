"""Checks of a batch script's shell code: exit codes, quotes, empty or unexported variables, environments, settings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintEdit, LintFinding, lint_rule
from hotloop.core.sbatch_options import OUTPUT_VARIABLES
from hotloop.judge.lint.formats.batch import Batch
from hotloop.judge.lint.launch_lines import read_launch

_HIGH, _MEDIUM, _LOW = Severity.HIGH, Severity.MEDIUM, Severity.LOW


@lint_rule("lost-exit-code", "Slurm reports a job as COMPLETED although training failed", reads="sbatch", is_proof=True)
def lost_exit_code(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training command whose exit code is lost through `tee` in a pipe, `|| true`, a later command, or a bare
    `wait`. Also looks for `$?` after a command where `set -e` has already ended the script.

    ## Why it costs
    Slurm, `afterok`, mail and requeues see a COMPLETED job, and the next job starts from a broken checkpoint.

    ## How to recognize it
    The script has a pipe without `set -o pipefail`; or it does not use `set -e`, and its last command, such as cp,
    rsync or rm, succeeds regardless.

    ## What to do
    Use `set -o pipefail`, `code=$?` right after the training command and `exit $code` at the end, and `wait "$pid"` for
    each process.

    ## When it is wrong
    Ignore the finding if a failed training run is meant to count as done.
    """
    keeps = batch.find(r"\$\?|PIPESTATUS|^\s*exit\s+[\"']?\$|wait\s+-n") or not batch.is_job or batch.is_set("e")
    is_watched = (
        re.search(r"FAIL|ALL", batch.value("mail-type")) or batch.option("requeue") or batch.option("dependency")
    )
    said = set[str]()
    for run in batch.trainings if batch.is_job else ():
        command = run.command
        after = [c for c in batch.commands if c.line > command.last_line and not c.blocks]
        last = after[-1].name if after else ""
        is_plain = not command.blocks and not command.before and not command.is_background
        span = range(command.last_line + 1, command.last_line + 3)
        status = [c.line for c in batch.commands if c.line in span and "$?" in c.text]
        pipe = next((c.line for c in batch.commands if c.line >= command.last_line and c.after in ("|", "|&")), 0)
        hidden = re.search(r"\|\|\s*(true|:|echo\b[^;&|\n]*)\s*$", batch.text, re.MULTILINE)
        is_weighty = is_watched or last in ("rsync", "cp", "rm", "mv", "tar")
        problems = (
            (command.before in ("|", "|&") and not (batch.is_set("pipefail") or "PIPESTATUS" in batch.text),
             _MEDIUM, "this pipe returns the exit code of its last command: a failed training run counts as COMPLETED"),
            (command.before == "||" and hidden, _MEDIUM, "after || the exit code is lost: failures count as COMPLETED"),
            (is_plain and not command.after and batch.is_set("e") and status and "set +e" not in batch.text,
             _HIGH if batch.find(r"\bsbatch\s|scontrol\s+requeue") else _MEDIUM,
             f"set -e ends the script where this fails: the check of $? on line {[*status, 0][0]} never runs"),
            (command.is_background and last == "wait" and not after[-1].arguments and not keeps, _LOW,
             "wait without a process id returns 0: a failed training run counts as COMPLETED"),
            ([trap for trap in batch.traps if "EXIT" in trap.signals and trap.runs(r"exit 0")], _MEDIUM,
             "the trap for EXIT ends with exit 0: a failed training run counts as COMPLETED"),
            (is_plain and last and not keeps, _MEDIUM if is_weighty else _LOW,
             f"the job ends with the exit code of {last!r}: a failed training run counts as COMPLETED"),
        )  # fmt: skip
        new = [(severity, text) for is_so, severity, text in problems if is_so and text not in said]
        for severity, message in new[:1]:
            said.add(message)
            yield LintFinding(
                severity=severity,
                line=pipe if command.before in ("|", "|&") and pipe else command.line,
                message=message,
                advice="set -o pipefail; code=$? (or || code=$?) right after the training command, and exit $code at "
                "the end",
            )


@lint_rule("unwaited-background", "the script ends while training still runs in the background", reads="sbatch")
def unwaited_background(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a training command that is started with `&`, `nohup ... &`, `screen -d` or `tmux new -d` and has no `wait`
    after it.

    ## Why it costs
    The job ends with its script, and Slurm kills every process that is still running: training ends within a second.

    ## How to recognize it
    No `wait`, `tail --pid`, `fg` or loop that checks the process follows the command.

    ## What to do
    Add `wait` as the last command, or remove the `&`.

    ## When it is wrong
    Ignore the finding if another command in the foreground runs longer.
    """
    starts = [run.command for run in batch.trainings if run.command.is_background] + batch.find(
        r"^\s*(screen|tmux)\s.*\s-d"
    )
    ends = batch.find(r"^\s*(wait\b|fg\b|tail\s|sleep\s|while\b)|kill\s+-0|--wait\b")
    later = [run.line for run in batch.runs if run.launch and not run.command.is_background]
    if batch.is_job and starts and not ends and max(later, default=0) < starts[-1].line:
        yield LintFinding(
            severity=_HIGH,
            line=starts[-1].line,
            message="no wait follows: the job ends with its script, and Slurm kills this process at once",
            advice="add wait as the last command",
        )


_GIVEN_BY = {
    f"SLURM_{name.replace('-', '_').upper()}": name
    for name in (
        "gpus-per-node",
        "gpus",
        "gpus-per-task",
        "ntasks-per-node",
        "cpus-per-task",
        "cpus-per-gpu",
        "mem-per-cpu",
    )
}
"""Variables that Slurm sets only where the option is given. Those of arrays are left out, since --array is given on the
command line just as often."""


@lint_rule(
    "unset-slurm-variable",
    "a Slurm variable is empty: its option is not given, or its name is wrong",
    reads="sbatch",
)
def unset_slurm_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the `SLURM_` variables of a script with those that Slurm sets, and with the options that set them.

    ## Why it costs
    Without `--gpus-per-node`, `--nproc-per-node=$SLURM_GPUS_PER_NODE` passes an empty value: the launcher refuses it,
    or a number computed from it is wrong.

    ## How to recognize it
    Slurm sets SLURM_GPUS_PER_NODE, SLURM_NTASKS_PER_NODE, SLURM_CPUS_PER_TASK, SLURM_ARRAY_TASK_ID and a few others
    only with the option of that name. Any other name that is close to a known name counts as misspelled.

    ## What to do
    Give the option, use SLURM_GPUS_ON_NODE, or set a default: `${SLURM_CPUS_PER_TASK:-8}`.

    ## When it is wrong
    Ignore the finding if the option is given on sbatch's command line.
    """
    seen = {name for command in batch.commands for name, _ in command.assignments}
    for command in batch.commands if batch.is_job and "SLURM_" in batch.text else ():
        is_shown = command.name in ("echo", "printf", "[", "[[", "test") or "condition" in command.blocks
        names = () if is_shown else re.findall(r"(?<!\\)\$\{?(SLURM_\w+)\b(?!:?[-+=?])", command.text)
        for name in dict.fromkeys(name for name in names if name not in seen):
            option = _GIVEN_BY.get(name, "")
            is_known = option or name in OUTPUT_VARIABLES
            near = [] if is_known else difflib.get_close_matches(name, sorted(OUTPUT_VARIABLES), n=1, cutoff=0.85)
            seen.add(name)
            if near or (option and not batch.option(option)):
                yield LintFinding(
                    severity=_MEDIUM if name == "SLURM_CPUS_PER_TASK" else _HIGH,
                    line=command.line,
                    message=f"{name} is empty: " + (f"Slurm sets {near[0]}" if near else f"the job has no --{option}"),
                    advice=near[0] if near else f"#SBATCH --{option}=..., or a default: ${{{name}:-...}}",
                    confidence=Confidence.LIKELY,
                )


_FOR_RANKS = re.compile(r"MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK")
_READ_BY_PROGRAMS = re.compile(
    r"CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|MKL_NUM_THREADS|NCCL_(DEBUG|SOCKET_IFNAME|P2P_\w+|IB_\w+|NET\w*|TIMEOUT|ALGO)|"
    r"HF_(HOME|TOKEN|HUB_\w+|DATASETS_\w+)|WANDB_(MODE|API_KEY|PROJECT|DIR)|TRANSFORMERS_(CACHE|OFFLINE)|PYTHON(PATH|UNBUFFERED)|"
    r"PYTORCH_\w*ALLOC_CONF|TORCH_(HOME|DISTRIBUTED_DEBUG|NCCL_\w+)|TOKENIZERS_PARALLELISM"
)


@lint_rule("unexported-variable", "a variable that programs read is not exported", reads="sbatch")
def unexported_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `MASTER_ADDR=...`, `OMP_NUM_THREADS=...` or `NCCL_...=...` on a line of its own, without `export`, and for
    `export` with blanks around `=`.

    ## Why it costs
    Only exported variables reach the training process: `init_process_group` fails because MASTER_ADDR is missing, and
    settings have no effect.

    ## How to recognize it
    torch, NCCL, CUDA, OpenMP, Hugging Face or wandb read the name, the script neither exports it later nor uses it
    itself, and `set -a` is off.

    ## What to do
    Write `export MASTER_ADDR=...` instead of `MASTER_ADDR=...`.

    ## When it is wrong
    Ignore the finding if the caller's environment already exports a variable of that name.
    """
    has_plain = any(run.launch and run.launch.launcher == "python" and run.step for run in batch.runs)
    for command in batch.commands if batch.runs else ():
        for name, _ in command.assignments if not command.words and not batch.is_set("a") else ():
            is_rank = _FOR_RANKS.fullmatch(name)
            is_read = (is_rank and has_plain) or _READ_BY_PROGRAMS.fullmatch(name)
            uses = rf"\$\{{?{name}\b|export\s[^\n;]*\b{name}\b|declare\s+-\w*x\w*\s[^\n]*\b{name}\b"
            if is_read and not re.search(uses, batch.text):
                yield LintFinding(
                    severity=_HIGH if is_rank else _LOW if name.endswith("_OFFLINE") else _MEDIUM,
                    line=command.line,
                    message=f"{name} is not exported: no program that this script starts gets it",
                    advice=f"export {name}=...",
                )
        words = [word.text for word in command.words if word.text != "export"]
        if words[1:2] == ["="] and not command.words[-len(words) + 1].quote and re.fullmatch(r"[A-Za-z_]\w*", words[0]):
            used = any(f"${words[0]}" in run.command.text.replace("{", "") for run in batch.trainings)
            yield LintFinding(
                severity=_HIGH if used or batch.is_set("e") else _LOW,
                line=command.line,
                message=f"{words[0]} is not set: the shell takes no blanks around =",
                advice=f"{words[0]}={''.join(words[2:])}",
            )


_OF_JOB = re.compile(r"(?<!\\)\$\{?(SLURM_(?!SUBMIT|CPUS_PER|CLUSTER)\w+)")


@lint_rule("literal-variable", "quotes keep a variable from being expanded, or expand it too early", reads="sbatch")
def literal_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `'$NAME'` in the words of a training command, and for `sbatch --wrap "..."` and `sbatch <<EOF` that expand
    a variable of the job at submission.

    ## Why it costs
    The program gets the five characters `$NAME`, or a submitted job gets an empty value instead of its own id.

    ## How to recognize it
    The script has single quotes (or a backslash) around a variable that it sets; or it is not itself a job, and has
    double quotes or an unquoted heredoc around `$SLURM_...`.

    ## What to do
    Use double quotes where this shell should expand the variable, and single quotes or `\\$` (`<<'EOF'`) where the job
    should.

    ## When it is wrong
    Ignore the finding if the program itself expands variables.
    """
    names = {name for command in batch.commands for name, _ in command.assignments}
    is_later = re.search(r"eval\s|envsubst|sh -l?c\b", batch.text)
    for command in batch.commands:
        quoted = [word for word in command.words if word.is_literal and " " not in word.text and "$" in word.text]
        launch = read_launch([word.text for word in command.words]) if quoted and not is_later else None
        literal = [(match, word) for word in quoted if launch and (match := re.search(r"\$\{?(\w+)", word.text))]
        for match, word in [(m, w) for m, w in literal if m[1] in names or m[1].startswith("SLURM_")][:1]:
            yield LintFinding(
                severity=_HIGH,
                line=command.line,
                message=f"{word.raw} is passed literally: the quotes keep the shell from expanding ${match[1]}",
                advice=f'write "{word.text}"',
            )
        wrapped = [word.raw for word in command.words if '"' in word.raw and "--wrap" in command.text]
        texts = wrapped + ([command.heredoc] if command.heredoc and not command.is_quoted_heredoc else [])
        for found in [m for text in texts if (m := _OF_JOB.search(text)) and m[1] not in names and not batch.is_job][
            :1
        ]:
            yield LintFinding(
                severity=_HIGH,
                line=command.line,
                message=f"${found[1]} is expanded when the job is submitted, and is empty there",
                advice=f"\\${found[1]}, single quotes, or <<'EOF'",
            )


@lint_rule("broken-continuation", "a command ends before its last lines", reads="sbatch")
def broken_continuation(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a line that begins with an option and runs as a separate command.

    ## Why it costs
    The command above runs with defaults instead of these options; then the shell reports "command not found".

    ## How to recognize it
    The line above has no backslash at its end, a space follows the backslash, or a comment or an empty line is between
    continued lines.

    ## What to do
    End each line except the last with a backslash and nothing after it; move comments out.

    ## When it is wrong
    Ignore the finding if hotloop's parser misreads the script.
    """
    lines = batch.text.split("\n")
    for command in batch.commands:
        if re.match(r"--?[a-zA-Z]", command.name) and not command.after and "substitution" not in command.blocks:
            yield LintFinding(
                severity=_HIGH,
                line=command.line,
                message=f"{command.name} is a separate command here: the command above runs without it",
                advice="end the line above with a backslash, with no comment, space or empty line between",
            )
        span = range(command.line, command.last_line + 1) if command.words else ()
        for line in [at for at in span if re.search(r"\\[ \t]+$", lines[at - 1])]:
            end = len(lines[line - 1]) + 1
            start = len(lines[line - 1].rstrip()) + 1
            edit = LintEdit(first_line=line, first_column=start, last_line=line, last_column=end, text="")
            yield LintFinding(
                severity=_HIGH,
                line=line,
                message="a space follows the backslash: the command ends here, and runs without its next lines",
                advice="remove the space",
                edits=(edit,),
            )


_HOOK = re.compile(
    r"conda\.sh|shell\.\w+\s+hook|mamba\.sh|conda\s+init|^module\s+(load|add)|^ml\s|^source\s|^\.\s|^eval\s"
)
"""Commands that may define the function ``conda``."""


_LOADS_PYTHON = re.compile(r"(?i)(module|ml)\s+(load\s|add\s)?.*\b(python|\w*conda\w*|pytorch)\b")


@lint_rule("unusable-activation", "the job uses a different environment from the activated environment", reads="sbatch")
def unusable_activation(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `conda activate` without conda's hook, a `module load` or `module purge` of Python after an environment
    was activated, and `set -u` while conda activates.

    ## Why it costs
    A batch shell does not read .bashrc: `conda activate` fails, and the job continues with another Python that lacks
    torch. A module that is loaded after an environment comes first in PATH.

    ## How to recognize it
    No command above sources `conda.sh`, evaluates `conda shell.bash hook`, or loads a module, and the script's first
    line has no `-l`.

    ## What to do
    Use `source "$(conda info --base)/etc/profile.d/conda.sh"` before `conda activate`; load modules first, then
    activate environments.

    ## When it is wrong
    Ignore the finding if the site defines a function `conda` for batch shells.
    """
    active = is_hooked = 0
    activates = r"((source|\.|conda|mamba)\s.*\bactivate\b|export PATH=|PATH=)"
    last = max((one.line for one in batch.commands if re.match(activates, one.text.strip())), default=0)
    is_login = re.match(r"#!.*(\s-\w*[li]|--login)", batch.text)
    for command in batch.commands if batch.is_job and "activate" in batch.text else ():
        text = command.text.strip()
        is_conda = re.match(r"(conda|mamba|micromamba)\s+activate\s+(?!\S*(your|<))", text)
        problems = (
            (is_conda and not is_login and not is_hooked, _HIGH,
             f"{text[:50]!r} fails in a batch shell: conda's hook is not loaded, and another Python runs"),
            (active and command.line > last and _LOADS_PYTHON.match(text), _HIGH,
             f"{text[:50]!r} after the environment of line {active}: the module's Python comes first in PATH"),
            (is_conda and batch.is_set("u") and "set +u" not in batch.text, _LOW,
             "conda's scripts read unset variables: with set -u they may end the job"),
        )  # fmt: skip
        for severity, message in [(severity, text) for is_so, severity, text in problems if is_so][:1]:
            yield LintFinding(
                severity=severity,
                line=command.line,
                message=message,
                advice='source "$(conda info --base)/etc/profile.d/conda.sh" first; modules before environments',
                confidence=Confidence.LIKELY,
            )
        is_hooked = is_hooked or bool(_HOOK.search(text[:500]))
        active = command.line if is_conda or re.match(r"(source|\.)\s+(\S*/)?activate\b", text) else active


_COSTLY: tuple[tuple[str, str, Severity, str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", "1", _MEDIUM, "the host waits for each kernel: steps are tens of percent slower", ""),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", _MEDIUM, "every collective is first checked on all ranks", ""),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", _HIGH, "each tensor is a cudaMalloc, which waits for the GPU", ""),
    ("NCCL_P2P_DISABLE", "1", _MEDIUM, "GPUs exchange gradients through the host's memory, not NVLink", "gpus"),
    ("NCCL_P2P_LEVEL", "LOC|0", _MEDIUM, "GPUs exchange gradients through the host's memory, not NVLink", "gpus"),
    ("NCCL_SHM_DISABLE", "1", _MEDIUM, "GPUs of a node exchange gradients over the network", "gpus"),
    ("NCCL_IB_DISABLE", "1", _MEDIUM, "nodes exchange gradients over TCP instead of InfiniBand", "nodes"),
    ("NCCL_NET", "Socket", _MEDIUM, "nodes exchange gradients over TCP instead of InfiniBand", "nodes"),
    ("NCCL_SOCKET_IFNAME", "lo", _HIGH, "nodes look for each other on the loopback interface", "nodes"),
    ("GLOO_SOCKET_IFNAME", "lo", _HIGH, "nodes look for each other on the loopback interface", "nodes"),
    ("NCCL_MAX_NCHANNELS NCCL_MAX_CTAS", "[12]", _MEDIUM, "collectives use only part of the links", "gpus"),
    ("NCCL_BLOCKING_WAIT TORCH_NCCL_BLOCKING_WAIT", "1", _MEDIUM,
     "the host waits for each collective, and does not overlap it with the backward pass", "gpus"),
    ("NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", _MEDIUM,
     "a rank that fails leaves the others waiting until the job's time limit", "gpus"),
    ("NVIDIA_TF32_OVERRIDE", "0", _MEDIUM, "no matrix product uses TF32, whatever the script asks for", ""),
    ("HIP_LAUNCH_BLOCKING AMD_SERIALIZE_KERNEL", "[123]", _MEDIUM, "the host waits for each kernel", ""),
    ("NCCL_DEBUG", "TRACE|INFO", _LOW, "each rank logs each communicator and call", ""),
    ("TORCH_CPP_LOG_LEVEL", "INFO", _LOW, "each collective is logged", ""),
    ("HF_HOME TORCH_HOME HF_DATASETS_CACHE TRANSFORMERS_CACHE XDG_CACHE_HOME",
     r"(~|\$\{?HOME\}?|/home/\w+)(/\.?cache\S*)?", _LOW, "caches of many GB fill the home folder's quota", ""),
    ("PATH", r"(?!.*\$\{?PATH)(?!.*\$\()(?!(.*:)?/usr/bin\b)/.*", _HIGH,
     "the old PATH is lost: the shell finds no command", ""),
)  # fmt: skip
"""Variables, values, severity, the effect, and what the job must have for it: several GPUs or nodes."""
_COSTLY_BY_NAME = {
    name: [other[1:] for other in _COSTLY if name in other[0].split()] for row in _COSTLY for name in row[0].split()
}


_MEANT = re.compile(r"(?i)#.*(do not remove|workaround|work around|hangs?\b|deadlock|crash)")
"""Comments of a line that is not left over: it is needed."""


@lint_rule("costly-setting", "an environment variable slows down or breaks training", reads="sbatch", is_proof=True)
def costly_setting(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for CUDA, NCCL, torch and Hugging Face settings that were left over from debugging.

    ## Why it costs
    Synchronous launches, checked collectives, and gradients over TCP make each step tens of percent slower.

    ## How to recognize it
    The variable is set to such a value; for some variables, the job must also have several GPUs or nodes.

    ## What to do
    Remove the line, or set it only in a debugging job.

    ## When it is wrong
    Ignore the finding if the hardware needs the setting because it has no NVLink, no InfiniBand, or a faulty driver.
    """
    lines = ["", *batch.text.split("\n")]
    is_rdma = batch.nodes == 1 or not re.search(r"\befa\b|fi_provider|fastrak|tcpx|fi_efa", batch.text.lower())
    for command in batch.commands if batch.trainings else ():
        for name, word in command.assignments:
            for value, severity, effect, needs in _COSTLY_BY_NAME.get(name, ()):
                is_needed = {"gpus": batch.gpus_per_node != 1, "nodes": batch.nodes > 1 and is_rdma, "": True}[needs]
                is_meant = re.search(_MEANT, "\n".join(lines[max(0, command.line - 2) : command.line + 1]))
                if is_needed and not is_meant and re.fullmatch(f"['\"]?({value})['\"]?", word.raw, re.I):
                    yield LintFinding(
                        severity=severity,
                        line=command.line,
                        message=f"{name}={word.text}: {effect}",
                        advice=f"remove {name}",
                    )


@lint_rule("lost-environment", "tasks under srun do not get the script's environment", reads="sbatch")
def lost_environment(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `#SBATCH --export=NONE` (or a list) with srun, and for `srun --export=NAME` and `sbatch --export=NAME`
    without `ALL`.

    ## Why it costs
    srun takes `--export` from the job: no variable that the script exports, including PATH, reaches the tasks.

    ## How to recognize it
    The value has no ALL, `SLURM_EXPORT_ENV` is not unset, and srun has no `--export=ALL`.

    ## What to do
    Use `unset SLURM_EXPORT_ENV` in the script, or `srun --export=ALL,NAME=1`.

    ## When it is wrong
    Ignore the finding if a task sets up its own environment.
    """
    exports = [one for one in batch.commands if one.name == "export" and one.assignments]
    for command in batch.script.named("sbatch") if exports else ():
        lost = next((word for word in command.arguments if word.startswith("--export=")), "ALL").removeprefix(
            "--export="
        )
        names = [name for one in exports for name, _ in one.assignments if one.line < command.line and name not in lost]
        used = [name for name in names if re.search(rf"\$\{{?{name}\b", command.text)] or names
        if names and not re.search(r"\bALL\b|\$|NIL", lost):
            yield LintFinding(
                severity=_HIGH,
                line=command.at("--export=").line,
                message=f"--export={lost[:40]} without ALL: {', '.join(used[:3])} and the rest are empty in the job",
                advice=f"--export=ALL,{lost[:40]}",
                confidence=Confidence.CERTAIN if used is not names else Confidence.LIKELY,
            )
    job = batch.value("export") if "SLURM_EXPORT_ENV" not in batch.text else ""
    for run in batch.trainings:
        lost = run.step_options.get("export", "") or job
        sets_up = run.words[0].startswith("/") or (run.launch and run.launch.prefixes) or run.inner is not run.command
        if run.step == "srun" and lost and "ALL" not in lost and "$" not in lost and not sets_up:
            yield LintFinding(
                severity=_HIGH,
                line=run.line,
                message=f"--export={lost}: srun's tasks get neither PATH nor this script's exports",
                advice="srun --export=ALL,..., or unset SLURM_EXPORT_ENV",
            )


_FOREVER = "never ends: holds the job's GPUs until the time limit"
_FAULTS: tuple[tuple[str, Severity, str, str], ...] = (
    (r"^[ \t]*(sleep\s+(?:infinity|inf|\d+d|\d{6,})\s*$)", _HIGH, _FOREVER, "end the script"),
    (r"^[ \t]*(while\s+(?:true|:)\s*;?\s*do\s+sleep\s+\S+\s*;?\s*done\s*$)", _HIGH, _FOREVER, "end the script"),
    (r"^[ \t]*(tail\s+-\w*[fF]\w*\s(?!.*--pid)[^&\n]*$)", _HIGH, _FOREVER, "tail --pid"),
    (r"^[ \t]*(srun\s[^\n]*--pty\b)", _HIGH, "a batch job has no terminal: srun --pty fails, or waits", "use srun "
        "without --pty"),
    (r"\A(?![\s\S]*(?:SLURM_SUBMIT_DIR|scontrol show job))[\s\S]*?^"
     r"[^#\n]*?((?:dirname|realpath|readlink)\b[^\n]{0,40}(?:\$0|\$\{?BASH_SOURCE))",
     _HIGH, "sbatch runs a copy in /var/spool/slurmd: this is not the script's folder", "$SLURM_SUBMIT_DIR"),
    (r"\A#!\s*/bin/sh\b[^\n]*\n(?:[\s\S]*?\n)??[ \t]*(\[\[\s|source\s|\w+=\(|function\s+\w+)", _MEDIUM,
     "is bash, and the first line asks for sh: where sh is dash, it fails", "#!/bin/bash"),
)  # fmt: skip
"""Pattern of the text, severity, the effect, and what to do."""


@lint_rule("batch-job-misuse", "a command does something else in a batch job than at a terminal", reads="sbatch")
def batch_job_misuse(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for commands that never end (`sleep infinity`, `tail -f`), commands that need a terminal (`srun --pty`), and
    folders found by `$0`.

    ## Why it costs
    The job holds its GPUs until the time limit, or the script looks for its files in Slurm's spool folder and fails.

    ## How to recognize it
    The command runs in the foreground of a script with `#SBATCH` lines. Slurm runs a copy of the script.

    ## What to do
    Remove the command, or use `$SLURM_SUBMIT_DIR` for the folder.

    ## When it is wrong
    Ignore the finding if the script is only ever run by hand.
    """
    for pattern, severity, effect, advice in _FAULTS if batch.is_job else ():
        for match in re.finditer(pattern, batch.text, re.MULTILINE):
            line = batch.text.count("\n", 0, match.start(1)) + 1
            yield LintFinding(
                severity=severity,
                line=line,
                message=f"{match[1][:50].strip()!r}: {effect}",
                advice=advice,
                confidence=Confidence.LIKELY,
            )


@lint_rule("unsafe-removal", "a removal deletes / if a variable is empty", reads="sbatch")
def unsafe_removal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `rm -rf $NAME/*` and `rm -rf "$NAME/"`, where the script does not set NAME, and for `cd` without a check
    before `rm -rf *`.

    ## Why it costs
    If the variable is empty, the command deletes everything under / that the user may delete.

    ## How to recognize it
    The path begins with a variable that the script does not assign and that has no default (`${NAME:?}`), and `set -u`
    is off.

    ## What to do
    Use `rm -rf "${NAME:?}"/*`, and `cd "$NAME" || exit 1`.

    ## When it is wrong
    Ignore the finding if the site always sets the variable.
    """
    known = {name for command in batch.commands for name, _ in command.assignments} | {"HOME", "USER", "PWD"}
    for at, command in enumerate(batch.commands):
        before = batch.commands[at - 1] if at else command
        targets = [word.replace('"', "") for word in command.arguments] if command.name == "rm" else []
        empty = [m for word in targets if (m := re.match(r"\$\{?(\w+)\}?/(\*|$)", word)) and m[1] not in known]
        is_blind = before.name == "cd" and not before.before and {"*", "./*"} & set(targets) and not batch.is_set("e")
        problems = (
            (
                empty and not batch.is_set("u"),
                f"{command.text[:60]!r} becomes rm -rf / where {[m[1] for m in empty]} is empty",
            ),
            (is_blind, f"deletes the files of another folder if the cd on line {before.line} fails"),
        )
        for message in [text for is_so, text in problems if is_so and re.search(r"\s-\w*r", command.text)]:
            yield LintFinding(
                severity=_HIGH,
                line=command.line,
                message=message,
                advice='rm -rf "${NAME:?}"/*, and cd ... || exit 1',
                confidence=Confidence.LIKELY,
            )
