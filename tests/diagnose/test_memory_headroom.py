from hotloop.core.findings import Kind, Severity, Skipped
from hotloop.diagnose.rules.memory_headroom import memory_headroom

from .build_analysis import find, make_analysis

GIB = 1 << 30


def test_unused_device_memory_is_information() -> None:
    one = find(
        memory_headroom, make_analysis(accelerator=True, memory_peak_bytes=20 * GIB, memory_total_bytes=80 * GIB)
    )
    assert one.kind is Kind.OPPORTUNITY
    assert one.severity is Severity.INFO


def test_more_than_half_used_is_nothing() -> None:
    one = memory_headroom.judge(
        make_analysis(accelerator=True, memory_peak_bytes=41 * GIB, memory_total_bytes=80 * GIB)
    )
    assert one is None


def test_a_cpu_training_has_no_device_memory() -> None:
    assert isinstance(memory_headroom.judge(make_analysis()), Skipped)


def test_unmeasured_memory_cannot_be_judged() -> None:
    assert isinstance(memory_headroom.judge(make_analysis(accelerator=True, memory_peak_bytes=None)), Skipped)
