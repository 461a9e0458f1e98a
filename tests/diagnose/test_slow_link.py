import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Numerics, Severity, Skipped
from hotloop.judge.diagnose.rules.exposed_communication import judge_exposed_communication
from hotloop.judge.diagnose.rules.slow_link import judge_slow_link
from tests.diagnose.build_ranks import MIB, make_ddp, make_ranks

from .build_analysis import Told, check, find, fix_of, saving_of

STEP_NS = 4e9


def crossing(interface: str, speed: float | None, comm_ns: float, **rank: object) -> Analysis:
    """Two ranks that send 40 MiB of gradients per step of 4 s; 0.3 s are hidden."""
    rate = 40 * MIB / (STEP_NS * 1e-9)
    one = {
        "step_ns": STEP_NS,
        "ddp": make_ddp(comm_ns=comm_ns, overlap_ns=0.3e9),
        "network_bytes_per_s": {interface: rate, "lo": 1e3},
        "network_speed_bytes_per_s": {interface: speed},
    }
    return make_ranks(*(one | rank for _ in range(2)))


def test_what_the_link_explains_is_not_exposed_communication_as_well() -> None:
    assert judge_exposed_communication.judge(crossing("eth0", 1.25e9, 2.3e9)) is None


def test_without_a_nominal_speed_the_way_of_sending_is_chosen_from_the_rate() -> None:
    times = {"comm_ns": 3.5e9, "overlap_ns": 0.3e9, "backward_compute_ns": 0.3e9}
    found = find(judge_slow_link, crossing("eth0", None, 3.5e9, ddp=make_ddp(**times)))
    assert (fix_of(found).technique, fix_of(found).settings["method"]) == ("compress-gradients", "int8")
    left = found.evidence["exposed_by_way"]
    assert isinstance(left, dict)
    assert float(str(left["topk"])) < float(str(left["bf16"])) < float(str(left["none"]))
    assert found.cost_ratio is not None
    # Of a step of 4 s stay compressing 10 Mi elements (0.13 s) and a quarter of the bytes, but what backward hides.
    least_s, most_s = 3.5 / 4 - 0.3, 0.13 + 3.5 / 4
    assert least_s / 4 < float(str(left["int8"])) < most_s / 4
    assert saving_of(found).mid_ratio == pytest.approx(found.cost_ratio - float(str(left["int8"])), abs=0.002)


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            crossing("eth0", 1.25e9, 2.3e9),
            {
                "severity": Severity.HIGH,
                "cost_ratio": pytest.approx(0.5),
                "fix.technique": "repair-link",
                "evidence.rate_bytes_per_s": pytest.approx(40 * MIB / 2.3, rel=0.01),
            },
            id="a_link_far_below_its_nominal_speed_wants_repair",
        ),
        pytest.param(
            crossing("eth0", 20e6, 2.3e9),
            {"fix.technique": "compress-gradients", "fix.numerics": Numerics.LOSSY},
            id="a_slow_link_at_its_nominal_speed_wants_compression",
        ),
        pytest.param(crossing("lo", None, 2.3e9), None, id="loopback_is_never_a_link"),
        pytest.param(crossing("eth0", 1.25e9, 0.05e9), None, id="a_quick_link_is_no_finding"),
        pytest.param(
            crossing("eth0", 1.25e9, 2.3e9, ddp=make_ddp(comm_ns=2.3e9, overlap_ns=2.3e9)),
            None,
            id="hidden_transfers_are_no_finding",
        ),
        pytest.param(
            crossing("eth0", 1.25e9, 2.3e9, network_bytes_per_s={"eth0": 1e5}),
            None,
            id="traffic_of_others_is_no_finding",
        ),
        pytest.param(
            crossing("eth0", 1.25e9, 2.3e9, network_bytes_per_s={}), Skipped, id="without_counters_it_is_skipped"
        ),
        pytest.param(
            crossing(
                "eth0",
                None,
                0.2e9,
                ddp=make_ddp(comm_ns=0.2e9, overlap_ns=0.01e9, backward_compute_ns=0.01e9),
                step_ns=2e9,
            ),
            {"fix.technique": "fewer-synchronisations", "severity": Severity.INFO},
            id="where_compressing_costs_more_than_it_saves_fewer_exchanges_are_advised",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(judge_slow_link, analysis, told)
