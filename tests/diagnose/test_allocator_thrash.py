import pytest

from hotloop.core.findings import Skipped
from hotloop.diagnose.rules.allocator_thrash import allocator_thrash

from .build_analysis import make_analysis


@pytest.mark.parametrize(
    ("accelerator", "reason"), [(False, "ran on the CPU"), (True, "no device timeline was recorded")]
)
def test_without_a_device_timeline_it_is_skipped_and_says_so(accelerator: bool, reason: str) -> None:
    one = allocator_thrash.judge(make_analysis(accelerator=accelerator))
    assert isinstance(one, Skipped)
    assert one.rule == "allocator-thrash"
    assert reason in one.reason
