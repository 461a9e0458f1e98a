from hotloop.core.findings import Basis, Finding, Kind, Saving
from hotloop.diagnose.verdict import first_serious


def make_finding(rule: str, low_ratio: float, kind: Kind) -> Finding:
    saving = Saving(low_ratio=low_ratio, mid_ratio=0.3, high_ratio=0.4, basis=Basis.MEASURED)
    return Finding(
        rule=rule, kind=kind, title=rule, phase=None, cost_ns=None, cost_ratio=None, saving=saving, evidence={}
    )


def test_a_serious_fault_is_named_before_a_serious_opportunity_that_stands_in_front() -> None:
    faster = make_finding("full-precision", 0.2, Kind.OPPORTUNITY)
    fault = make_finding("gc-pause", 0.06, Kind.FAULT)
    assert first_serious((faster, fault)) is fault
    assert first_serious((faster,)) is faster


def test_what_may_win_nothing_is_not_serious() -> None:
    assert first_serious((make_finding("small-batch", 0.0, Kind.OPPORTUNITY),)) is None
