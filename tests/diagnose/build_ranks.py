"""DDP figures by keyword -> synthetic facts and ranks of a distributed training."""

from __future__ import annotations

from typing import Any

from hotloop.core.analysis import Analysis, DdpFacts, RankAnalysis
from hotloop.core.findings import Where
from tests.diagnose.build_analysis import make_analysis, make_rank

DDP_PLACE = Where(file="train.py", line=25, function="main")
MIB = 1 << 20


def make_ddp(**overrides: Any) -> DdpFacts:
    """A default DistributedDataParallel over gloo: 40 MiB in three buckets, 2 ms exposed of 6 ms communication."""
    values: dict[str, Any] = {
        "where": DDP_PLACE,
        "find_unused_parameters": False,
        "static_graph": False,
        "gradient_as_bucket_view": False,
        "bucket_cap_bytes": 25 * MIB,
        "bucket_sizes": (1 * MIB, 20 * MIB, 19 * MIB),
        "parameter_bytes": 40 * MIB,
        "parameter_tensors": 60,
        "unused_tensors": 0,
        "backend": "gloo",
        "backward_compute_ns": 8e6,
        "comm_ns": 6e6,
        "overlap_ns": 4e6,
        "forward_ns": 5e6,
    }
    return DdpFacts(**(values | overrides))


def make_ranks(*ranks: dict[str, Any]) -> Analysis:
    """An Analysis with one rank per mapping of make_rank's keywords."""
    count = len(ranks)
    members: list[RankAnalysis] = []
    for index, one in enumerate(ranks):
        fields = {"synced_backwards": 1.0} | dict(one.get("fields", {}))
        place = {"rank": index, "local_rank": index, "pid": 100 + index, "world_size": count, "local_world_size": count}
        members.append(make_rank(**(place | one | {"fields": fields})))
    return make_analysis(ranks=members)
