"""One command, code and machine: its finished processes are kept, and count again in a later tuning."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotloop import __version__
from hotloop.core.errors import HotloopError
from hotloop.core.measurement import Measurement
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Technique
from hotloop.core.tuning import PatchCheck

from .patch import Patch
from .trials import LOST, OK, Bench, Budget, Ran, TrialLimits, ran_from_json, ran_to_json, run_trial
from .tuner import Campaign, strategy_key
from .workspace import WorkspacePlan, changed_code


class TuneError(HotloopError):
    """The command cannot be tuned; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to tune. ``command`` is resolved; ``variables`` is the environment to start it in."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    cwd: Path
    folder: Path
    store: Path
    budget_s: float
    goal: str
    techniques: Mapping[str, Technique] = field(default_factory=dict)
    """All that may be tried."""
    price_per_hour: float | None = None
    """Of everything that the command runs on."""
    options: tuple[str, ...] = ()
    """What else was asked for on the command line, to ask for it again."""
    typed: tuple[str, ...] = ()
    """The command as it was typed, to ask for it again; ``command`` where that is not known."""

    @property
    def next_command(self) -> tuple[str, ...]:
        """The words of the same tuning with a larger budget: its finished processes count. Secrets are included."""
        out = ("-o", os.path.relpath(self.folder)) if self.store.parent == self.folder else ()
        budget = f"{Budget(whole_s=self.budget_s).next_minutes}m"
        return ("hotloop", "tune", "--budget", budget, *self.options, *out, "--", *(self.typed or self.command))


@dataclass(slots=True)
class Progress:
    """What there is to report so far; filled while tuning, read also after an interruption."""

    report: Report | None = None
    campaign: Campaign | None = None
    warnings: tuple[str, ...] = ()
    patch: Patch | None = None
    check: PatchCheck | None = None
    """What is known of the patch; None where it changes nothing."""
    reference: str = "baseline"
    """What everything is held against, by name."""
    launches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """How candidates start the command, by id, where that differs."""


class Store:
    """One sqlite file. A study is the hash of command, code, machine and limits; a process is one of its strategies'.

    Every write is a transaction of its own, so that a kill leaves the file whole.
    """

    def __init__(self, path: Path) -> None:
        self.has_run = False
        """Whether this tuning ran a process itself: from then on nothing that is stored stands beside what runs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._database.execute("pragma journal_mode=wal")
        self._database.execute(
            "create table if not exists process"
            " (study text, strategy text, sequence integer, ran text, primary key (study, strategy, sequence))"
        )
        self._database.execute("create table if not exists study (study text primary key, steps integer)")

    def keep_steps(self, study: str, steps: int) -> int:
        """The steps of the study's processes: those of its first tuning, which ``steps`` are when it is new."""
        self._database.execute("insert or ignore into study values (?, ?)", (study, steps))
        (kept,) = self._database.execute("select steps from study where study = ?", (study,)).fetchone()
        return int(kept)

    def get(self, study: str, strategy: str, sequence: int) -> Ran | None:
        row = self._database.execute(
            "select ran from process where study = ? and strategy = ? and sequence = ?", (study, strategy, sequence)
        ).fetchone()
        if row is None:
            return None
        try:
            return ran_from_json(row[0])
        except ValueError:
            return None

    def put(self, study: str, strategy: str, sequence: int, ran: Ran) -> None:
        self._database.execute(
            "insert or replace into process values (?, ?, ?, ?)", (study, strategy, sequence, ran_to_json(ran))
        )

    def close(self) -> None:
        self._database.close()


STEADY_S = 3.0
STEPS = (30, 400)
"""Steps of a trial: at least and at most; between them as many as fill STEADY_S."""
FACTS = ("python", "torch", "executable", "accelerator", "device_name", "torch_threads", "cores")
"""What the process that leads the training says of itself, and a study depends on."""


