"""Spans of one rank's collectives -> RankCollectives, for tests that need several ranks."""

from __future__ import annotations

import numpy as np

from hotloop.core.graph import RankCollectives
from hotloop.evidence.analyze.timeline.collectives import OP

from .plain_trace import US

Span = tuple[str, int, int, int]
"""(kind, start, end, elements), times in us."""


def rank(
    number: int,
    spans: list[Span],
    *,
    host: str | None = None,
    ahead_us: int = 0,
    group: str = "0",
    members: tuple[int, ...] | None = None,
    sequence: bool = False,
    steps: list[int] | None = None,
    group_size: int = -1,
) -> RankCollectives:
    """One rank whose clock is ``ahead_us`` ahead."""
    count = len(spans)

    def column(values: list[int], dtype: type = np.int64) -> np.ndarray:
        return np.array(values, dtype=dtype)

    return RankCollectives(
        rank=number,
        host=host,
        base_ns=0,
        time_unit_ns=1,
        groups=(group,),
        group_ranks=(members,),
        start_ns=column([(s[1] + ahead_us) * US for s in spans]),
        end_ns=column([(s[2] + ahead_us) * US for s in spans]),
        op=column([OP[s[0]] for s in spans], np.int8),
        group=column([0] * count, np.int32),
        step=column(steps or [-1] * count, np.int32),
        sequence=column(list(range(count)) if sequence else [-1] * count),
        in_elements=column([s[3] for s in spans]),
        out_elements=column([-1] * count),
        group_size=column([group_size] * count, np.int32),
        left_out_count=0,
    )
