import pytest

from hotloop.core.findings import Basis, Finding, Severity, Skipped, Where
from hotloop.diagnose.rules.needless_recompute import judge_needless_recompute

from .build_analysis import find, make_analysis, saving_of

PLACE = Where(file="model.py", line=20, function="forward")
GIB = 1 << 30


def test_recomputing_with_memory_to_spare_costs_its_time() -> None:
    found = find(
        judge_needless_recompute,
        make_analysis(checkpointing=True, checkpointing_where=PLACE, fields={"recompute_ns": 5e6}),
    )
    assert found.cost_ratio == pytest.approx(0.25)
    assert found.severity is Severity.HIGH
    assert found.where == (PLACE,)


def test_unmeasured_recomputing_is_a_rule_of_thumb() -> None:
    found = find(judge_needless_recompute, make_analysis(checkpointing=True))
    assert saving_of(found).basis is Basis.RULE_OF_THUMB


def test_memory_more_than_half_full_is_no_finding() -> None:
    full = make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=10 * GIB)
    assert judge_needless_recompute.judge(full) is None


def test_activations_that_would_not_fit_are_no_finding() -> None:
    near = make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=7 * GIB)
    assert judge_needless_recompute.judge(near) is None


def test_the_ranks_of_a_host_share_its_memory() -> None:
    alone = make_analysis(checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=3 * GIB)
    shared = make_analysis(
        ranks=8, checkpointing=True, fields={"recompute_ns": 5e6}, memory_peak_bytes=3 * GIB, local_world_size=8
    )
    assert isinstance(judge_needless_recompute.judge(alone), Finding)
    assert judge_needless_recompute.judge(shared) is None


def test_without_checkpointing_it_is_no_finding() -> None:
    assert judge_needless_recompute.judge(make_analysis(checkpointing=False)) is None


def test_unknown_memory_is_skipped() -> None:
    assert isinstance(
        judge_needless_recompute.judge(make_analysis(checkpointing=True, memory_peak_bytes=None)), Skipped
    )


def test_recomputing_that_was_clocked_is_found_in_an_uneven_run() -> None:
    found = find(
        judge_needless_recompute,
        make_analysis(checkpointing=True, step_noise_ratio=0.05, fields={"recompute_ns": 1.2e6}),
    )
    assert found.cost_ratio == pytest.approx(0.06)


def test_one_recomputing_in_a_hundred_steps_is_nothing() -> None:
    once = make_analysis(checkpointing=True, columns={"recompute_ns": [0] * 99 + [40_000_000]})
    assert judge_needless_recompute.judge(once) is None