class CodeChanged(Exception):
    """Code that trials read where it lies is another one than before: what runs now is no more what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Runs processes of one command. ``id`` is the same where a stored process stands for one that would run now."""

    store: Store
    id: str
    bench: Bench
    limits: TrialLimits

    def run_strategy(self, strategy: Strategy, number: int) -> Ran:
        """The process of this number under a strategy. Raises CodeChanged."""
        return self.run(strategy_key(strategy), self.bench, strategy, number, is_reference=not strategy)

    def run_patched(self, files: Mapping[str, bytes], number: int) -> Ran:
        """A process of the working copy with these files in it, under no strategy. Raises CodeChanged."""
        digest = hashlib.sha256()
        for name, content in sorted(files.items()):
            digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
        return self.run(f"patch-{digest.hexdigest()[:16]}", replace(self.bench, patched=files), Strategy(), number)

    def run(self, key: str, bench: Bench, strategy: Strategy, number: int, *, is_reference: bool = False) -> Ran:
        """The process of this number under a key, from the store when it ran before. Raises CodeChanged.

        Once this tuning has run a process itself, what is stored was measured at another time, and runs again; what
        failed then fails now. That the unchanged command failed (``is_reference``) is stored never: it ends the tuning,
        and would end each later one.
        """
        known = self.store.get(self.id, key, number)
        if known is not None and self._counts_still(known, is_reference=is_reference):
            return known
        name = f"{key}-{number}"
        self.store.has_run = True
        ran = run_trial(bench, strategy, self.limits, name)
        changed = changed_code(bench.plan)
        if changed:
            names = ", ".join(str(one.path) for one in changed[:3])
            raise CodeChanged(f"{names} changed during tuning, so earlier trials ran a different program; tune again")
        if ran.measured is not None or not (is_reference or ran.ended == LOST):
            self.store.put(self.id, key, number, ran)
        if ran.ended == OK:  # what it measured is in the store; logs of failures stay
            shutil.rmtree(bench.folder / "trials" / name, ignore_errors=True)
        return ran

    def _counts_still(self, known: Ran, *, is_reference: bool) -> bool:
        """Whether a stored process stands for one that would run now."""
        if known.measured is None:
            return not is_reference and known.ended != LOST
        return not self.store.has_run


def open_study(
    request: Request,
    store: Store,
    bench: Bench,
    facts: Mapping[str, object],
    measured: Measurement,
    duration_s: float,
    least_steps: int = 0,
) -> Study:
    """The study of an observed command. ``facts`` are FACTS of its process, ``duration_s`` is how long that took."""
    study = describe_study(request, bench.plan.code_hash, facts)
    limits = choose_limits(measured, duration_s, least_steps)
    # Processes of an earlier tuning count only when they are as long as those of this one: keep its length.
    limits = replace(limits, steps=store.keep_steps(study, limits.steps or STEPS[0]))
    return Study(store=store, id=study, bench=bench, limits=limits)


def choose_limits(measured: Measurement, duration_s: float, least_steps: int = 0) -> TrialLimits:
    """How long a trial is: as many steps as fill STEADY_S behind a warm-up, and a wide limit for everything.

    ``least_steps`` where its start is to be seen, up to the most steps of a trial.
    """
    step_s = measured.step_ns * 1e-9
    steps = min(max(round(STEADY_S / max(step_s, 1e-6)) + 5, STEPS[0], least_steps), STEPS[1])
    expected_s = duration_s + steps * step_s
    return TrialLimits(
        steps=steps,
        seconds=None,
        timeout_s=120.0 + 4.0 * expected_s,
        start_s=120.0 + 2.0 * duration_s,
        stall_s=max(60.0, 30.0 * step_s, duration_s),
    )


def drop_outputs(plan: WorkspacePlan) -> WorkspacePlan:
    """The plan without what the command itself wrote in its first run: results that have the suffix of a setting."""
    written = [one for one in changed_code(plan) if one.path.suffix not in (".py", ".sh", ".ipynb")]
    return replace(plan, watched=tuple(one for one in plan.watched if one not in written))


def describe_study(request: Request, code_hash: str, facts: Mapping[str, object]) -> str:
    """What has to be the same for a stored process to count: command, code, variables, machine, versions, goal."""
    described = {
        "command": list(request.command),
        "cwd": str(request.cwd),
        "code": code_hash,
        "hotloop": __version__,
        "machine": [platform.node(), platform.machine(), platform.release()],
        "training": dict(facts),
        "variables": {name: value for name, value in request.variables.items() if not _VOLATILE.fullmatch(name)},
        "goal": request.goal,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()


_VOLATILE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|DISPLAY|XAUTHORITY|WINDOWID|STY|MAIL|HISTFILE|PS1|PROMPT_COMMAND|LS_COLORS"
    r"|COLORTERM|NO_COLOR|SESSION_MANAGER|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|PYTEST_CURRENT_TEST|MASTER_PORT"
    r"|(?:SSH|TERM|XDG|TMUX|WAYLAND|DBUS|GPG|GNOME|KDE|KONSOLE|ITERM|VSCODE|SUDO|SYSTEMD|LC_TERMINAL|DESKTOP)(?:_.*|)"
    r"|TERMINAL.*|GIT_ASKPASS|BROWSER|DEBUGINFOD_.*|KUBERNETES_.*"
    r"|(?:SLURM|PBS|LSB|SGE)_.*(?:ID|JOBID|TIME|DIR|PORT|HOST|NODELIST|PID|IPADDR|ADDR)|JOB_ID"
)
"""Variables that differ from login to login or from job to job and change no training."""
