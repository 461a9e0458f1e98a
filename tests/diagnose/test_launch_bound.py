import pytest

from hotloop.core.findings import Skipped
from hotloop.diagnose.rules.launch_bound import launch_bound

from .build_analysis import make_analysis


@pytest.mark.parametrize(
    ("accelerator", "reason"), [(False, "ran on the CPU"), (True, "no device timeline was recorded")]
)
def test_without_a_device_timeline_it_is_skipped_and_says_so(accelerator: bool, reason: str) -> None:
    one = launch_bound.judge(make_analysis(accelerator=accelerator))
    assert isinstance(one, Skipped)
    assert one.rule == "launch-bound"
    assert reason in one.reason
