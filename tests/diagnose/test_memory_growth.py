import numpy as np
import pytest

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, Severity, Skipped
from hotloop.evidence.analyze.stats import fit_slope
from hotloop.judge.diagnose.rules.memory_growth import memory_growth

from .build_analysis import Told, check, find, make_analysis, make_line

MIB = 1 << 20


def growing(
    per_step_bytes: float, *, noise_bytes: float = 100.0, total_bytes: int = 16 << 30, **rank: object
) -> Analysis:
    return make_analysis(
        **rank,
        columns={"rss_bytes": [round(500 * MIB + i * per_step_bytes) for i in range(100)]},
        memory_growth_bytes_per_step=per_step_bytes,
        memory_growth_noise_bytes_per_step=noise_bytes,
        memory_total_bytes=total_bytes,
    )


@pytest.mark.parametrize(
    ("total_bytes", "severity"),
    [(1 << 30, Severity.HIGH), (6 << 30, Severity.MEDIUM), (64 << 30, Severity.LOW)],
)
def test_severity_follows_from_the_steps_that_are_left(total_bytes: int, severity: Severity) -> None:
    one = find(memory_growth, growing(MIB, total_bytes=total_bytes))
    assert one.severity is severity
    assert one.saving is None


def test_a_small_growth_that_soon_fills_a_small_memory_is_told() -> None:
    assert isinstance(memory_growth.judge(growing(MIB / 8, noise_bytes=10, total_bytes=8 << 30)), Finding)


