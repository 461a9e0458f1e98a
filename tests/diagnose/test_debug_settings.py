import pytest

from hotloop.core.findings import Finding, Severity, Where
from hotloop.judge.diagnose.rules.debug_settings import debug_settings

from .build_analysis import make_analysis, saving_of


def test_anomaly_detection_is_told_as_a_share_of_forward_and_backward() -> None:
    place = Where(file="runtime.py", line=12, function="prepare")
    where = {"anomaly-detection": place}
    analysis = make_analysis(forward=0.3, backward=0.6, settings=("anomaly-detection",), settings_where=where)
    answer = debug_settings.judge(analysis)
    assert isinstance(answer, tuple)
    (one,) = answer
    assert isinstance(one, Finding)
    assert one.evidence["setting"] == "anomaly-detection"
    assert one.where == (place,)
    assert (saving_of(one).low_ratio, saving_of(one).mid_ratio) == (pytest.approx(0.135), pytest.approx(0.36))
    assert one.severity is Severity.MEDIUM


@pytest.mark.parametrize("setting", ["synchronous-launches", "deterministic-algorithms", "distributed-debug", "other"])
def test_what_costs_nothing_here_is_not_told(setting: str) -> None:
    assert debug_settings.judge(make_analysis(settings=(setting,))) == ()
