from hotloop.core.trace_plan import RECORD, SAVE, WAIT, WARMUP, TracePlan, parse_trace_ranks


def test_every_step_of_a_cycle_has_its_action():
    plan = TracePlan(wait=2, warmup=1, active=2, repeat=2, skip_first=1)
    cycle = [WAIT, WAIT, WARMUP, RECORD, SAVE]
    assert [plan.act_in(step) for step in range(1, 14)] == [WAIT, *cycle, *cycle, WAIT, WAIT]


def test_recorded_steps_are_those_in_which_the_plan_records():
    plan = TracePlan(wait=3, warmup=2, active=4, repeat=3, skip_first=2)
    spans = [plan.recorded_steps(number) for number in range(3)]
    recorded = [step for step in range(1, 40) if plan.act_in(step) in (RECORD, SAVE)]
    assert recorded == [step for first, last in spans for step in range(first, last + 1)]


def test_ranks_are_listed_spanned_or_all():
    assert parse_trace_ranks("0,2-4") == {0, 2, 3, 4}
    assert parse_trace_ranks("all") is None
