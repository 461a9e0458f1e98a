"""One rank against several: wait, transfer and the rest sum to the growth exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.core.comparison import REST_TERMS, GrowthSplit
from hotloop.core.trace import Trace
from hotloop.evidence.analyze.changes import sum_terms
from hotloop.evidence.analyze.timeline.collectives import collect_collectives
from hotloop.evidence.analyze.timeline.compare_traces import DEVICE_PARTS, device_steps
from hotloop.evidence.analyze.timeline.growth import RankWork, SideWork, collect_work, split_growth
from hotloop.evidence.analyze.timeline.intervals import unite, unite_sets
from hotloop.evidence.analyze.timeline.reduce import lay_groundwork, reduce_trace
from hotloop.evidence.trace.inputs import find_traces, read_trace_file

from .plain_trace import TRACES, US
from .rank_columns import Span, rank

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the public traces are not at {TRACES}")
Piece = tuple[str, int, int]
"""(name, start, end) in us."""


def work(pieces: list[Piece], comm: list[Span], period_us: int, steps: int) -> RankWork:
    """The same step over and over; every step's window is one period."""
    shift = np.repeat(np.arange(steps) * period_us, len(pieces)) * US

    def repeated(values: list[int]) -> np.ndarray:
        return np.tile(np.array(values, dtype=np.int64) * US, steps) + shift

    start, end = repeated([p[1] for p in pieces]), repeated([p[2] for p in pieces])
    own = unite(start, end)
    spans = repeat(comm, period_us, steps)
    talk = unite(*(np.array([s[i] * US for s in spans], dtype=np.int64) for i in (1, 2)))
    low = np.arange(steps, dtype=np.int64) * period_us * US
    return RankWork(
        window="device window",
        low_ns=low,
        high_ns=low + period_us * US,
        step=np.arange(steps, dtype=np.int64),
        work=own,
        comm=talk,
        busy=unite_sets(own, talk),
    )


def repeat(comm: list[Span], period_us: int, steps: int) -> list[Span]:
    return [(kind, a + i * period_us, b + i * period_us, n) for i in range(steps) for kind, a, b, n in comm]


def side(ranks: list[tuple[list[Piece], list[Span]]], period_us: int, steps: int = 3) -> SideWork:
    return SideWork(
        [work(pieces, comm, period_us, steps) for pieces, comm in ranks],
        [rank(i, repeat(comm, period_us, steps), sequence=True) for i, (_, comm) in enumerate(ranks)],
    )


ALONE = ([("a", 0, 200), ("b", 200, 500)], [])
FAST = ([("a", 0, 200), ("b", 450, 800)], [("all_reduce", 200, 450, 64), ("all_reduce", 450, 850, 128)])
SLOW = ([("a", 0, 300), ("b", 450, 750)], [("all_reduce", 300, 450, 64), ("all_reduce", 450, 850, 128)])


def split(before: SideWork, after: SideWork) -> GrowthSplit:
    found, why = split_growth(before, after)
    assert found is not None, why
    return found


def parts(found: GrowthSplit) -> dict[str, float]:
    assert tuple(t.name for t in found.change.terms) == ("wait", "transfer", "rest")
    assert tuple(t.name for t in found.rest.terms) == REST_TERMS
    assert sum(t.delta_ns for t in found.change.terms) == found.change.whole.delta_ns
    assert sum(t.delta_ns for t in found.rest.terms) == found.rest.whole.delta_ns
    both = [*found.change.terms, *(t for t in found.rest.terms)]
    return {t.name: t.delta_ns / US for t in both}


def test_the_growth_is_split() -> None:
    """600 us alone become 1000 us on two ranks. The fast rank waits 100 us for the slow one, whose `a` takes 100 us
    longer; `b` takes 50 us longer on the fast rank. Transfers that nothing hides: 150 + 50 us and 150 + 100 us. Nothing
    runs for 150 us on both, 100 us alone."""
    found = split(side([ALONE], 600), side([FAST, SLOW], 1000))
    assert found.change.whole.delta_ns == 400 * US
    assert parts(found) == {
        "wait": 50, "transfer": 225, "rest": 125,
        "compute": 75, "unmatched_comm": 0, "copies": 0, "idle": 50,
    }  # fmt: skip
    assert found.notes == ()
    assert all(t.half_width_ns == 0 for t in found.change.terms)


def test_without_its_partners_wait_is_not_told_from_transfer() -> None:
    found, why = split_growth(side([ALONE], 600), SideWork(side([FAST], 1000).work, side([FAST], 1000).collectives))
    assert found is None
    assert why == "after: 6 of 6 collectives could not be matched across ranks; there is only one rank"


