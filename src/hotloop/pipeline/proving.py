"""Two variants of a training and a budget -> a Proof of which is faster, with fresh processes in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.change.tune.referee import Match, referee
from hotloop.change.tune.study import FACTS, choose_limits, drop_outputs
from hotloop.change.tune.trials import NO_TRAINING, OK, Bench, Ran, TrialLimits, run_trial
from hotloop.change.tune.workspace import changed_code, code_outside, plan_workspace
from hotloop.core.errors import UsageError
from hotloop.core.findings import Numerics
from hotloop.core.measurement import Measurement
from hotloop.core.proof import Proof, ProofSide
from hotloop.core.strategy import Strategy
from hotloop.evidence.analyze.measurement import list_facts
from hotloop.evidence.trace.recording import read_run

from .trial_runs import attach_trial, measure_run

OBSERVED_S = 5.0
GIT_TIMEOUT_S = 120
Emit = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofVariant:
    """The command of one side: a resolved command in a folder, with its environment. ``change`` is in words."""

    command: tuple[str, ...]
    cwd: Path
    variables: Mapping[str, str]
    strategy: Strategy = field(default_factory=Strategy)
    change: str = ""


def prove(
    a: ProofVariant,
    b: ProofVariant,
    folder: Path,
    emit: Emit,
    *,
    budget_s: float,
    least_ratio: float,
    numerics: Numerics | None,
    words: Sequence[str],
) -> Proof:
    """Observe A once, then run pairs of processes until a verdict or the end of the budget.

    ``folder`` takes the working copies and the logs of what failed. Without ``numerics``, losses are not compared.
    """
    begun_s = time.monotonic()
    match = Match(least_ratio=least_ratio, numerics=numerics)
    benches = {name: _make_bench(variant, folder / name) for name, variant in (("A", a), ("B", b))}
    variants = {"A": a, "B": b}
    limits = TrialLimits(
        steps=None,
        seconds=OBSERVED_S,
        timeout_s=max(120.0, 0.5 * budget_s),
        start_s=max(60.0, 0.4 * budget_s),
        stall_s=max(60.0, 0.2 * budget_s),
    )
    emit("observing A")
    observed = _run(benches["A"], a, limits, "observed", counts_whole=True)
    observed_folder = folder / "A" / "trials" / "observed"
    machine = _describe_machine(observed_folder)
    if observed.measured is not None:  # the logs of what failed stay
        shutil.rmtree(observed_folder, ignore_errors=True)
    notes: list[str] = []
    counts_whole = observed.ended == NO_TRAINING
    if observed.measured is None:
        match.reason = f"A failed: {observed.ended}, {observed.reason}"
    else:
        if counts_whole:
            notes.append(
                "no training was seen in A: the time of the entire command is compared, and no loss is checked"
            )
        match.observed = observed.measured
        limits = limits if counts_whole else choose_limits(observed.measured, observed.duration_s)
        benches = {name: replace(bench, plan=drop_outputs(bench.plan)) for name, bench in benches.items()}

        def run_side(side: str, number: int) -> Ran:
            bench = benches[side]
            ran = _run(bench, variants[side], limits, f"{number}", counts_whole=counts_whole)
            if counts_whole and ran.ended == OK:
                raise UsageError(
                    f"training was seen in {side} but not in A's first process, so their times cannot be compared"
                )
            if changed := changed_code(bench.plan):
                raise UsageError(f"{changed[0].path} changed during the proof; run it again")
            return ran

        try:
            referee(
                match,
                run_side,
                until_s=begun_s + budget_s,
                process_s=observed.duration_s,
                clock_s=time.monotonic,
                emit=emit,
            )
        finally:
            for name in ("A", "B"):
                shutil.rmtree(folder / name / "work", ignore_errors=True)
    unit = "run" if counts_whole else match.unit
    return _report(match, a, b, notes, machine, limits, unit, time.monotonic() - begun_s, words)


def _make_bench(variant: ProofVariant, folder: Path) -> Bench:
    outside = code_outside(variant.command, variant.cwd)
    return Bench(
        command=variant.command,
        plan=plan_workspace(variant.cwd, without=[folder.parent], outside=outside),
        folder=folder,
        environment=partial(attach_trial, variant.command, variant.variables, deep=False),
        measure=measure_run,
    )


def _run(bench: Bench, variant: ProofVariant, limits: TrialLimits, name: str, *, counts_whole: bool) -> Ran:
    """A process of a side. ``counts_whole``: a process that ends well without a training counts with its total time."""
    ran = run_trial(bench, variant.strategy, limits, name)
    if ran.ended == NO_TRAINING and counts_whole:
        whole = Measurement(
            step_ns=ran.duration_s * 1e9,
            steady_count=1,
            samples_per_step=None,
            tokens_per_step=None,
            peak_bytes=None,
            one_time_ns=None,
            losses_unseen="no training was seen",
            norms_unseen="no training was seen",
        )
        return replace(ran, measured=whole)
    if ran.measured is not None and name != "observed":
        shutil.rmtree(bench.folder / "trials" / name, ignore_errors=True)
    return ran


def _describe_machine(run_folder: Path) -> dict[str, Any]:
    """The validity of the proof: versions, device and cores as the training saw them."""
    processes = read_run(run_folder).processes
    facts = list_facts(processes, FACTS) if processes and measure_run(run_folder) is not None else {}
    model = next(
        (line.partition(":")[2].strip() for line in _read_lines("/proc/cpuinfo") if "model name" in line), None
    )
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), **{name: facts.get(name) for name in FACTS}}


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _report(
    match: Match,
    a: ProofVariant,
    b: ProofVariant,
    notes: list[str],
    machine: Mapping[str, Any],
    limits: TrialLimits,
    unit: str,
    took_s: float,
    words: Sequence[str],
) -> Proof:
    found = match.comparison
    unapplied = sorted(
        {f"{one.technique}: {one.detail}" for process in match.b for one in process.applied if not one.is_applied}
    )
    notes += [f"B did not apply {text}" for text in unapplied]
    if match.guard.status == "unknown" and match.b and match.numerics:
        notes.append(f"the loss could not be checked: {match.guard.reason}")
    sides = [
        ProofSide(id=name, command=variant.command, change=variant.change, times_ns=match.times_ns(processes))
        for name, variant, processes in (("A", a, match.a), ("B", b, match.b))
    ]
    return Proof(
        tool_version=__version__,
        verdict=match.verdict,
        reason=match.reason,
        a=sides[0],
        b=sides[1],
        ratio=_inverse(found.speedup_ratio if found else None),
        low=_inverse(found.high_ratio if found else None),
        high=_inverse(found.low_ratio if found else None),
        pairs=len(match.b),
        unit=unit,
        steps_count=limits.steps,
        at_least_ratio=match.least_ratio,
        spread_ratio=found.noise_ratio if found else None,
        guard_status=match.guard.status,
        guard_reason=match.guard.reason,
        took_s=took_s,
        machine=machine,
        limits=tuple(notes),
        words=tuple(words),
    )


def _inverse(ratio: float | None) -> float | None:
    return None if ratio is None else 1 / ratio


@contextmanager
def check_out(revisions: tuple[str, str], cwd: Path, folder: Path) -> Iterator[list[tuple[Path, str]]]:
    """The folder of a command in two revisions of its repository, and what each revision is.

    What git does not track (data, settings) is linked from the user's folder. Raises UsageError.
    """
    root = Path(run_git(cwd, "rev-parse", "--show-toplevel").strip())
    inside = cwd.resolve().relative_to(root.resolve())
    untracked = run_git(root, "ls-files", "--others", "--directory", "--no-empty-directory", "-z").split("\0")
    places: list[tuple[Path, str]] = []
    with ExitStack() as stack:
        for name, revision in zip(("a", "b"), revisions, strict=True):
            commit = run_git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
            tree = folder / f"revision-{name}" / root.name
            run_git(root, "worktree", "add", "--detach", "--force", str(tree), commit)
            stack.callback(run_git, root, "worktree", "remove", "--force", str(tree))
            for path in untracked:
                place = tree / path.rstrip("/")
                if path and not path.startswith(".hotloop") and not place.exists() and place.parent.is_dir():
                    place.symlink_to(root / path.rstrip("/"))
            if not (tree / inside).is_dir():
                raise UsageError(
                    f"revision {revision} has no folder {inside}; run from a folder that both revisions have"
                )
            subject = run_git(root, "log", "-1", "--format=%h %s", commit).strip()
            places.append((tree / inside, f"revision {subject}"))
        yield places


def run_git(folder: Path, *words: str) -> str:
    return run_tool(["git", *words], folder, GIT_TIMEOUT_S)


def run_tool(words: Sequence[str], folder: Path, timeout_s: float, variables: Mapping[str, str] | None = None) -> str:
    """The output of a command. Raises UsageError with its own last line."""
    name = " ".join(words[:2])
    try:
        done = subprocess.run(
            words, cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{name}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UsageError(f"{name} in {folder}: {lines[-1]}")
    return done.stdout
