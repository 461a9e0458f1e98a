"""Checks of the end of a job: who gets the signal before the limit, what a trap can still do, and restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.core.save_notice import find_notice_s
from hotloop.judge.lint.formats.batch import BY_START, OUTPUT, Batch

_ENDS = {"EXIT", "ERR", "DEBUG", "RETURN", "0"}
"""Names that a trap may have that are not signals."""


@lint_rule("trap-behind-foreground", "a trap runs only after training has ended", reads="sbatch")  # words: ok
def trap_behind_foreground(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `trap` for a signal in a script whose training command runs in the foreground.

    ## Why it costs
    A shell runs a trap only after its foreground command has ended. The signal arrives in time, but nothing happens
    until the job is killed: all work since the last checkpoint is lost.

    ## How to recognize it
    The script traps the signal of `--signal=B:...` (or TERM or USR1, as at preemption), and then starts srun,
    torchrun or Python without `&` and `wait`.

    ## What to do
    Start the training command with `&`, keep its process id, pass the signal on to it in the trap, and then `wait`.

    ## When it is wrong
    Ignore the finding if the trap only submits the job again after training has ended on its own.
    """
    for trap in batch.traps if batch.is_job else ():
        is_asked = batch.signal is not None and batch.signal[2] and batch.signal[0] in trap.signals
        starts = batch.trainings or (tuple(run for run in batch.runs if run.step or run.launch) if is_asked else ())
        runs = [run for run in starts if run.line > trap.line and not run.command.is_background]
        saves = trap.runs(r"^\s*(kill|touch|scancel|sbatch|pkill)\b|requeue")  # no cleanup of files
        if runs and (is_asked or (trap.signals & {"TERM", "USR1", "USR2"} and saves)):
            yield LintFinding(
                severity=Severity.HIGH if is_asked else Severity.MEDIUM,
                line=trap.line,
                message=f"bash runs this trap only after the foreground command on line {runs[0].line} has ended: "
                "nothing is saved before the job is killed",
                advice="start that command in the background with &, pass the signal on to it in the trap, then wait",
                confidence=Confidence.CERTAIN if is_asked else Confidence.LIKELY,
            )


