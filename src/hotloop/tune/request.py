"""What to tune: a command with its environment, a goal and a budget; and what there is to report while that goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.core.errors import HotloopError
from hotloop.core.report import Report
from hotloop.core.techniques import Technique
from hotloop.core.tuning import PatchCheck

from .budget import Budget
from .patch import Patch
from .tuner import Campaign


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
