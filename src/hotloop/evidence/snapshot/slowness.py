"""Looks at ranks that move -> what takes their time outside the model's own work, and from which share on it is slow.

What is seen once may be a validation, an index that is built, or a child process that ends: only what returns after
training counts, and the longest stretch of it is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hotloop.agent.replay.stack_reader import PythonCall

from .family import WORKER
from .source import ProcessSource
from .waits import COLLECTIVE, COMPUTING, LOADER, user_call
from .watch import Look, Watched

STRAGGLER, THREADS, WAITS, EXCHANGES, GIL = "straggler", "threads", "waits", "exchanges", "interpreter lock"
OUTSIDE, VALIDATION, LOADING, TORCH_LOADER = "other", "validation", "loading", "torch's loader"
LIMITS = {
    WAITS: 0.40, GIL: 0.40, LOADER: 0.40, LOADING: 0.50, OUTSIDE: 0.50, VALIDATION: 0.50, TORCH_LOADER: 0.70,
    EXCHANGES: 0.85, STRAGGLER: 0.40, THREADS: 4.0,
}  # fmt: skip
"""Shares of the looks from which on a training is slow. A thread that waits is seen to wait: 40 % is far from the few
percent of a sound loader. Work outside the model may be needed, and torch's loader without code of the user's is most
of a step of a tiny model. Small models on few cores exchange for more than half of the time. A straggler waits for
exchanges by this share of the time less than each other rank. Threads are those that want to run for each core."""
RETURNING = (LOADER, OUTSIDE, VALIDATION)
"""Causes that count only if they return after training; so do waits for something that computes."""
FEWEST_STRETCHES, FEWEST_WAKES, ALWAYS_RATIO = 3, 5, 0.90
"""The last two for waits for workers, between which steps may be too short to be seen; torch wakes up every 5 s."""
CLOSE_RATIO, MORE_CPU_TIMES = 0.6, 1.5
"""From this part of a limit on, it is worth watching longer. A rank that only gets less of the processor does not
use that much more of it than the others."""
GRADIENT_RATIO = 0.2
"""Code that gradients pass through costs at least this part of its own time in backward."""
BUSY_RATIO, GIL_WAKES_PER_S = 0.20, 20.0
"""A thread that waits for the interpreter's lock wakes up every 5 ms to ask for it."""
P2P = re.compile(r"i?send|i?recv|rpc|batch_isend")
"""Exchanges in which ranks have different parts: a server waits for those that compute."""
TRAINING = ("forward", "backward", "optimizer")

