import pytest

from hotloop.core.recording import FLAG_DEEP, FLAG_FOREIGN_PROFILER
from hotloop.evidence.analyze.segments import build_steps
from hotloop.evidence.analyze.steady import Steady, find_steady

from .synthetic import MS, Rows, steps


def steady_of(rows: Rows) -> Steady:
    return find_steady(build_steps(rows.array(), closed=True))


@pytest.mark.parametrize(
    ("count", "each", "warmup", "message"),
    [
        (100, lambda i: {}, 1, None),
        (200, lambda i: {"compile_ns": MS if i in (0, 1, 7) else 0}, 8, None),
        # compilation that never settles, or late
        (300, lambda i: {"compile_ns": MS if i % 4 == 0 else 0}, 1, "kept recompiling"),
        (300, lambda i: {"compile_ns": MS if i < 200 and i % 4 == 0 else 0}, 1, "kept recompiling"),
        (500, lambda i: {"checkpoint_ns": 400 * MS if i % 100 == 99 else 0}, 1, None),
        (15, lambda i: {"compile_ns": MS if i < 3 else 0}, 3, None),
        (6, lambda i: {}, 1, "5 steady steps"),
        (1, lambda i: {}, 0, "one step"),
        (1, lambda i: {"rows_merged": 500}, 0, None),
        (100, lambda i: {"flags": FLAG_DEEP | FLAG_FOREIGN_PROFILER}, 1, "another profiler"),
    ],
)
def test_steps_before_the_steady_ones_are_warm_up(count, each, warmup, message):
    rows = steps(each(i) for i in range(count))
    steady = steady_of(rows)
    merged = sum(each(i).get("rows_merged", 1) for i in range(count))
    assert (steady.warmup_count, steady.steady_count, steady.deep_count) == (warmup, merged - warmup, 0)
    assert (not steady.messages) if message is None else any(message in told for told in steady.messages)


@pytest.mark.parametrize(
    ("count", "other_ms", "fewest", "most"),
    [
        (200, lambda i: max(0, 50 - 10 * i), 4, 6),
        (200, lambda i: 40 if i % 4 == 0 else 0, 0, 4),  # uneven steps
        (100, lambda i: 100 if i < 49 else 0, 0, 50),  # at most a fifth or fifty steps
    ],
)
def test_slow_first_steps_are_warm_up(count, other_ms, fewest, most):
    assert fewest <= steady_of(steps({"other_ns": other_ms(i) * MS} for i in range(count))).warmup_count <= most


def test_batches_that_shrink_are_no_warm_up():
    tokens = [int(2000 * 0.97**i) + 40 for i in range(120)]
    by_size = [{"padded_tokens": size, "forward_ns": (3 + size // 20) * MS} for size in tokens]
    by_start = [{"padded_tokens": 500, "forward_ns": (300 if i < 12 else 30) * MS} for i in range(120)]
    assert [steady_of(steps(rows)).warmup_count for rows in (by_size, by_start)] == [1, 12]


def test_a_late_recompilation_is_never_dropped():
    late = {0: {"compile_ns": 300 * MS}, 1: {"compile_ns": 300 * MS}, 120: {"compile_ns": MS, "other_ns": 300 * MS}}
    steady = steady_of(steps(late.get(i, {}) for i in range(200)))
    assert (steady.warmup_count, bool(steady.mask[120])) == (2, True)


def test_steps_of_a_deep_window_are_left_out_and_counted():
    steady = steady_of(steps({"flags": FLAG_DEEP if 40 <= i < 45 else 0} for i in range(100)))
    assert (steady.steady_count, steady.deep_count) == (94, 5)
