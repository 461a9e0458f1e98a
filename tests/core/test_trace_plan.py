import pytest

from hotloop.core.errors import UsageError
from hotloop.core.trace_plan import RECORD, SAVE, WAIT, WARMUP, TracePlan, parse_trace_plan, parse_trace_ranks


def test_every_step_of_a_cycle_has_its_action():
    plan = TracePlan(wait=2, warmup=1, active=2, repeat=2, skip_first=1)
    cycle = [WAIT, WAIT, WARMUP, RECORD, SAVE]
    assert [plan.act_in(step) for step in range(1, 14)] == [WAIT, *cycle, *cycle, WAIT, WAIT]


def test_recorded_steps_are_those_in_which_the_plan_records():
    plan = TracePlan(wait=3, warmup=2, active=4, repeat=3, skip_first=2)
    spans = [plan.recorded_steps(number) for number in range(3)]
    recorded = [step for step in range(1, 40) if plan.act_in(step) in (RECORD, SAVE)]
    assert recorded == [step for first, last in spans for step in range(first, last + 1)]


def test_a_plan_without_end_is_never_over():
    assert not TracePlan(active=1, repeat=0).is_over(10**9)


def test_a_plan_is_over_after_its_last_recorded_step():
    plan = TracePlan(wait=5, warmup=2, active=3)
    assert (plan.is_over(10), plan.is_over(11)) == (False, True)


def test_the_words_name_the_recorded_steps():
    assert parse_trace_plan("5:2:3").describe() == "waits 5, warms up 2, records 3 steps, 1 time: steps 8-10"
    assert parse_trace_plan("1:0:1:2").describe() == "waits 1, warms up 0, records 1 step, 2 times: steps 2, 4"
    assert parse_trace_plan("0:1:1:9").describe().endswith("9 times: steps 2, 4, 6, ..., 18")


def test_the_words_of_one_step_are_singular():
    assert parse_trace_plan("1:1:1").describe() == "waits 1, warms up 1, records 1 step, 1 time: step 3"


@pytest.mark.parametrize("text", ["", "5", "5:2", "5:2:3:1:1", "5:2:x", "5:-2:3", "5:2:3:", "5:2:²"])
def test_another_form_is_answered_with_the_right_one(text: str):
    with pytest.raises(UsageError, match=r"wait:warmup:active\[:repeat\]"):
        parse_trace_plan(text)


def test_a_plan_that_records_nothing_is_refused():
    with pytest.raises(UsageError, match="records nothing"):
        parse_trace_plan("5:2:0")


def test_the_first_step_cannot_be_recorded_in_a_run():
    with pytest.raises(UsageError, match="the first step cannot be recorded"):
        parse_trace_plan("0:0:3")


def test_an_endless_plan_is_refused_in_a_run():
    with pytest.raises(UsageError, match="repeat must be 1 or more"):
        parse_trace_plan("1:1:3:0")


def test_ranks_are_listed_spanned_or_all():
    assert parse_trace_ranks("0,2-4") == {0, 2, 3, 4}
    assert parse_trace_ranks("all") is None


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "-1"])
def test_a_bad_list_of_ranks_is_answered_with_the_form(text: str):
    with pytest.raises(UsageError, match="write ranks such as 0,1 or 0-3, or all"):
        parse_trace_ranks(text)
