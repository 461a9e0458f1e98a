"""What each batch took -> how many workers to load with next: the model proposes, the clock decides."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.worker_model import LoadingWork, best_overlap, most_workers, waits_for_storage
from hotloop.train.fetch_pool import MakeCost

FIRST_S, LONGEST_S = 0.25, 2.0
"""A number of workers is judged over a span that doubles from the first to the longest, and over LEAST_BATCHES."""
LEAST_BATCHES = 6
GAIN_RATIO = 0.03
"""What another number of workers has to be faster by to be kept; what is less is noise."""
WAIT_RATIO = 0.03
"""A loop that waits for less than this part of its time has enough workers."""
CHANGED_RATIO = 0.25
"""A pace that differs by more from what the same number of workers gave before: the training or the machine changed."""
CHEAP_NS, CHEAP_S = 2e6, 5.0
"""Workers for batches that are made in less are not tried before so long: handing a batch over takes as much, and the
trial, some 0.2 s, is to be a small part of the run."""
FIRST_HOLD_S, LONGEST_HOLD_S = 5.0, 120.0
"""How long a choice stands before its neighbours are tried again; doubles each time that it was confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange:
    """The number of workers changed after so many batches of the loader, and why."""

    batches_count: int
    before: int
    after: int
    why: str


