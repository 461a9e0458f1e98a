from hotloop.analyze.segments import build_steps
from hotloop.analyze.steady import Steady, find_steady
from hotloop.core.recording import FLAG_DEEP, FLAG_FOREIGN_PROFILER

from .synthetic import MS, Rows


def steady_of(rows: Rows) -> Steady:
    return find_steady(build_steps(rows.array(), closed=True))


def test_the_first_step_is_always_warm_up():
    rows = Rows()
    for _ in range(100):
        rows.step()
    steady = steady_of(rows)
    assert (steady.warmup_count, steady.steady_count) == (1, 99)
    assert steady.messages == ()


def test_slow_first_steps_are_warm_up():
    rows = Rows()
    for i in range(200):
        rows.step(other_ns=max(0, 50 - 10 * i) * MS)
    steady = steady_of(rows)
    assert 4 <= steady.warmup_count <= 6


def test_compilation_in_the_prefix_is_warm_up():
    rows = Rows()
    for i in range(200):
        rows.step(compile_ns=MS if i in (0, 1, 7) else 0)
    assert steady_of(rows).warmup_count == 8


def test_a_late_recompilation_is_never_dropped():
    rows = Rows()
    for i in range(200):
        rows.step(compile_ns=300 * MS if i in (0, 1, 120) else 0, other_ns=300 * MS if i == 120 else 0)
    steady = steady_of(rows)
    assert steady.warmup_count == 2
    assert steady.mask[120]


def test_compilation_that_never_settles_keeps_all_but_the_first():
    rows = Rows()
    for i in range(300):
        rows.step(compile_ns=MS if i % 4 == 0 else 0)
    steady = steady_of(rows)
    assert steady.warmup_count == 1
    assert any("kept recompiling" in m for m in steady.messages)


def test_compilation_that_settles_only_late_keeps_all_but_the_first():
    rows = Rows()
    for i in range(300):
        rows.step(compile_ns=MS if i < 200 and i % 4 == 0 else 0)
    steady = steady_of(rows)
    assert steady.warmup_count == 1
    assert any("kept recompiling" in m for m in steady.messages)


def test_later_outliers_are_never_dropped():
    rows = Rows()
    for i in range(500):
        rows.step(checkpoint_ns=400 * MS if i % 100 == 99 else 0)
    steady = steady_of(rows)
    assert (steady.warmup_count, steady.steady_count) == (1, 499)


def test_uneven_steps_are_no_warm_up():
    rows = Rows()
    for i in range(200):
        rows.step(input_wait_ns=(40 if i % 4 == 0 else 0) * MS)
    assert steady_of(rows).warmup_count <= 4


def test_a_prefix_is_at_most_a_fifth_or_fifty_steps():
    rows = Rows()
    for i in range(100):
        rows.step(other_ns=100 * MS if i < 49 else 0)
    assert steady_of(rows).warmup_count <= 50


def test_a_short_run_keeps_ten_steps_where_it_can():
    rows = Rows()
    for i in range(15):
        rows.step(compile_ns=MS if i < 3 else 0)
    steady = steady_of(rows)
    assert (steady.warmup_count, steady.steady_count) == (3, 12)


def test_fewer_than_ten_steady_steps_are_all_but_the_first_and_health_says_so():
    rows = Rows()
    for _ in range(6):
        rows.step()
    steady = steady_of(rows)
    assert (steady.warmup_count, steady.steady_count) == (1, 5)
    assert any("5 steady steps" in m for m in steady.messages)


def test_one_step_is_its_own_base():
    rows = Rows()
    rows.step()
    steady = steady_of(rows)
    assert (steady.warmup_count, steady.steady_count) == (0, 1)
    assert any("one step" in m for m in steady.messages)


def test_steps_of_a_deep_window_are_left_out_and_counted():
    rows = Rows()
    for i in range(100):
        rows.step(flags=FLAG_DEEP if 40 <= i < 45 else 0)
    steady = steady_of(rows)
    assert (steady.steady_count, steady.deep_count) == (94, 5)


def test_a_users_own_profiler_in_every_step_drops_nothing():
    rows = Rows()
    for _ in range(100):
        rows.step(flags=FLAG_DEEP | FLAG_FOREIGN_PROFILER)
    steady = steady_of(rows)
    assert (steady.steady_count, steady.deep_count) == (99, 0)
    assert any("another profiler" in m for m in steady.messages)


def test_a_run_that_is_one_block_keeps_it():
    rows = Rows()
    rows.step(rows_merged=500)
    assert steady_of(rows).steady_count == 500
