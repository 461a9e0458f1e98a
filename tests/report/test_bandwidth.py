"""Four ranks' files with all-reduces of known bytes and times -> the bandwidths in the text, the page and the JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main

ELEMENTS, TRANSFER_US = 1_000_000, 2_000
"""4 MB in 2 ms: 2 GB/s by the algorithm; each link of four ranks carries 2 (n - 1) / n = 1.5 of it: 3 GB/s."""
RANKS = 4


def write_rank(folder: Path, rank: int, late_us: int) -> None:
    """Three all-reduces of NCCL every 10 ms; all ranks leave 2 ms after the last one came."""
    facts: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "Group size": RANKS,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(RANKS))),
        "device": rank,
        "stream": 7,
    }
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": rank,
            "tid": 7,
            "ts": 10_000 * at + late_us,
            "dur": TRANSFER_US + 500 - late_us,
            "args": {**facts, "correlation": at + 1},
        }
        for at in range(1, 4)
    ]
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "deviceProperties": [{"id": rank, "name": "NVIDIA A100"}],
        "traceEvents": events,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(trace))


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What a report of all ranks says; rank 1 comes 0.5 ms late, which is nobody's bandwidth."""
    for rank in range(RANKS):
        write_rank(tmp_path, rank, late_us=500 * (rank == 1))
    files = [str(tmp_path / f"rank{rank}.json") for rank in range(RANKS)]
    page, data = tmp_path / "page.html", tmp_path / "report.json"
    assert main(["trace", *files, "--html", str(page), "--json", str(data), "--exit-zero"]) == 0
    return {"text": capsys.readouterr().out, "html": page.read_text(encoding="utf-8"), "json": data.read_text()}


def test_the_json_has_both_bandwidths_by_kind_and_size(told: dict[str, str]) -> None:
    (one,) = json.loads(told["json"])["trace"]["collectives"]
    assert (one["op"], one["bytes"], one["members_count"], one["count"]) == ("all_reduce", 4_000_000, RANKS, 3)
    assert one["median_transfer_ns"] == 2_000_000
    assert one["algorithm_bytes_per_s"] == pytest.approx(2e9)
    assert one["bus_bytes_per_s"] == pytest.approx(3e9)


@pytest.mark.parametrize("kind", ["text", "html"])
def test_the_page_shows_them(told: dict[str, str], kind: str) -> None:
    _, _, section = told[kind].lower().partition("bandwidth of collectives")
    assert "all reduce" in section
    assert "3.81 mib" in section
    assert "2 gb/s" in section
    assert "3 gb/s" in section
