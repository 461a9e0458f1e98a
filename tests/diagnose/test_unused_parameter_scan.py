import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Skipped
from hotloop.diagnose.rules.unused_parameter_scan import judge_unused_parameter_scan
from tests.diagnose.build_ranks import DDP_PLACE, make_ddp, make_ranks

from .build_analysis import find


def scanning(**ddp: object) -> Analysis:
    facts = make_ddp(**({"find_unused_parameters": True, "scan_ns": 1e6} | ddp))
    return make_ranks({"ddp": facts}, {"ddp": facts})


def test_a_scan_that_finds_nothing_costs_its_time() -> None:
    found = find(judge_unused_parameter_scan, scanning())
    assert found.cost_ratio == pytest.approx(1e6 / 20e6)
    assert found.severity is Severity.LOW
    assert found.where == (DDP_PLACE,)


def test_a_scan_that_finds_unused_parameters_is_needed() -> None:
    assert judge_unused_parameter_scan.judge(scanning(unused_tensors=2)) is None


def test_without_the_setting_it_is_no_finding() -> None:
    assert judge_unused_parameter_scan.judge(scanning(find_unused_parameters=False)) is None


def test_unknown_usage_is_skipped() -> None:
    assert isinstance(judge_unused_parameter_scan.judge(scanning(unused_tensors=None)), Skipped)
