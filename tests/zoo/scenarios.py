"""A scenarios.toml -> the scenarios of the zoo, as frozen values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNITS = ("step", "sample", "token", "useful-step", "none")
"""``useful-step`` leaves out the steps that a loss scaler skipped; ``none`` is for faults that cost no time."""

OPPORTUNITY_RULES = frozenset(
    {"small-batch", "full-precision", "uncompiled-model", "slow-optimizer", "memory-headroom"}
)


REMARKS = frozenset({"note", "samples", "calibration", "expected"})
"""Keys that an author may set for readers; nothing is made of them."""


@dataclass(frozen=True)
class Scenario:
    """One training of the zoo. ``rules`` is empty for a healthy one and has two entries for two faults at once.

    ``fix_arguments`` maps a technique id to the script's arguments for it, in which ``{name}`` is replaced by a setting
    of the fix; a technique that is not in it gets ``--fixed`` alone. ``link_rates`` has one tc rate a level, for two
    ranks over a shaped link. ``reach`` says what the fault can reach where that is less than the usual strengths.
    """

    id: str
    script: Path
    split: str
    rules: tuple[str, ...] = ()
    ranks: int = 1
    levels: tuple[int, ...] = (1, 2, 3)
    style: str = "plain"
    unit: str = "step"
    variant: str = ""
    reach: str = ""
    link_rates: tuple[str, ...] = ()
    fix_arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timeout_s: float = 120.0

    @property
    def kind(self) -> str:
        return ("healthy", "planted", "pair")[min(2, len(self.rules))]


def load_scenarios(path: Path, split: str) -> tuple[Scenario, ...]:
    """The scenarios of one file; scripts are next to it or in its folder ``scripts``."""
    if not path.exists():
        return ()
    tables = tomllib.loads(path.read_text())["scenario"]
    scenarios = tuple(_scenario(table, path.parent, split) for table in tables)
    ids = [s.id for s in scenarios]
    twice = {one for one in ids if ids.count(one) > 1}
    if twice:
        raise ValueError(f"{path.name} has these ids twice: {', '.join(sorted(twice))}")
    return scenarios


def _scenario(table: Mapping[str, Any], folder: Path, split: str) -> Scenario:
    known = {
        "id", "script", "rule", "rules", "ranks", "levels", "style", "unit", "variant", "reach",
        "link_rates", "fix_arguments", "timeout_s",
    }  # fmt: skip
    unknown = set(table) - known - REMARKS
    if unknown:
        raise ValueError(f"scenario {table.get('id')}: unknown keys {', '.join(sorted(unknown))}")
    rule = table.get("rule", "")
    rules = tuple(table.get("rules", (rule,) if rule else ()))
    unit = table.get("unit", "step")
    if unit not in UNITS:
        raise ValueError(f"scenario {table['id']}: unit {unit!r} is none of {', '.join(UNITS)}")
    script = next((p for p in (folder / table["script"], folder / "scripts" / table["script"]) if p.exists()), None)
    if script is None:
        raise ValueError(f"scenario {table['id']}: there is no script {table['script']}")
    # A healthy training has no strength; it is run once.
    levels = tuple(table.get("levels", (1, 2, 3))) if rules else (0,)
    return Scenario(
        id=table["id"],
        script=script,
        split=split,
        rules=rules,
        ranks=table.get("ranks", 1),
        levels=levels,
        style=table.get("style", "plain"),
        unit=unit,
        variant=table.get("variant", ""),
        reach=table.get("reach", ""),
        link_rates=tuple(table.get("link_rates", ())),
        fix_arguments={k: tuple(v) for k, v in table.get("fix_arguments", {}).items()},
        timeout_s=float(table.get("timeout_s", 120.0)),
    )
