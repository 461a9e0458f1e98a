"""Looks at ranks that move -> what takes their time outside the model's own work, and from which share on it is slow.

What is seen once may be a validation, an index that is built, or a child process that ends: only what returns after
training counts, and the longest stretch of it is left out.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hotloop.agent.replay.stack_reader import PythonCall

from .family import WORKER
from .source import VALIDATING_FUNCTION, ProcessSource
from .waits import COLLECTIVE, COMPUTING, LOADER, user_call
from .watch import Look, Watched

WAITS_RATIO = 0.40
"""A thread that waits is seen to wait: 40 % of the time is far from the few percent of a sound loader."""
WORKS_RATIO = 0.50
"""Work outside the model may be needed; no less than half of the time."""
TORCH_LOADER_RATIO = 0.70
"""The same for torch's loader without code of the user's in it: most of a step of a tiny model."""
EXCHANGE_RATIO = 0.85
"""Of the rank that waits least for exchanges; small models on few cores exchange for more than half of the time."""
GAP_RATIO = 0.40
"""By how much less a straggler waits for exchanges than each other rank."""
MORE_CPU_TIMES = 1.5
"""A rank that only gets less of the processor than the others does not use more of it."""
THREADS_PER_CORE = 4.0
GRADIENT_RATIO = 0.2
"""Code that gradients pass through costs at least this part of its own time in backward."""
FEWEST_STRETCHES = 3
FEWEST_WAITS = 5
"""Of waits for loader workers, where steps are too short to be seen between them; torch's wait wakes up every 5 s."""
CLOSE_RATIO = 0.6
"""From this part of a limit on, it is worth watching longer."""
BUSY_RATIO = 0.20
GIL_WAKES_PER_S = 20.0
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
        return self._find(calls)[0]

    def place(self, look: Look) -> PythonCall | None:
        """The user's line to name: the innermost; for a validation the one that starts it."""
        phase, call = self._find(look.calls)
        return call if phase == "validation" else user_call(look.calls)

    def _find(self, calls: tuple[PythonCall, ...]) -> tuple[str, PythonCall | None]:
        if calls not in self._known:
            self._known[calls] = self._search(calls)
        return self._known[calls]

    def _search(self, calls: Sequence[PythonCall]) -> tuple[str, PythonCall | None]:
        caller = None
        for call in reversed(calls):
            for phase, fits in _PHASES:
                if fits(call):
                    return phase, None
            if call.is_users:
                if VALIDATING_FUNCTION.search(call.function):
                    return "validation", caller or call
                if self._source.loops_to_validate(call.file, call.line):
                    return "validation", call
                caller = call
        return "other", None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A part of the looks at a rank. ``seen_ratio`` is its share, ``ratio`` that of what returns; slow from
    ``limit_ratio`` on."""

    kind: str
    rank: Watched
    looks: tuple[Look, ...]
    seen_ratio: float
    ratio: float
    limit_ratio: float

    @property
    def is_slow(self) -> bool:
        return self.ratio >= self.limit_ratio

    @property
    def is_close(self) -> bool:
        return self.seen_ratio >= CLOSE_RATIO * self.limit_ratio


STRAGGLER, THREADS, WAITS, EXCHANGES, GIL = "straggler", "threads", "waits", "exchanges", "interpreter lock"
OUTSIDE, VALIDATION, LOADING, TORCH_LOADER = "other", "validation", "loading", "torch's loader"
LIMITS = {
    WAITS: WAITS_RATIO, GIL: WAITS_RATIO, LOADER: WAITS_RATIO, EXCHANGES: EXCHANGE_RATIO, LOADING: WORKS_RATIO,
    TORCH_LOADER: TORCH_LOADER_RATIO, OUTSIDE: WORKS_RATIO, VALIDATION: WORKS_RATIO,
}  # fmt: skip
RETURNING = (LOADER, OUTSIDE, VALIDATION)
"""Causes that count only if they return after training; so do waits for something that computes."""


def weigh_causes(
    ranks: Sequence[Watched],
    moving: Sequence[Watched],
    children: Mapping[int, Sequence[Watched]],
    source: ProcessSource,
    phases: Phases,
    is_helped: Callable[[Watched, Look], bool],
) -> list[Cause]:
    """All parts that could make the training slow: a straggler first, then the largest share first."""
    lead = min(moving, key=lambda one: exchange_ratio(one))
    causes = [*_weigh_looks(lead, children[lead.pid], source, phases, is_helped), *_weigh_threads(ranks)]
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
    return _without_longest([length for length in lengths if length], len(marks), FEWEST_STRETCHES)


def _without_longest(lengths: Collection[int], whole: int, fewest_count: int) -> float:
    longest = max(lengths, default=0)
    return (sum(lengths) - longest) / (whole - longest) if len(lengths) >= fewest_count else 0.0


def _weigh_looks(
    one: Watched,
    children: Sequence[Watched],
    source: ProcessSource,
    phases: Phases,
    is_helped: Callable[[Watched, Look], bool],
) -> Iterable[Cause]:
    kinds = _classify_looks(one, source, phases)
    for kind, limit_ratio in LIMITS.items():
        looks = tuple(look for look, its in zip(one.looks, kinds, strict=True) if its == kind)
        seen_ratio = ratio = len(looks) / len(one.looks)
        if not looks:
            continue
        if kind in RETURNING or (kind == WAITS and is_helped(one, looks[-1])):
            marks = [its == kind or (False if its in TRAINING else None) for its in kinds]
            ratio = repeated_ratio(marks)
        if kind == LOADER:
            waits = Counter(look.runs_count for look in looks).values()
            ratio = max(ratio, _without_longest(waits, len(one.looks), FEWEST_WAITS))
            looks = tuple(look for child in children if child.member.role == WORKER for look in child.looks) or looks
        if kind == GIL:
            looks = _busiest_thread(one) or looks
        yield Cause(kind=kind, rank=one, looks=looks, seen_ratio=seen_ratio, ratio=ratio, limit_ratio=limit_ratio)


def _classify_looks(one: Watched, source: ProcessSource, phases: Phases) -> list[str]:
    """The cause or the phase of each look. Code outside the model is OUTSIDE if hardly any gradients pass through it,
    or if it certainly runs Python; else "own"."""
    rivals_ratio, native_ratio = _cpu_ratios(one)
    wants_gil = rivals_ratio >= BUSY_RATIO and one.wakes_per_s >= GIL_WAKES_PER_S
    kinds: list[str] = []
    for look in one.looks:
        phase, wait = phases.phase(look.calls), look.wait
        computes = wait.kind in (COMPUTING, "native code") or (wait.kind == "lock" and native_ratio > BUSY_RATIO)
        if wants_gil and (wait.kind == "lock" or (wait.kind == "native code" and wait.detail != "backward")):
            kinds.append(GIL)
        elif not computes:
            kinds.append({COLLECTIVE: EXCHANGES, LOADER: LOADER}.get(wait.kind, WAITS))
        elif phase == "input_wait":
            kinds.append(LOADING if _is_in_user_code(look, "torch.utils.data") else TORCH_LOADER)
        else:
            kinds.append(phase)
    trains = "backward" in kinds or any(
        source.trains_at(call.file, call.line) == "inside" for look in one.looks for call in look.calls if call.is_users
    )
    if trains and kinds.count("backward") <= GRADIENT_RATIO * kinds.count(OUTSIDE):
        return kinds
    return [
        "own" if kind == OUTSIDE and not _runs_python(look, source) else kind
        for look, kind in zip(one.looks, kinds, strict=True)
    ]


def _runs_python(look: Look, source: ProcessSource) -> bool:
    """Whether the user's line itself runs, and certainly no operator of torch."""
    call = user_call(look.calls)
    return call is not None and call is look.calls[0] and source.runs_python(call.file, call.line)


