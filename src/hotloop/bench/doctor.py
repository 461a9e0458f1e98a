"""Host -> Checks: is this machine set up well for training?

The checks stand in ``checks``, one module per group. Adding one is writing a function with ``@machine_check`` there.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from .host import Host
from .machine_check import Check, MachineCheck, ResultMaker, Status

__all__ = ["CHECKS", "GROUPS", "ORDER", "SCHEMA", "Check", "checks_to_json", "has_harm", "run_checks"]

SCHEMA = "hotloop.doctor/1"
ORDER: tuple[Status, ...] = ("harmful", "warning", "good", "unknown")
GROUPS = ("torch", "accelerator", "cpu", "memory", "data", "network", "variables")
"""Groups in the order in which they are shown; each has a module in ``checks``."""

CHECKS: tuple[MachineCheck, ...] = tuple(
    value
    for group in GROUPS
    for value in vars(import_module(f"hotloop.bench.checks.{group}")).values()
    if isinstance(value, MachineCheck)
)
"""Every question, group by group, in the order of its module."""


def run_checks(host: Host, questions: Iterable[MachineCheck] | None = None) -> tuple[Check, ...]:
    """The checks of one host, worst first, then by group; ``questions`` defaults to all.

    A question that fails on an odd machine is answered with unknown.
    """
    checks: list[Check] = []
    for one in CHECKS if questions is None else questions:
        answer = ResultMaker(one.id, one.group, one.title)
        try:
            given = one.ask(host, answer)
        except Exception as error:  # an odd file in /proc must not cost the other answers
            given = answer.unknown(f"the check failed ({type(error).__name__}: {error})"[:200])
        checks += [given] if isinstance(given, Check) else given
    return tuple(sorted(checks, key=lambda c: (ORDER.index(c.status), GROUPS.index(c.group))))


def has_harm(checks: Iterable[Check]) -> bool:
    return any(check.status == "harmful" for check in checks)


def checks_to_json(checks: Iterable[Check]) -> list[dict[str, Any]]:
    """The checks as plain dicts of schema hotloop.doctor/1."""
    return [
        {
            "id": c.id,
            "group": c.group,
            "title": c.title,
            "status": c.status,
            "measured": c.measured,
            "why": c.why,
            "fix": c.fix,
            "values": dict(c.values),
        }
        for c in checks
    ]
