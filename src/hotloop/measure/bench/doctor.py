"""Host -> MachineChecks: is this machine set up well for training?

Adding a check is writing a function with ``@machine_check`` in one of MODULES.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.core.doctor import MachineCheck, Status

from . import variables
from .checks import HostCheck, ResultMaker, devices, machine, surroundings
from .host import Host

ORDER: tuple[Status, ...] = ("harmful", "warning", "good", "unknown")
GROUPS = ("torch", "accelerator", "cpu", "memory", "data", "network", "variables")
"""Groups in the order in which they are shown."""
MODULES = (devices, machine, surroundings, variables)

CHECKS: tuple[HostCheck, ...] = tuple(
    value for module in MODULES for value in vars(module).values() if isinstance(value, HostCheck)
)
"""Every question, in the order of its module."""


def run_checks(host: Host, wanted: Iterable[HostCheck] | None = None) -> tuple[MachineCheck, ...]:
    """The checks of one host, worst first, then by group; ``wanted`` defaults to all.

    A check that fails on an odd machine results in unknown.
    """
    checks: list[MachineCheck] = []
    for one in CHECKS if wanted is None else wanted:
        answer = ResultMaker(one.id, one.group, one.title)
        try:
            given = one.ask(host, answer)
        except Exception as error:  # an odd file in /proc must not cost the other results
            given = answer.unknown(f"the check failed ({type(error).__name__}: {error})"[:200])
        checks += [given] if isinstance(given, MachineCheck) else given
    return tuple(sorted(checks, key=lambda c: (ORDER.index(c.status), GROUPS.index(c.group))))


def has_harm(checks: Iterable[MachineCheck]) -> bool:
    return any(check.status == "harmful" for check in checks)
