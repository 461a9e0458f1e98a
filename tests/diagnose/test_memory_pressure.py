import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Severity, Skipped
from hotloop.judge.diagnose.rules.memory_pressure import memory_pressure

from .build_analysis import Told, check, find, make_analysis, make_rank

GIB = 1 << 30


@pytest.mark.parametrize(("peak_gib", "severity"), [(77, Severity.LOW), (79, Severity.MEDIUM)])
def test_a_device_that_is_nearly_full_is_a_fault(peak_gib: int, severity: Severity) -> None:
    one = find(
        memory_pressure, make_analysis(accelerator=True, memory_peak_bytes=peak_gib * GIB, memory_total_bytes=80 * GIB)
    )
    assert one.severity is severity


def test_a_device_with_room_is_nothing() -> None:
    one = memory_pressure.judge(
        make_analysis(accelerator=True, memory_peak_bytes=70 * GIB, memory_total_bytes=80 * GIB)
    )
    assert one is None


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            make_analysis(
                ranks=[
                    make_rank(rank=i, memory_peak_bytes=p * GIB, memory_total_bytes=80 * GIB, device_type="cuda")
                    for i, p in enumerate((40, 78))
                ],
                accelerator=True,
            ),
            {"ranks": (1,)},
            id="the_fullest_rank_is_named",
        ),
        pytest.param(make_analysis(memory_peak_bytes=16 * GIB), Skipped, id="host_memory_is_not_device_memory"),
        pytest.param(
            make_analysis(accelerator=True, memory_peak_bytes=None), Skipped, id="unmeasured_memory_cannot_be_judged"
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(memory_pressure, analysis, told)