def test_a_few_unmatched_collectives_stand_in_the_rest() -> None:
    """A broadcast's root may leave early: 10 us of it are neither wait nor transfer."""
    extra: list[Span] = [("broadcast", 850, 860, 32)]
    found = split(side([ALONE], 600), side([(FAST[0], FAST[1] + extra), (SLOW[0], SLOW[1] + extra)], 1000))
    assert parts(found) == {
        "wait": 50, "transfer": 225, "rest": 125,
        "compute": 75, "unmatched_comm": 10, "copies": 0, "idle": 40,
    }  # fmt: skip
    assert "6 of 18 collectives could not be matched" in found.notes[0]


def test_the_same_side_twice_grows_by_nothing() -> None:
    assert set(parts(split(side([FAST, SLOW], 1000), side([FAST, SLOW], 1000))).values()) == {0}


SPAN = st.tuples(st.integers(0, 900), st.integers(1, 400)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(st.tuples(st.sampled_from("ab"), SPAN), max_size=6), st.lists(SPAN, max_size=4), st.integers(0, 300))
def test_terms_sum_whatever_runs_when(
    pieces: list[tuple[str, tuple[int, int]]], comm: list[tuple[int, int]], late: int
):
    """Any work and any collectives, overlapping as they like and reaching beyond their window."""
    rows = [(name, *span) for name, span in pieces]
    early: list[Span] = [("all_reduce", a, b + late, 64) for a, b in sorted(comm)]
    tardy: list[Span] = [("all_reduce", min(a + late, b), b + late, 64) for a, b in sorted(comm)]
    found, why = split_growth(side([ALONE], 600), side([(rows, early), (rows, tardy)], 1000))
    if found is None:
        assert "could not be matched" in why
        return
    named = parts(found)
    assert named["wait"] + named["transfer"] + named["rest"] == pytest.approx(400)
    after = {t.name: t.after_ns for t in (*found.change.terms, *found.rest.terms)}
    assert min(after[name] for name in ("wait", "transfer", "unmatched_comm", "copies", "idle")) >= 0


def collect(trace: Trace):
    ground = lay_groundwork(trace)
    together = (trace, ground.links, ground.classes, ground.steps)
    return collect_work(*together), collect_collectives(*together)


def read_side(*names: str) -> SideWork:
    found = []
    for file in find_traces([TRACES / name for name in names]).files:
        found += [collect(trace) for trace in read_trace_file(file)]
    held = [one for one, _ in found if one is not None]
    assert len(held) == len(found)
    return SideWork(held, [collectives for _, collectives in found])


@needs_traces
def test_the_backward_of_gloo_on_the_host_is_split() -> None:
    """The same model alone and on two ranks: the backward grows by its collectives, and none stays unmatched."""
    both = ("cpu/ddp_gloo_rank0.pt.trace.json.gz", "cpu/ddp_gloo_rank1.pt.trace.json.gz")
    found = split(read_side("cpu/plain.pt.trace.json.gz"), read_side(*both))
    assert found.window == "backward"
    named = parts(found)
    assert named["wait"] > 0
    assert named["transfer"] > 0
    assert found.notes == ()


@needs_traces
def test_wait_and_transfer_of_eight_ranks_are_their_exposed_communication() -> None:
    """Against the partition of the same windows, which knows nothing of ranks; the side is as itself."""
    found, timelines = [], []
    for file in find_traces([TRACES / "dlrm_8ranks_v100"]).files:
        (trace,) = read_trace_file(file)
        found.append(collect(trace))
        timelines.append(reduce_trace(trace))
    eight = SideWork([one for one, _ in found if one is not None], [collectives for _, collectives in found])
    assert len(eight.work) == 8
    itself = split(eight, SideWork(eight.work, eight.collectives))
    assert set(parts(itself).values()) == {0}
    after = {t.name: t.after_ns for t in (*itself.change.terms, *itself.rest.terms)}
    steps = device_steps(timelines)
    assert steps is not None
    known = {t.name: t.after_ns for t in sum_terms("device window", DEVICE_PARTS, steps, steps).terms}
    assert after["wait"] + after["transfer"] + after["unmatched_comm"] == pytest.approx(known["exposed_comm"], abs=3)
    assert after["compute"] == pytest.approx(known["compute"], abs=3)
    assert after["idle"] == pytest.approx(known["idle"], abs=3)
    assert after["wait"] > 0.5 * known["exposed_comm"]
    assert itself.notes == ()
