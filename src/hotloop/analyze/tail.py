"""Steps and stack samples -> what followed the last step: how long it took, and what most of it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hotloop.core.recording import OTHER_WAIT_FIELD, SAMPLED_FIELDS

from .facts import Fact, of_kind, read_int, read_items
from .partition import FIELD_PHASE
from .segments import Steps

NOGRAD_FIELDS = ("nograd_ns", "after_nograd_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The time after the last step. Both None where the recording breaks off and no sample shows more."""

    ns: int | None
    phase: str | None
    """Phase of more than half of it; None where nothing is, or what was done is in no phase."""
    phase_ns: Mapping[str, int] = field(default_factory=dict)
    """The phases that were seen in it; of samples, their share of ``ns``."""


def find_tail(steps: Steps, facts: Sequence[Fact]) -> Tail:
    """From the recording's last row; of a process that was killed before it could write one, from its samples."""
    if steps.tail is None:
        return _sampled_tail(steps, facts)
    tail = {name: max(0, value) for name, value in steps.tail.items()}
    phase_ns = _phases_of(tail)
    if tail["bursts_other_loader"] or tail["bursts_eval_mode"]:
        moved = {"input_wait": "burst_input_ns", "h2d": "burst_h2d_ns", "forward": "nograd_ns", "other": "burst_gap_ns"}
        for phase, field in moved.items():
            part_ns = min(tail[field], phase_ns[phase])
            phase_ns[phase] -= part_ns
            phase_ns["validation"] += part_ns
    return Tail(ns=steps.tail_ns, phase=_main_phase(phase_ns), phase_ns={k: v for k, v in phase_ns.items() if v > 0})


def _sampled_tail(steps: Steps, facts: Sequence[Fact]) -> Tail:
    """Samples from outside say when they were taken. Those that were begun behind the last step are of the tail.

    Forwards without gradients are called validation where most steps have none: a teacher has them in every step.
    """
    begun = ((read_int(fact, "from_ns"), fact) for fact in of_kind(facts, "samples") if fact.get("outside"))
    behind = [fact for from_ns, fact in begun if from_ns is not None and from_ns >= steps.end_ns]
    end_ns = max((read_int(fact, "until_ns") or 0 for fact in behind), default=0)
    if end_ns <= steps.end_ns:
        return Tail(ns=None, phase=None)
    seen: Counter[str] = Counter()
    for fact in behind:
        for item in read_items(fact, "counts"):
            if (
                isinstance(item, (list, tuple))
                and len(item) == 4
                and item[0] in SAMPLED_FIELDS
                and isinstance(item[3], int)
            ):
                seen["input_wait_ns" if item[0] == OTHER_WAIT_FIELD else item[0]] += max(0, item[3])
    phases = _phases_of(seen)
    if seen["nograd_ns"] and not np.median(steps.columns["nograd_forwards"] / steps.weight):
        # The batches of an evaluation come from a loader of its own, and no training forward uses them.
        waits = 0 if seen["forward_ns"] else phases.pop("input_wait", 0)
        inside = sum(seen[name] for name in NOGRAD_FIELDS)
        phases["forward"] -= seen["nograd_ns"]
        phases["other"] -= seen["after_nograd_ns"]
        phases["validation"] += inside + waits
    scale = (end_ns - steps.end_ns) / max(1, sum(phases.values()))
    phase_ns = {name: round(scale * part) for name, part in phases.items() if part > 0}
    return Tail(ns=end_ns - steps.end_ns, phase=_main_phase(phases), phase_ns=phase_ns)


def _phases_of(fields: Mapping[str, int]) -> Counter[str]:
    phases: Counter[str] = Counter()
    for name, phase in FIELD_PHASE.items():
        phases[phase] += fields.get(name, 0)
    return phases


def _main_phase(phases: Mapping[str, int]) -> str | None:
    half = sum(phases.values()) / 2
    return next((name for name, part in phases.items() if name != "other" and part > half), None)
