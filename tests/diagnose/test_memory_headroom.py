import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Kind, Severity, Skipped
from hotloop.judge.diagnose.rules.memory_headroom import memory_headroom

from .build_analysis import Told, check, make_analysis

GIB = 1 << 30


def test_more_than_half_used_is_nothing() -> None:
    one = memory_headroom.judge(
        make_analysis(accelerator=True, memory_peak_bytes=41 * GIB, memory_total_bytes=80 * GIB)
    )
    assert one is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(accelerator=True, memory_peak_bytes=20 * GIB, memory_total_bytes=80 * GIB),
            {"kind": Kind.OPPORTUNITY, "severity": Severity.INFO},
            id="unused_device_memory_is_information",
        ),
        pytest.param(make_analysis(), Skipped, id="a_cpu_training_has_no_device_memory"),
        pytest.param(
            make_analysis(accelerator=True, memory_peak_bytes=None), Skipped, id="unmeasured_memory_cannot_be_judged"
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(memory_headroom, analysis, told)