@lint_rule("save-cut-by-trap", "a trap cuts short the save that it asks for", reads="sbatch")
def save_cut_by_trap(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks at traps that pass a signal on: checks whether the script waits again afterward, and whether srun gets TERM.

    ## Why it costs
    A trapped signal ends `wait` at once: the script runs to its end, and Slurm kills whatever is left. In addition,
    srun takes TERM as "end the step now" and kills its tasks with KILL; it passes on USR1 and USR2.

    ## How to recognize it
    The script has a single `wait` outside a loop, and a trap that does not wait, sleep or exit. Or the trap runs `kill
    $pid` (TERM by default), and the last command with `&` is an srun.

    ## What to do
    Use `wait "$pid"` again after the `kill`. For srun, use `scancel --signal=TERM "$SLURM_JOB_ID"` or `kill -USR1
    "$pid"`.

    ## When it is wrong
    Ignore the finding if the program needs no time to save after the signal.
    """
    waits = [command for command in batch.script.named("wait") if "function" not in " ".join(command.blocks)]
    steps = [run.command for run in batch.runs if run.step == "srun" and run.command.is_background]
    lines = batch.text.split("\n")
    after = ["\n".join(lines[step.last_line - 1 : step.last_line + 2]) for step in steps]
    kept = [match[1] for text in after if (match := re.search(r"(\w+)\+?=\(?[\"']?\$!", text))]
    is_step = re.compile(
        rf"kill\s+(-(s\s+)?(SIG)?(TERM|HUP|QUIT|15)\s+)?[\"']?-?\$\{{?(!|\(jobs|{'|'.join(kept) or '!'})(?!\w)"
    )
    for trap in batch.traps if batch.is_job else ():
        passes = [command for command in trap.commands if re.match(r"(kill|pkill|scancel|touch)\b", command.text)]
        ends = passes and is_step.match(passes[0].text)  # a later kill ends the processes that did not save
        stays = trap.runs(r"^\s*(wait|sleep|exit|exec|tail)\b|scontrol\s+requeue")
        problems = (
            (ends and steps, "srun forwards this signal to its tasks as KILL (man srun): no save runs"),
            (not stays and len(waits) == 1 and "loop" not in waits[0].blocks, "then the only wait returns at once: "
             "the script ends, and the background training is killed during its save"),
        )  # fmt: skip
        message = next((text for is_so, text in problems if is_so and passes and not trap.signals <= _ENDS), "")
        if message:
            yield LintFinding(
                severity=Severity.HIGH,
                line=passes[0].line,
                message=message,
                advice='kill -USR1 "$pid" (or scancel --signal=TERM "$SLURM_JOB_ID" for srun), and wait "$pid" again',
            )


@lint_rule("undelivered-signal", "the signal before the time limit does not reach its handler", reads="sbatch")
def undelivered_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares `--signal` with its possible handlers: a `trap` of the batch script, or programs that srun started.

    ## Why it costs
    The last save never runs, and all work since the last checkpoint has to be repeated.

    ## How to recognize it
    With `B:`, only the batch shell gets the signal; without it, only the programs that srun starts get it. The severity
    is high if `B:` is set but the script has no `trap` for that signal; if `B:` is missing and the trap is in the batch
    shell, or nothing runs under srun; or if srun starts a script, torchrun or accelerate (which pass on only TERM, INT,
    HUP and QUIT).

    ## What to do
    Use `--signal=B:USR1@300` with a `trap` that passes it on to a background process or creates a file that the
    training script looks for, or `--signal=USR1@300` with an srun that starts one Python process per rank.

    ## When it is wrong
    Ignore the finding if a program that the script starts, such as submitit, installs the handler.
    """
    name, _, is_for_shell = batch.signal or ("", 0, False)
    trapped = frozenset[str]().union(*(trap.signals for trap in batch.traps)) - _ENDS
    steps = [run for run in batch.runs if run.step and run.launch]
    launchers = [run for run in steps if run.launch and run.launch.launcher in ("torchrun", "accelerate")]
    inner = [run.line for run in batch.runs if run.step and run.inner is not run.command]
    is_shell = any(inner.count(run.line) > 1 and "exec" not in run.command.text for run in steps)
    catches = "TORCHELASTIC_SIGNALS_TO_HANDLE" in batch.text
    problems = (
        (is_for_shell and not batch.traps and not batch.script.named("source", "."), "it has no trap for this signal"),
        (is_for_shell and trapped and name not in trapped, f"its traps are for {', '.join(sorted(trapped))}"),
        (not is_for_shell and name in trapped, "without B:, only programs under srun get it: the trap here never runs"),
        (not is_for_shell and batch.trainings and not [run for run in batch.runs if run.step],
         "without B:, only programs under srun get it, and nothing here runs under srun"),
        (not is_for_shell and launchers and name not in PASSED_ON and not catches,
         "it ends the launcher under srun, which does not pass it on to the training processes"),
        (not is_for_shell and is_shell and not launchers and "trap" not in batch.text,
         "the shell that srun starts gets it, but Python does not"),
    )  # fmt: skip
    problem = next((text for is_so, text in problems if is_so), "")
    if batch.signal and problem and not batch.find(r"\bsubmitit\b|^\s*exec\s"):
        yield LintFinding(
            severity=Severity.HIGH,
            line=batch.line("signal"),
            message=f"{name} reaches {'only the batch shell' if is_for_shell else 'only the steps'}: {problem}",
            advice="with B:, trap that signal in this script; without B:, let srun start the training process directly",
        )


PASSED_ON = frozenset({"TERM", "INT", "HUP", "QUIT"})
"""The signals that torchrun passes on to the processes that it started (torch/distributed/elastic/multiprocessing)."""


@lint_rule("late-signal", "the signal before the time limit comes too late for a save", reads="sbatch")
def late_signal(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the seconds in `--signal=...@SECONDS` with the time that a checkpoint takes (given by `--save-seconds`, or
    by a comment such as "a save takes 40 s"), with the time that the trap sleeps, and with Slurm's own precision.

    ## Why it costs
    The job is killed in the middle of the save: the work since the last checkpoint is lost, and perhaps the checkpoint
    file too.

    ## How to recognize it
    The time between the warning and the limit is shorter than the save or the trap takes, or shorter than 30 s.

    ## What to do
    Ask for the signal at twice the time of a save plus 10 s before the end, as `hotloop launch` does.

    ## When it is wrong
    Ignore the finding if the stated time is not that of the save that the handler runs.
    """
    name, seconds, is_for_shell = batch.signal or ("", 0, False)
    parts = [command.text for trap in batch.traps for command in trap.commands]
    sleep_s = sum(int(match[1]) for text in parts if (match := re.match(r"sleep (\d+)$", text)))
    problems = (
        (batch.save_s is not None and seconds < batch.save_s, f"a save takes {batch.save_s or 0:g} s", batch.save_s),
        (is_for_shell and sleep_s > seconds, f"the trap sleeps {sleep_s} s", sleep_s),
        (seconds < 30, "Slurm itself may be up to 60 s late", 60),
        (seconds >= (batch.limit_s or 1 << 40), f"the job has only {batch.limit_s} s: it comes at the start", 60),
    )
    problem, needed = next(((text, need) for is_so, text, need in problems if is_so), ("", 0))
    if batch.signal and problem:
        yield LintFinding(
            severity=Severity.HIGH,
            line=batch.line("signal"),
            message=f"the signal comes {seconds} s before the end, and {problem}",
            advice=f"--signal={'B:' if is_for_shell else ''}{name}@{find_notice_s(needed or 60)}",
        )


_RESUMES = re.compile(
    r"(?i)resum|restart|ckpt|checkpoint|latest|auto[-_]?load|\bload\b|continu|last\b|recover|save_dir"
)


@lint_rule("restart-from-scratch", "a requeued job cannot continue where it stopped, or does not", reads="sbatch")
def restart_from_scratch(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks at jobs that are requeued. Checks whether Slurm allows it (`--no-requeue`, the id of the entire array),
    whether the command resumes from a checkpoint, whether the script deletes its checkpoints first, and whether the
    script requeues the job even after success.

    ## Why it costs
    Each start begins at step 0, so the job never gets further than one time limit allows; or Slurm refuses the requeue.

    ## How to recognize it
    Neither the script nor the Python file next to it mentions a checkpoint or resuming; `rm -rf` names the command's
    output folder; or `scontrol requeue` is not under a condition. The severity is low if only `--requeue` is missing.

    ## What to do
    Use `--resume latest` or the script's own option; delete nothing that the next start needs.

    ## When it is wrong
    Ignore the finding if the program finds its checkpoint without an option.
    """
    requeues = [one for one in batch.script.named("scontrol") if one.arguments[:1] == ("requeue",)]
    runs = batch.trainings if batch.option("requeue") or requeues else ()
    code = " ".join([command.text for command in batch.commands] + [batch.read_script(run) for run in runs])
    problems = [(run.line, Severity.MEDIUM, "a requeue starts training from scratch: no --resume") for run in runs[:1]]
    found = [] if _RESUMES.search(code) else problems
    for command, folder in batch.deletions if runs or batch.resubmits else ():
        found += [(command.line, Severity.HIGH, f"deletes {folder}, from which the requeued job should resume")]
    for command in batch.script.named("mkdir") if runs and batch.is_set("e") else ():
        is_checked = command.blocks or command.before or command.after or re.search(r"\s-\w*p|RESTART", command.text)
        if not is_checked and not any(BY_START.search(part) for part in batch.trace(command.text)):
            found += [
                (
                    command.line,
                    Severity.HIGH,
                    f"{command.text[:50]!r} fails at the second start, when the folder exists: set -e ends the job",
                )
            ]
    for run in runs:
        pair = run.argument(OUTPUT)
        if pair and _RESUMES.search(run.inner.text) and any(BY_START.search(part) for part in batch.trace(pair[1])):
            found += [
                (
                    batch.line_of(run, pair[0]),
                    Severity.HIGH,
                    f"{pair[0]} is another folder at each start: a requeued job finds no checkpoint to resume from",
                )
            ]
    for command in requeues:
        is_last = (
            not command.blocks and not command.after and not any(c.name == "exit" and c.after for c in batch.commands)
        )
        is_whole = re.search(r"SLURM_ARRAY_JOB_ID\}?\"?$", command.text)
        problems = [
            (command.line, Severity.HIGH, "scontrol requeue is refused: the job has --no-requeue"),
            (command.line, Severity.HIGH, "requeues every task of the array, including those that run or are done"),
            (command.line, Severity.HIGH, "requeues even after success: the job never ends"),
            (command.line, Severity.LOW, "refused on a cluster with JobRequeue=0: the job has no --requeue"),
        ]
        flags = (batch.option("no-requeue"), is_whole, is_last, not batch.option("requeue"))
        found += [problem for problem, is_so in zip(problems, flags, strict=True) if is_so and batch.is_job][:1]
    for line, severity, message in found:
        yield LintFinding(
            severity=severity,
            line=line,
            message=message,
            advice="resume from the latest checkpoint, and requeue only if training is not finished",
            confidence=Confidence.LIKELY,
        )


@lint_rule("broken-dependency", "a job that depends on another never starts", reads="sbatch")
def broken_dependency(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks at `sbatch --dependency` for an id that is taken from sbatch's full output, and for `afterok` between parts of
    one training run.

    ## Why it costs
    `Submitted batch job 123` is not an id, and sbatch refuses the job. A part of a run that ends at its time limit has
    not ended successfully: with `afterok`, the next part waits forever.

    ## How to recognize it
    The output of `$(sbatch ...)` without `--parsable`, `awk`, `cut` or the like is used in `--dependency`; or `afterok`
    names the previous part in a loop that submits one script, or names the job itself.

    ## What to do
    Use `id=$(sbatch --parsable a.sbatch)`, and `--dependency=afterany:$id` (or `singleton`) for parts of one training
    run.

    ## When it is wrong
    Ignore the finding if the parts end on their own before their time limit.
    """
    blocks = {block for one in batch.script.named("sbatch") for block in one.blocks if block.startswith("function:")}
    submits = "|".join(["sbatch", *(re.escape(block.partition(":")[2]) for block in sorted(blocks))])
    pattern = rf"\b({submits})\b[^\n]*(--dependency|\s-d)|^\s*(scancel|squeue|scontrol|sacct)\b"
    calls = [command for command in batch.find(pattern) if command.words]
    for command in calls if re.search(r"sbatch\s", batch.text) else ():
        is_submit = re.fullmatch(submits, command.name)
        named = r"after\w*:[\"']?\$\{?(\w+)" if is_submit else r"\$\{?(\w+)"
        names = re.findall(named, command.text)
        given = [word.text for name in names for word in batch.script.assigned(name)]
        again = [
            one.text for one in batch.commands if "loop" in one.blocks for name, _ in one.assignments if name in names
        ]
        bare = [text for text in given if re.search(r"(?m)^(\$\(|`)\s*sbatch\b(?![^\n]*(parsable|\|))", text)]
        is_sentence = bare and not re.search(r"##\*|//[^\n]*\}|grep|awk", batch.text)
        is_chain = "loop" in command.blocks and any(re.search(rf"\b({submits})\b|=[\"']?\$", text) for text in again)
        scripts = [word for word in command.arguments if re.search(r"\.(sbatch|slurm|sh)\b|(?i:script)", word)]
        is_chain = is_chain and not any(map(batch.varies, scripts))  # no stages that need the one before
        is_own = command in batch.resubmits and re.search(r"afterok:[\"']?\$\{?SLURM_JOB_ID", command.text)
        alone = re.search(r"(?:--dependency|\s-d)[= ][\"']?\$\{?(\w+)\}?[\"']?(?=\s|$)", command.text)
        is_alone = alone and any(re.match(r"(\$\(|`)sbatch\b", word.text) for word in batch.script.assigned(alone[1]))
        problems = (
            (is_sentence, Severity.HIGH,
             f"without --parsable its id is sbatch's sentence 'Submitted batch job N': {command.name} refuses it"),
            (is_alone, Severity.HIGH, "sbatch refuses a dependency that is a bare id, without a type such as afterok:"),
            ("afterok" in command.text and (is_chain or is_own), Severity.HIGH,
             "a part that ends at its time limit has failed: with afterok, the next one never starts"),
        )  # fmt: skip
        for severity, message in [(severity, text) for is_so, severity, text in problems if is_so][:1]:
            yield LintFinding(
                severity=severity,
                line=command.at(".*after(ok|any)?:").line,
                message=message,
                advice="sbatch --parsable, and --dependency=afterany or singleton for parts of one training run",
                confidence=Confidence.LIKELY,
            )


@lint_rule("endless-chain", "a job always submits itself again", reads="sbatch")
def endless_chain(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for a job that submits its own script unconditionally.

    ## Why it costs
    The chain never ends: it continues after the last training step. If training crashes, the chain starts job after job
    that also crashes, until someone cancels it.

    ## How to recognize it
    `sbatch` of `$0`, of this script's name or of the job's own Command, outside any `if`, `case`, `&&` or trap, with no
    conditional `exit` above it.

    ## What to do
    Use `[ -e "$RUN/DONE" ] || sbatch "$SCRIPT"`, with a file that the training script writes at its end, and limit the
    number of jobs.

    ## When it is wrong
    Ignore the finding if another program cancels the chain.
    """
    ends = [one for one in batch.script.named("exit") if "if" in one.blocks or (one.after and "1" not in one.arguments)]
    for command in batch.resubmits if batch.trainings else ():
        is_guarded = any(one.line < command.line for one in ends) or re.search(r"--(hold|begin)\b", command.text)
        if not command.blocks and not command.after and not is_guarded:
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=command.line,
                message="always resubmits this script, after the last step and after each crash: an endless chain",
                advice='[ -e "$RUN/DONE" ] || sbatch ..., and limit the number of jobs',
                confidence=Confidence.LIKELY,
            )
