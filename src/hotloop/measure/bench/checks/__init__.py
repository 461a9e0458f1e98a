"""A function that looks at a Host -> a HostCheck of the doctor, and the MachineCheck that it results in.

A check says ``harmful`` only for what is known to break or slow a training here, ``warning`` for what may, and
``unknown`` for what could not be found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotloop.core.doctor import MachineCheck, Status
from hotloop.core.findings import Value
from hotloop.measure.bench.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """``ask`` is pure except for files below the host's root. It returns one result, or several."""

    id: str
    group: str
    title: str
    ask: Callable[[Host, ResultMaker], MachineCheck | tuple[MachineCheck, ...]]


@dataclass(frozen=True, slots=True)
class ResultMaker:
    """Makes the results of one check of the machine."""

    id: str
    group: str
    title: str

    def good(self, measured: str, **values: Value) -> MachineCheck:
        return self._make("good", measured, "", "", values)

    def noted(self, measured: str, *, why: str, **values: Value) -> MachineCheck:
        """Good, with something that is worth knowing."""
        return self._make("good", measured, why, "", values)

    def warning(self, measured: str, *, why: str, fix: str, **values: Value) -> MachineCheck:
        return self._make("warning", measured, why, fix, values)

    def harmful(self, measured: str, *, why: str, fix: str, **values: Value) -> MachineCheck:
        return self._make("harmful", measured, why, fix, values)

    def unknown(self, why: str, *, fix: str = "") -> MachineCheck:
        return self._make("unknown", "unknown", why, fix, {})

    def without_torch(self) -> MachineCheck:
        """The result for a question that needs torch's own facts."""
        return self.unknown("torch could not be queried")

    def _make(self, status: Status, measured: str, why: str, fix: str, values: Mapping[str, Value]) -> MachineCheck:
        about = {"id": self.id, "group": self.group, "title": self.title}
        return MachineCheck(**about, status=status, measured=measured, why=why, fix=fix, values=values)


RunCheck = Callable[[Host, ResultMaker], MachineCheck | tuple[MachineCheck, ...]]


def machine_check(check_id: str, group: str, title: str) -> Callable[[RunCheck], HostCheck]:
    """Make a HostCheck of a function."""

    def make(ask: RunCheck) -> HostCheck:
        return HostCheck(id=check_id, group=group, title=title, ask=ask)

    return make
