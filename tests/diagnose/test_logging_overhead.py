import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Skipped
from hotloop.judge.diagnose.rules.logging_overhead import logging_overhead

from .build_analysis import Told, check, find, fix_of, make_analysis, make_line, saving_of


def test_logging_in_every_step_is_named_by_its_line() -> None:
    lines = {
        "after_backward_ns": (make_line(60, 0.5, "print(loss.item())"), make_line(61, 0.5, "p.grad.mul_(c)")),
        "other_ns": (make_line(62, 1.0, "writer.add_scalar('loss', value, step)"),),
    }
    one = find(logging_overhead, make_analysis(after_backward=0.2, other=0.2, lines=lines))
    assert one.cost_ratio == pytest.approx(0.3)
    assert one.severity is Severity.HIGH
    assert [w.line for w in one.where] == [62, 60]
    assert "(writer.add_scalar" in one.title
    assert saving_of(one).mid_ratio == pytest.approx(0.27)


def test_few_samples_make_the_forecast_careful() -> None:
    few = {"other_ns": (make_line(62, 0.5, "print(x)", samples=3), make_line(63, 0.5, "z = 1", samples=3))}
    many = {"other_ns": (make_line(62, 0.5, "print(x)", samples=300), make_line(63, 0.5, "z = 1", samples=300))}
    lows = []
    for lines in (few, many):
        one = find(logging_overhead, make_analysis(other=0.4, lines=lines))
        lows.append(saving_of(one).low_ratio)
    assert lows[0] < lows[1]


def test_a_loop_that_logs_rarely_is_not_told_to_log_as_often_as_it_does() -> None:
    lines = {"other_ns": (make_line(62, 1.0, "print(loss.item())"),)}
    rare = {"other_ns": [200_000_000 if i % 20 == 19 else 0 for i in range(100)]}
    often = {"other_ns": [10_000_000] * 100}
    found = {}
    for name, columns in (("rare", rare), ("often", often)):
        one = find(logging_overhead, make_analysis(other=0.1, lines=lines, columns=columns))
        found[name] = (fix_of(one).settings["every"], "of every step" in one.title, "1 of 20 steps" in one.title)
    assert found == {"rare": (200, False, True), "often": (10, True, False)}


def test_logging_beside_much_other_work_is_not_said_to_be_in_every_step() -> None:
    lines = {"other_ns": (make_line(62, 0.1, "writer.add_scalar('q', q)"), make_line(63, 0.9, "state = env.step(a)"))}
    one = find(logging_overhead, make_analysis(other=0.6, lines=lines))
    assert "every step" not in one.title


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(other=0.3, lines={"other_ns": (make_line(62, 1.0, "score = torch.log(p).sum()"),)}),
            None,
            id="gaps_that_do_not_log_are_something_else",
        ),
        pytest.param(
            make_analysis(
                other=0.05, lines={"other_ns": (make_line(62, 0.1, "print(loss.item())"), make_line(63, 0.9, "x = y"))}
            ),
            None,
            id="a_line_printed_now_and_then_is_nothing",
        ),
        pytest.param(make_analysis(other=0.3), Skipped, id="without_samples_the_gaps_cannot_be_judged"),
        pytest.param(
            make_analysis(
                other=0.2,
                lines={
                    "other_ns": (make_line(62, 0.5, "print(loss.item())"), make_line(63, 0.5, "state = env.step(a)"))
                },
                columns={"other_ns": [4_000_000 + (40_000_000 if i % 10 == 9 else i % 3 * 10_000) for i in range(100)]},
            ),
            {"fix.settings.every": 100},
            id="logging_in_one_of_ten_steps_beside_work_in_every_step_is_told_as_rare",
        ),
        pytest.param(
            make_analysis(
                other=0.2,
                lines={
                    "other_ns": (make_line(62, 0.1, "print(loss.item())"), make_line(63, 0.9, "state = env.step(a)"))
                },
                columns={
                    "other_ns": [4_000_000 + (160_000_000 if i % 10 == 9 else i % 3 * 10_000) for i in range(100)]
                },
            ),
            {"fix.settings.every": 10},
            id="long_gaps_that_hold_far_more_than_the_logging_do_not_make_it_rare",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(logging_overhead, analysis, told)
