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


def test_the_words_name_the_recorded_steps():
    assert parse_trace_plan("5:2:3").describe() == "waits 5, warms up 2, records 3 steps, 1 time: steps 8-10"
    assert parse_trace_plan("1:0:1:2").describe() == "waits 1, warms up 0, records 1 step, 2 times: steps 2, 4"
    assert parse_trace_plan("0:1:1:9").describe().endswith("9 times: steps 2, 4, 6, ..., 18")


def test_ranks_are_listed_spanned_or_all():
    assert parse_trace_ranks("0,2-4") == {0, 2, 3, 4}
    assert parse_trace_ranks("all") is None


@pytest.mark.parametrize("text", ["", "a", "1,", "3-1", "-1"])
def test_a_bad_list_of_ranks_is_answered_with_the_form(text: str):
    with pytest.raises(UsageError, match="write ranks such as 0,1 or 0-3, or all"):
        parse_trace_ranks(text)