SAVING = {
    ("torch.serialization", "save"), ("torch.serialization", "_save"), ("safetensors.torch", "save_file"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"), ("pickle", "dump"), ("numpy", "save"),
}  # fmt: skip
_PHASES: tuple[tuple[str, Callable[[PythonCall], bool]], ...] = (
    ("checkpoint", lambda call: (call.module, call.function) in SAVING),
    ("input_wait", lambda call: call.module.startswith("torch.utils.data")),
    ("communication", lambda call: call.module.startswith("torch.distributed.distributed_c10d")),
    ("backward", lambda call: call.module == "torch.autograd.graph" or call.module == "torch.autograd"),
    ("optimizer", lambda call: call.module.startswith("torch.optim") and call.function in ("step", "wrapper")),
    ("forward", lambda call: call.module == "torch.nn.modules.module" and "call_impl" in call.function),
)


class Phases:
    """The phase of a step that calls belong to, by the outermost call that has one."""

    def __init__(self, source: ProcessSource) -> None:
        self._source = source
        self._known: dict[tuple[PythonCall, ...], tuple[str, PythonCall | None]] = {}

    def phase(self, calls: tuple[PythonCall, ...]) -> str:
        if calls not in self._known:
            self._known[calls] = self._search(calls)
        return self._known[calls][0]

    def place(self, look: Look) -> PythonCall | None:
        """The user's line to name: the innermost; for a validation the one that starts it."""
        return self._known[look.calls][1] if self.phase(look.calls) == "validation" else user_call(look.calls)

    def _search(self, calls: Sequence[PythonCall]) -> tuple[str, PythonCall | None]:
        caller = None
        for call in reversed(calls):
            for phase, fits in _PHASES:
                if fits(call):
                    return phase, None
            if call.is_users:
                if self._source.validates_at(call.file, call.line, call.function):
                    return "validation", caller or call
                caller = call
        return "other", None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A part of the looks at a rank. ``seen_ratio`` is its share, ``ratio`` that of what returns."""

    kind: str
    rank: Watched
    looks: tuple[Look, ...]
    seen_ratio: float
    ratio: float

    @property
    def is_slow(self) -> bool:
        return self.ratio >= LIMITS[self.kind]


def weigh_causes(
    ranks: Sequence[Watched],
    moving: Sequence[Watched],
    children: Mapping[int, Sequence[Watched]],
    phases: Phases,
    is_helped: Callable[[Watched, Look], bool],
) -> list[Cause]:
    """All parts that could make the training slow, of the rank that waits least for others: a straggler first, then
    the largest share first."""
    lead = min(moving, key=exchange_ratio)
    causes = [*_weigh_looks(lead, children[lead.pid], phases, is_helped), *_weigh_threads(ranks)]
    causes.sort(key=lambda cause: (not cause.is_slow, -cause.seen_ratio))
    return [*_weigh_straggler(ranks), *causes]


def exchange_ratio(one: Watched) -> float:
    """Share of the looks that found the rank in an exchange."""
    return sum(look.wait.kind == COLLECTIVE for look in one.looks) / max(1, len(one.looks))


def repeated_ratio(marks: Sequence[bool | None]) -> float:
    """Share that is marked True, without the longest stretch; 0 if there are too few to say that it returns. None
    neither belongs to a stretch nor ends it.

    >>> repeated_ratio([True, False, True, None, False, True]), repeated_ratio([True] * 9 + [False])
    (0.4, 0.0)
    """
    lengths = [0]
    for mark in marks:
        if mark:
            lengths[-1] += 1
        elif mark is False and lengths[-1]:
            lengths.append(0)
    stretches_count, longest = sum(length > 0 for length in lengths), max(lengths)
    return (sum(lengths) - longest) / (len(marks) - longest) if stretches_count >= FEWEST_STRETCHES else 0.0


def _weigh_looks(
    one: Watched, children: Sequence[Watched], phases: Phases, is_helped: Callable[[Watched, Look], bool]
) -> Iterable[Cause]:
    kinds = _classify_looks(one, phases)
    for kind in sorted(LIMITS.keys() & set(kinds)):
        looks = tuple(look for look, its in zip(one.looks, kinds, strict=True) if its == kind)
        seen_ratio = ratio = len(looks) / len(kinds)
        if kind in RETURNING or (kind == WAITS and is_helped(one, looks[-1])):
            ratio = repeated_ratio([its == kind or (False if its in TRAINING else None) for its in kinds])
        if kind == LOADER:
            if seen_ratio >= ALWAYS_RATIO and one.wakes_per_s * one.watched_s >= FEWEST_WAKES:
                ratio = seen_ratio
            looks = tuple(look for child in children if child.member.role == WORKER for look in child.looks) or looks
        elif kind == GIL:
            looks = tuple(one.others[max(one.others, key=lambda thread: one.thread_cpu_s.get(thread, 0.0))])
        yield Cause(kind=kind, rank=one, looks=looks, seen_ratio=seen_ratio, ratio=ratio)


def _classify_looks(one: Watched, phases: Phases) -> list[str]:
    """The cause or the phase of each look. Code outside the model is OUTSIDE if hardly any gradients pass through it;
    else it may be a part of the model."""
    rivals_s = sum(one.thread_cpu_s.get(thread, 0.0) for thread in one.others)
    natives_s = one.cpu_s - one.main_cpu_s - rivals_s
    wants_gil = rivals_s > one.main_cpu_s and one.wakes_per_s >= GIL_WAKES_PER_S
    kinds: list[str] = []
    for look in one.looks:
        phase, wait = phases.phase(look.calls), look.wait
        is_native = wait.kind == "lock" and natives_s > BUSY_RATIO * one.watched_s  # for other threads of an operator
        if wants_gil and wait.kind in ("lock", "native code"):
            kinds.append(GIL)
        elif wait.kind not in (COMPUTING, "native code") and not is_native:
            kinds.append({COLLECTIVE: EXCHANGES, LOADER: LOADER}.get(wait.kind, WAITS))
        elif phase == "input_wait":
            kinds.append(LOADING if _is_in_user_code(look, "torch.utils.data") else TORCH_LOADER)
        else:
            kinds.append(phase)
    gradients_count = kinds.count("backward")
    if 0 < gradients_count <= GRADIENT_RATIO * kinds.count(OUTSIDE):
        return kinds
    return ["own" if kind == OUTSIDE else kind for kind in kinds]


def _is_in_user_code(look: Look, library: str) -> bool:
    """Whether a library called the user's own code."""
    call = next((call for call in look.calls if call.is_users or call.module.startswith(library)), None)
    return call is not None and call.is_users


def _weigh_straggler(ranks: Sequence[Watched]) -> Iterable[Cause]:
    """One rank that works while each other one waits for it, again and again."""
    if len(ranks) < 2 or not all(one.looks for one in ranks):
        return
    lead = min(ranks, key=exchange_ratio)
    others = [one for one in ranks if one is not lead]
    busy = tuple(look for look in lead.looks if look.wait.kind != COLLECTIVE and look.place is not None)
    waits_ratio = sum(look.wait.kind != COMPUTING for look in busy) / len(lead.looks)
    works_more = lead.main_cpu_s >= MORE_CPU_TIMES * max(one.main_cpu_s for one in others)
    if busy and (works_more or waits_ratio >= LIMITS[WAITS]):
        seen_ratio, ratio = (
            min(share(one) for one in others) - exchange_ratio(lead) for share in (exchange_ratio, _awaits_ratio)
        )
        yield Cause(kind=STRAGGLER, rank=lead, looks=busy, seen_ratio=seen_ratio, ratio=ratio)


def _awaits_ratio(one: Watched) -> float:
    """Share of the looks in exchanges that all take part in; another look at the same line does not end one."""
    place = one.usual.place if one.usual is not None else None
    waits = [look.wait.kind == COLLECTIVE and not P2P.match(look.wait.detail or "") for look in one.looks]
    return repeated_ratio(
        [its or (None if look.place == place else False) for its, look in zip(waits, one.looks, strict=True)]
    )


def _weigh_threads(ranks: Sequence[Watched]) -> Iterable[Cause]:
    """Threads that want to run, of all ranks, for each core that they may use."""
    lead = ranks[0]
    try:
        cores_count = len(os.sched_getaffinity(lead.pid))
    except OSError:  # it is gone
        return
    runnable_count = sum(sum(one.runnable_counts) / max(1, len(one.runnable_counts)) for one in ranks)
    ratio = runnable_count / cores_count
    yield Cause(kind=THREADS, rank=lead, looks=tuple(lead.looks), seen_ratio=ratio, ratio=ratio)