def _is_in_user_code(look: Look, library: str) -> bool:
    """Whether a library called the user's own code."""
    for call in look.calls:
        if call.is_users or call.module.startswith(library):
            return call.is_users
    return False


def _cpu_ratios(one: Watched) -> tuple[float, float]:
    """CPU time of its other Python threads, and of all threads without Python, over the window."""
    rivals_s = sum(one.thread_cpu_s.get(thread, 0.0) for thread in one.others)
    seconds = max(one.watched_s, 1e-9)
    return rivals_s / seconds, (one.cpu_s - one.main_cpu_s - rivals_s) / seconds


def _busiest_thread(one: Watched) -> tuple[Look, ...]:
    thread = max(one.others, key=lambda number: one.thread_cpu_s.get(number, 0.0))
    return tuple(one.others[thread])


def _weigh_straggler(ranks: Sequence[Watched]) -> Iterable[Cause]:
    """One rank that works while each other one waits for it, again and again."""
    if len(ranks) < 2 or not all(one.looks for one in ranks):
        return
    lead = min(ranks, key=exchange_ratio)
    others = [one for one in ranks if one is not lead]
    busy = tuple(look for look in lead.looks if look.wait.kind != COLLECTIVE and look.place is not None)
    waits_ratio = sum(look.wait.kind != COMPUTING for look in busy) / len(lead.looks)
    works_more = lead.main_cpu_s >= MORE_CPU_TIMES * max(one.main_cpu_s for one in others)
    if busy and (works_more or waits_ratio >= WAITS_RATIO):
        seen_ratio, ratio = (
            min(share(one) for one in others) - exchange_ratio(lead) for share in (exchange_ratio, _awaits_ratio)
        )
        yield Cause(
            kind=STRAGGLER, rank=lead, looks=busy, seen_ratio=seen_ratio, ratio=ratio, limit_ratio=GAP_RATIO
        )  # fmt: skip


def _awaits_ratio(one: Watched) -> float:
    """Share of the looks in exchanges that all take part in; another look at the same line does not end one."""
    place = one.usual.place if one.usual is not None else None
    marks: list[bool | None] = []
    for look in one.looks:
        waits = look.wait.kind == COLLECTIVE and not P2P.match(look.wait.detail or "")
        marks.append(True if waits else None if look.place == place else False)
    return repeated_ratio(marks)


def _weigh_threads(ranks: Sequence[Watched]) -> Iterable[Cause]:
    """Threads that want to run, of all ranks, for each core that they may use."""
    lead = ranks[0]
    try:
        cores_count = len(os.sched_getaffinity(lead.pid))
    except OSError:  # it is gone
        return
    runnable_count = sum(sum(one.runnable_counts) / max(1, len(one.runnable_counts)) for one in ranks)
    ratio = runnable_count / cores_count / THREADS_PER_CORE
    yield Cause(
        kind=THREADS, rank=lead, looks=tuple(lead.looks), seen_ratio=ratio, ratio=ratio, limit_ratio=1.0
    )  # fmt: skip