class WorkerControl:
    """Chooses a number of workers from 0 to ``most``.

    It begins with none and measures; then the model of core/worker_model.py proposes a number, and from there it
    climbs: a neighbour is tried for a span and kept only if the loop was faster with it. So too many workers never
    stay, and where workers only take cores from the training it goes back to none. ``cores``: those of this process.
    """

    def __init__(self, *, most: int, cores: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.changes: list[WorkerChange] = []
        self._cores = cores
        self._clock = clock
        self._batches = 0
        self._seen: dict[int, float] = {}
        """Seconds per batch by number of workers, the latest."""
        self._costs: list[MakeCost] = []
        self._busy_s = 0.0
        self._span_s = FIRST_S
        self._hold_s = FIRST_HOLD_S
        self._hold_until = 0.0
        self._others = 0
        """Spans in a row whose pace was another than before."""
        self._was_found = False
        """A search has ended: from then on only the nearest numbers are tried."""
        self._workers = 0
        self._cheap_until = clock() + CHEAP_S
        self._begin(settle=1)

    def renewed(self) -> WorkerControl:
        """One with the same bounds that knows nothing yet."""
        return WorkerControl(most=self.most, cores=self._cores, clock=self._clock)

    def note(self, *, wait_s: float, compute_s: float, compute_cpu_s: float, cost: MakeCost | None) -> None:
        """One batch: what the loop waited for it, and what it computed since the one before, wall and CPU."""
        self._batches += 1
        if cost is not None:
            self._costs = [*self._costs[-31:], cost]
        if self._settle > 0:
            self._settle -= 1
            if self._settle == 0:
                self._start_s = self._clock()
            return
        self._count += 1
        self._wait_s += wait_s
        self._compute_s += compute_s
        self._compute_cpu_s += compute_cpu_s

    def choose(self, workers: int, *, most: int | None = None) -> int:
        """How many workers from now on; ``workers`` is how many there are, ``most`` what memory allows at present."""
        if workers != self._workers:  # one died, or the pass began anew
            self._workers = workers
            self._begin(settle=2 * workers + 1)
            return workers
        if self._settle > 0 or self._count < max(LEAST_BATCHES, 2 * workers):
            return workers
        span_s = self._clock() - self._start_s
        is_poor = span_s > self._count * min(self._seen.values(), default=span_s) * (1 + CHANGED_RATIO)
        if span_s < (FIRST_S if is_poor else self._span_s):
            return workers
        most = self.most if most is None else max(0, min(most, self.most))
        before, pace_s = self._seen.get(workers), (self._wait_s + self._compute_s) / self._count
        is_other = before is not None and abs(pace_s - before) > CHANGED_RATIO * min(before, pace_s)
        self._others = self._others + 1 if is_other else 0
        if self._others == 2:  # one span may have been disturbed
            self._seen.clear()
            self._hold_s, self._hold_until, self._was_found = FIRST_HOLD_S, 0.0, False
        self._seen[workers] = pace_s
        wanted, why = self._next(workers, pace_s, most)
        if wanted != workers:
            change = WorkerChange(batches_count=self._batches, before=workers, after=wanted, why=why)
            self.changes = [*self.changes[-99:], change]
        self._workers = wanted
        self._span_s = min(LONGEST_S, self._span_s * 1.5)
        self._begin(settle=2 * max(workers, wanted) + 1 if wanted != workers else 0)
        return wanted

    def _begin(self, *, settle: int) -> None:
        self._settle = settle
        """Batches that still come from before the change."""
        self._count = 0
        self._wait_s = self._compute_s = self._compute_cpu_s = 0.0
        self._start_s = self._clock()

    def _next(self, workers: int, pace_s: float, most: int) -> tuple[int, str]:
        if workers > most:
            return most, "memory is short"
        best = min((one for one in self._seen if one <= most), key=lambda one: (self._seen[one], one))
        if self._seen[best] < pace_s * (1 - GAIN_RATIO):
            return best, f"{_say(self._seen[best])} a batch with {best}, {_say(pace_s)} with {workers}"
        if self._clock() < self._hold_until:
            return workers, ""
        wait_ratio = self._wait_s / max(1e-9, self._wait_s + self._compute_s)
        candidate = self._candidate(workers, wait_ratio, most)
        if candidate is None:
            fewer = [one for one in self._seen if one < workers and self._seen[one] <= pace_s * (1 + GAIN_RATIO)]
            self._hold_until = self._clock() + self._hold_s
            self._hold_s = min(LONGEST_HOLD_S, 2 * self._hold_s)
            self._was_found = True
            self._seen = {one: self._seen[one] for one in {workers, *fewer}}  # the neighbours are tried anew then
            if fewer:
                return min(fewer), f"{_say(self._seen[min(fewer)])} a batch with {min(fewer)} too"
            return workers, ""
        return candidate

    def _candidate(self, workers: int, wait_ratio: float, most: int) -> tuple[int, str] | None:
        """A number that was not tried yet and may be better; None when there is none."""
        if workers == 0 and self._clock() < self._cheap_until and self._work().wall_ns < CHEAP_NS:
            return None
        if wait_ratio > WAIT_RATIO:
            work = self._work()
            proposed = self._propose(work, most)
            more = [workers + 1]
            if not self._was_found:
                more = [proposed, *([min(most, 2 * workers)] if waits_for_storage(work) else []), *more]
            reach = most_workers(work, self._free_cores(), most=most) if most else 0
            for one in more:
                if workers < one <= max(reach, proposed) and one not in self._seen:
                    return one, f"the loop waited {wait_ratio:.0%} of its time"
            for one in (
                (workers - 1,) if self._was_found else (workers // 2, workers - 1)
            ):  # too many crowd each other out
                if 0 < one < workers and one not in self._seen:
                    return one, f"with {workers} the loop waited {wait_ratio:.0%} of its time; fewer may compete less"
        if workers > 0 and workers - 1 not in self._seen and wait_ratio <= WAIT_RATIO:
            return workers - 1, f"the loop waited only {wait_ratio:.1%} of its time; fewer may do"
        if workers > 0 and 0 not in self._seen and not waits_for_storage(self._work()):
            return 0, "to compare with loading in this process"
        return None

    def _propose(self, work: LoadingWork, most: int) -> int:
        if most == 0:
            return 0
        compute_s = max(1e-6, self._compute_s / self._count)
        cores = self._free_cores()
        busy = min(cores, max(1.0, self._compute_cpu_s / max(1e-9, self._compute_s)))
        step = best_overlap(compute_ns=1e9 * compute_s, work=work, batches=1.0, cores=cores, busy=busy, most=most)
        return step.workers

    def _free_cores(self) -> float:
        """What other programs leave of the cores: as much as loading got of a core whenever it was ready for one."""
        on_core_ns = sum(one.cpu_ns for one in self._costs)
        ready_ns = on_core_ns + sum(one.delay_ns for one in self._costs)
        return max(1.0, self._cores * on_core_ns / ready_ns) if ready_ns else self._cores

    def _work(self) -> LoadingWork:
        """Making a batch, as it would be with a core for each that needs one."""
        wall_ns = statistics.median(max(1, one.wall_ns - one.delay_ns) for one in self._costs) if self._costs else 1.0
        cpu_ns = statistics.median(one.cpu_ns for one in self._costs) if self._costs else 1.0
        return LoadingWork(wall_ns=wall_ns, cpu_ns=min(wall_ns, cpu_ns))


def _say(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
