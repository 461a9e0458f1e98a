import pytest

from hotloop.core.findings import Skipped
from hotloop.diagnose.rules.pageable_transfer import pageable_transfer

from .build_analysis import make_analysis


@pytest.mark.parametrize(
    ("accelerator", "reason"), [(False, "ran on the CPU"), (True, "no device timeline was recorded")]
)
def test_without_a_device_timeline_it_is_skipped_and_says_so(accelerator: bool, reason: str) -> None:
    one = pageable_transfer.judge(make_analysis(accelerator=accelerator))
    assert isinstance(one, Skipped)
    assert one.rule == "pageable-transfer"
    assert reason in one.reason