def test_few_readings_leave_the_slope_in_doubt() -> None:
    stairs = [round((500 + i // 12 * 3) * MIB) for i in range(100)]
    kind = {"columns": {"rss_bytes": stairs}, "memory_growth_bytes_per_step": 0.25 * MIB}
    assert memory_growth.judge(make_analysis(**kind, memory_growth_noise_bytes_per_step=0.05 * MIB)) is None
    assert isinstance(
        memory_growth.judge(make_analysis(**kind, memory_growth_noise_bytes_per_step=0.01 * MIB)), Finding
    )


def test_ranks_of_one_host_fill_the_same_memory() -> None:
    alone = find(memory_growth, growing(MIB))
    levels = [round(500 * MIB + i * MIB) for i in range(100)]
    both = find(
        memory_growth, make_analysis(ranks=2, columns={"rss_bytes": levels}, memory_growth_bytes_per_step=float(MIB))
    )
    assert isinstance(alone.evidence["steps_left"], int)
    assert isinstance(both.evidence["steps_left"], int)
    assert both.evidence["steps_left"] < 0.6 * alone.evidence["steps_left"]


FSDP_KIB = [
    (388508, 1),
    (389676, 1),
    (389544, 1),
    (395720, 1),
    (391764, 1),
    (381472, 1),
    (391640, 2),
    (388684, 2),
    (395764, 2),
    (386516, 2),
    (390772, 2),
    (403996, 3),
    (395784, 4),
    (399916, 3),
    (401980, 3),
    (404060, 3),
    (400072, 3),
    (405540, 3),
    (403940, 4),
    (404100, 4),
    (402176, 7),
    (402188, 2),
    (410292, 5),
    (408364, 3),
    (406312, 3),
    (408260, 2),
    (410448, 5),
    (410328, 4),
    (410456, 2),
    (413544, 3),
    (412388, 2),
    (404184, 2),
    (410468, 2),
    (410352, 4),
    (402256, 2),
    (408428, 2),
    (409336, 3),
    (414592, 4),
    (406404, 3),
    (418596, 4),
    (416544, 2),
    (416680, 4),
    (414628, 2),
    (428884, 3),
    (414624, 2),
    (414628, 2),
    (416692, 3),
    (416696, 2),
    (420688, 2),
    (418760, 1),
    (424928, 2),
    (429152, 3),
    (433140, 1),
    (422864, 3),
    (418764, 2),
    (424804, 2),
    (418644, 2),
    (424816, 2),
    (435208, 5),
    (437268, 1),
    (437272, 3),
    (437280, 4),
    (439208, 3),
    (435104, 3),
    (437160, 13),
    (433056, 2),
    (431128, 2),
    (437292, 8),
    (431128, 2),
    (418800, 4),
]
"""Resident memory, KiB, of rank 1 of a sound FSDP2 training over gloo (two ranks, 200 steps): (level, steps)."""


def measured(levels: list[int]) -> Analysis:
    """The analysis of these levels with the slope as it is fitted to a run."""
    slope = fit_slope(np.arange(len(levels), dtype=np.float64), np.array(levels, dtype=np.float64))
    assert slope is not None
    return make_analysis(
        columns={"rss_bytes": levels},
        steady_count=len(levels),
        memory_growth_bytes_per_step=slope.per_x,
        memory_growth_noise_bytes_per_step=slope.noise_per_x,
    )


def test_a_heap_that_looks_for_room_for_large_blocks_is_no_leak() -> None:
    levels = [level << 10 for level, steps in FSDP_KIB for _ in range(steps)]
    assert memory_growth.judge(measured(levels)) is None
    assert isinstance(memory_growth.judge(measured([one + MIB // 2 * i for i, one in enumerate(levels)])), Finding)


@pytest.mark.parametrize(
    ("text", "leaf", "is_named"),
    [
        ("value = precision(chance, tags)", "torchmetrics.utilities.data:dim_zero_cat", True),
        ("losses.append(loss)", "__main__:main", True),
        ("total_loss += loss", "__main__:main", True),
        ("bar.update(1)", "tqdm.std:update", False),
    ],
)
def test_a_line_that_may_keep_what_it_gets_is_named(text: str, leaf: str, is_named: bool) -> None:
    line = make_line(7, 1.0, text, leaf=leaf)
    one = find(memory_growth, growing(MIB, lines={"other_ns": (line,)}))
    assert one.where == ((line.where,) if is_named else ())


@pytest.mark.parametrize(
    ("analysis", "told"),
    [
        pytest.param(
            growing(MIB, total_bytes=1 << 30),
            {"title": "memory grows by 1.0 MiB per step; 1.0 GiB will be full in about 420 steps"},
            id="the_title_says_when_memory_is_full",
        ),
        pytest.param(growing(MIB, noise_bytes=0.5 * MIB), None, id="growth_within_its_noise_is_nothing"),
        pytest.param(growing(MIB / 8, noise_bytes=10), None, id="less_than_an_allocator_takes_to_warm_up_is_nothing"),
        pytest.param(
            make_analysis(
                columns={"rss_bytes": [round((500 + 0.3 * (i % 40)) * MIB) for i in range(200)]},
                steady_count=200,
                memory_growth_bytes_per_step=0.2 * MIB,
                memory_growth_noise_bytes_per_step=100.0,
            ),
            None,
            id="memory_that_comes_back_is_no_leak",
        ),
        pytest.param(
            make_analysis(
                columns={"rss_bytes": [500 * MIB + min(i, 40) * MIB for i in range(100)]},
                memory_growth_bytes_per_step=0.35 * MIB,
                memory_growth_noise_bytes_per_step=1000.0,
            ),
            None,
            id="an_allocator_that_warms_up_and_stops_is_no_leak",
        ),
        pytest.param(
            make_analysis(
                columns={"rss_bytes": [500 * MIB + (50 * MIB if i > 60 else 0) for i in range(100)]},
                memory_growth_bytes_per_step=0.5 * MIB,
            ),
            None,
            id="a_single_allocation_is_no_leak",
        ),
        pytest.param(
            make_analysis(memory_growth_bytes_per_step=None),
            Skipped,
            id="memory_that_was_not_measured_cannot_be_judged",
        ),
    ],
)
def test_what_is_told(analysis: Analysis, told: Told) -> None:
    check(memory_growth, analysis, told)
