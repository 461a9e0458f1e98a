import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Skipped
from hotloop.judge.diagnose.rules.unused_parameter_scan import judge_unused_parameter_scan
from tests.diagnose.build_ranks import DDP_PLACE, make_ddp, make_ranks

from .build_analysis import Told, check


def scanning(**ddp: object) -> Analysis:
    facts = make_ddp(**({"find_unused_parameters": True, "scan_ns": 1e6} | ddp))
    return make_ranks({"ddp": facts}, {"ddp": facts})


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            scanning(),
            {"cost_ratio": pytest.approx(1e6 / 20e6), "severity": Severity.LOW, "where": (DDP_PLACE,)},
            id="a_scan_that_finds_nothing_costs_its_time",
        ),
        pytest.param(scanning(unused_tensors=2), None, id="a_scan_that_finds_unused_parameters_is_needed"),
        pytest.param(scanning(find_unused_parameters=False), None, id="without_the_setting_it_is_no_finding"),
        pytest.param(scanning(unused_tensors=None), Skipped, id="unknown_usage_is_skipped"),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_unused_parameter_scan, analysis, told)
