"""One command, code and machine: its finished processes are kept, and count again in a later tuning."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hotloop import __version__
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy

from .request import Request
from .store import Store
from .trials import LOST, OK, Bench, Ran, TrialLimits, run_trial
from .tuner import strategy_key
from .workspace import WorkspacePlan, changed_code

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
