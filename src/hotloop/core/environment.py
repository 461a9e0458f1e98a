"""What two training runs ran with (environment.json) -> what differs: packages, variables and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ENVIRONMENT_FILE = "environment.json"
ENVIRONMENT_SCHEMA = "hotloop.environment/1"
ChangeKind = Literal["package", "variable", "machine", "revision"]
GROUPS: dict[str, ChangeKind] = {"packages": "package", "variables": "variable", "machine": "machine"}
"""Keys of environment.json, each a mapping of names to texts, or null if unknown; and the kind of a change there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """One difference: a package's version, a variable's value, a fact of the machine, or a revision of the code.

    None: not installed, not set, or unknown (of the machine).
    """

    kind: ChangeKind
    name: str
    before: str | None
    after: str | None


def compare_environments(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[EnvironmentChange, ...]:
    """The differences between two contents of environment.json, by kind and name. A group that is unknown on a side
    contains none: see ``list_unknown``.

    >>> compare_environments({"packages": {"torch": "2.5"}}, {"packages": {"torch": "2.6"}})
    (EnvironmentChange(kind='package', name='torch', before='2.5', after='2.6'),)
    """
    changes = []
    for group, kind in GROUPS.items():
        sides = [side[group] for side in (before, after) if isinstance(side.get(group), dict)]
        if len(sides) < 2:
            continue
        for name in sorted({*sides[0], *sides[1]}):
            old, new = (None if side.get(name) is None else str(side[name]) for side in sides)
            if old != new:
                changes.append(EnvironmentChange(kind=kind, name=str(name), before=old, after=new))
    return tuple(changes)


def list_unknown(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The groups that cannot be compared, because a side does not know them."""
    return [group for group in GROUPS if not all(isinstance(side.get(group), dict) for side in (before, after))]
