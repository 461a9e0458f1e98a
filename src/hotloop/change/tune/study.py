"""One command that is tuned: what was asked for, how far it is, and its processes, as long as its code stays."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotloop.core.errors import HotloopError
from hotloop.core.measurement import Measurement
from hotloop.core.report import Report
from hotloop.core.strategy import Strategy
from hotloop.core.techniques import Technique
from hotloop.core.tuning import PatchCheck

from .patch import Patch
from .trials import OK, Bench, Budget, Ran, TrialLimits, run_trial
from .tuner import Campaign, strategy_key
from .workspace import WorkspacePlan, changed_code


class TuneError(HotloopError):
    """The command cannot be tuned; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A tuning to do. ``command`` is resolved; ``variables`` is the environment to start it in."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    cwd: Path
    folder: Path
    budget_s: float
    goal: str
    techniques: Mapping[str, Technique] = field(default_factory=dict)
    """All that may be tried."""
    options: tuple[str, ...] = ()
    """Further options of the command line, to repeat them."""
    typed: tuple[str, ...] = ()
    """The command as it was typed, to ask for it again; ``command`` where that is not known."""

    @property
    def next_command(self) -> tuple[str, ...]:
        """The words of the same tuning with a larger budget. Secrets are included."""
        budget = f"{Budget(whole_s=self.budget_s).next_minutes}m"
        return ("hotloop", "tune", "--budget", budget, *self.options, "--", *(self.typed or self.command))


@dataclass(slots=True)
class Progress:
    """The results so far; filled while tuning, also read after an interruption."""

    report: Report | None = None
    campaign: Campaign | None = None
    warnings: tuple[str, ...] = ()
    patch: Patch | None = None
    check: PatchCheck | None = None
    """The check of the patch; None where it changes nothing."""
    reference: str = "baseline"
    """The name of the reference for everything."""


STEADY_S = 3.0
STEPS = (30, 400)
"""Steps of a trial: at least and at most; between them as many as fill STEADY_S."""
FACTS = ("python", "torch", "executable", "accelerator", "device_name", "torch_threads", "cores")
"""Facts that the training's leading process reports, and that a proof holds for."""


class CodeChanged(Exception):
    """Code that trials read in place has changed: what runs now is no longer what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Runs processes of one command."""

    bench: Bench
    limits: TrialLimits

    def run_strategy(self, strategy: Strategy, number: int) -> Ran:
        """The process of this number under a strategy. Raises CodeChanged."""
        return self.run(strategy_key(strategy), self.bench, strategy, number)

    def run_patched(self, files: Mapping[str, bytes], number: int) -> Ran:
        """A process of the working copy with these files in it, under no strategy. Raises CodeChanged."""
        return self.run("patched", replace(self.bench, patched=files), Strategy(), number)

    def run(self, key: str, bench: Bench, strategy: Strategy, number: int) -> Ran:
        """The process of this number; ``key`` keeps its folder apart from other strategies'. Raises CodeChanged."""
        name = f"{key}-{number}"
        ran = run_trial(bench, strategy, self.limits, name)
        changed = changed_code(bench.plan)
        if changed:
            names = ", ".join(str(one.path) for one in changed[:3])
            raise CodeChanged(f"{names} changed during tuning, so earlier trials ran a different program; tune again")
        if ran.ended == OK:  # logs of failures stay
            shutil.rmtree(bench.folder / "trials" / name, ignore_errors=True)
        return ran


def choose_limits(measured: Measurement, duration_s: float, least_steps: int = 0) -> TrialLimits:
    """How long a trial is: as many steps as fill STEADY_S after a warm-up, and a generous limit for everything.

    ``least_steps`` where its start has to be seen, up to the most steps of a trial.
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
