import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.core.phases import PHASES
from hotloop.core.recording import FIELD, STEP_FIELDS, TIME_FIELDS
from hotloop.evidence.analyze.partition import find_validation, split_phases
from hotloop.evidence.analyze.process import analyze_process
from hotloop.evidence.analyze.segments import build_steps
from hotloop.evidence.analyze.summary import merge_breakdowns


class Plain:
    """A recording of rows alone."""

    process: dict = {}  # noqa: RUF012
    facts: tuple = ()
    lost_rows = 0
    closed = False

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows


@st.composite
def recorded_rows(draw) -> np.ndarray:
    """Rows of any numbers whose times sum to their windows, some of them blocks."""
    count = draw(st.integers(1, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    optimizers = draw(st.integers(1, 4))
    with_blocks = draw(st.booleans())
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 1_000, (count, len(STEP_FIELDS)))
    rows[:, [FIELD[name] for name in TIME_FIELDS]] = rng.integers(0, 10**9, (count, len(TIME_FIELDS)))
    rows[:, FIELD["closed_by"]] = rng.choice([0, 0, 0, 0, 1, 2, 3], count)
    rows[:, FIELD["optimizer_index"]] = rng.integers(-1, optimizers, count)
    rows[:, FIELD["rows_merged"]] = np.where(with_blocks & (rng.random(count) < 0.3), rng.integers(2, 9, count), 1)
    rows[:, FIELD["index"]] = np.cumsum(rows[:, FIELD["rows_merged"]]) - rows[:, FIELD["rows_merged"]]
    if draw(st.booleans()) and count > 3:
        rows = np.delete(rows, draw(st.integers(1, count - 2)), axis=0)
    spans = rows[:, [FIELD[name] for name in TIME_FIELDS]].sum(axis=1)
    rows[:, FIELD["end_ns"]] = np.cumsum(spans)
    rows[:, FIELD["start_ns"]] = rows[:, FIELD["end_ns"]] - spans
    return rows


@settings(deadline=None, max_examples=150)
@given(recorded_rows())
def test_phases_sum_to_the_step_exactly_and_are_never_negative(rows):
    steps = build_steps(rows, closed=True)
    phases = split_phases(steps, find_validation(steps))
    assert tuple(phases) == PHASES
    assert np.array_equal(np.sum(list(phases.values()), axis=0), steps.step_ns)
    assert all((column >= 0).all() for column in phases.values())


@settings(deadline=None, max_examples=150)
@given(recorded_rows())
def test_steps_and_tail_hold_all_of_the_time(rows):
    steps = build_steps(rows, closed=True)
    if steps.broken_count == 0:
        times = rows[:, [FIELD[name] for name in TIME_FIELDS]]
        assert int(steps.step_ns.sum()) + (steps.tail_ns or 0) == int(times.sum()) or steps.count == 0
    assert (steps.weight >= 1).all()
    assert (np.diff(steps.first_row) > 0).all()


@settings(deadline=None, max_examples=150)
@given(recorded_rows())
def test_any_recording_is_analysed_and_its_shares_add_to_one(rows):
    found = analyze_process(Plain(rows))
    if found is None:
        assert build_steps(rows, closed=False).count == 0
        return
    rank = found.rank
    assert abs(sum(rank.breakdown.share(p) for p in PHASES) - 1) < 1e-9
    assert 1 <= rank.steady_count <= rank.steps
    assert len(rank.columns["forward_ns"]) == rank.steady_count
    assert np.isclose(rank.mean["forward_ns"] * rank.steady_count, sum(rank.columns["forward_ns"]))
    assert rank.step_noise_ratio >= 0
    top = merge_breakdowns([rank.breakdown] * 3)
    assert abs(sum(top.share(p) for p in PHASES) - 1) < 1e-9


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(4, 30), st.integers(0, 24))
def test_every_turn_of_the_optimizers_is_one_step(first_steps, others, turns, left_over):
    """The first optimizer steps ``first_steps`` times a turn, each of the others once; the run may end in a turn."""
    turn = [0] * first_steps + list(range(1, others + 1))
    order = turn * turns + turn[: min(left_over, len(turn) - 1)]
    rows = np.zeros((len(order), len(STEP_FIELDS)), dtype=np.int64)
    rows[:, FIELD["index"]] = np.arange(len(order))
    rows[:, FIELD["rows_merged"]] = 1
    rows[:, FIELD["backwards"]] = 1
    rows[:, FIELD["optimizer_index"]] = order
    rows[:, FIELD["forward_ns"]] = 1
    steps = build_steps(rows, closed=True)
    assert steps.count == turns
    assert steps.columns["rows_merged"].tolist() == [len(turn)] * turns
    assert steps.tail_ns == len(order) - turns * len(turn)


@settings(deadline=None, max_examples=60)
@given(recorded_rows(), st.integers(2, 50))
def test_all_times_scaled_alike_leave_the_shares_alone(rows, factor):
    scaled = rows.copy()
    times = [FIELD[name] for name in (*TIME_FIELDS, "start_ns", "end_ns")]
    times += [FIELD[name] for name in ("burst_input_ns", "burst_gap_ns", "burst_h2d_ns")]
    scaled[:, times] = np.maximum(rows[:, times], 0) * factor
    a, b = build_steps(rows, closed=True), build_steps(scaled, closed=True)
    one, other = split_phases(a, find_validation(a)), split_phases(b, find_validation(b))
    for name in PHASES:
        assert np.abs(one[name] * factor - other[name]).max(initial=0) <= 2 * factor
