import pytest

from hotloop.core.findings import Basis
from hotloop.diagnose.measured import basis_of_replay


@pytest.mark.parametrize(
    ("low_ratio", "mid_ratio", "basis"),
    [
        (0.0, 0.02, Basis.RULE_OF_THUMB),
        (0.02, 0.24, Basis.RULE_OF_THUMB),
        (0.02, 0.06, Basis.SIMULATED),
        (0.07, 0.30, Basis.SIMULATED),
    ],
)
def test_a_replay_that_promises_little_of_its_middle_is_a_guess(
    low_ratio: float, mid_ratio: float, basis: Basis
) -> None:
    assert basis_of_replay(low_ratio, mid_ratio) is basis
