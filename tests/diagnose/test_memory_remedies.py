"""Remedies by bytes saved for the time lost: of a recorded process, near the end of host memory, and of a snapshot."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.core.analysis import MemoryFailure
from hotloop.core.findings import Finding, Severity, Where
from hotloop.core.memory_snapshot import MemoryFile, OutOfMemory
from hotloop.evidence.analyze.memory import find_memory_near
from hotloop.judge.diagnose.completion import rank_findings
from hotloop.judge.diagnose.memory_remedies import MemorySituation, held_by_category, list_failures, rank_remedies
from hotloop.judge.diagnose.rules.memory_pressure import memory_pressure
from hotloop.judge.diagnose.rules.out_of_memory import describe_failures, out_of_memory

from .build_analysis import find, fix_of, make_analysis

GIB = 1 << 30
HELD = MemoryFailure(
    pid=100,
    rank=0,
    world_size=4,
    device="cuda",
    is_killed=False,
    total_bytes=80 * GIB,
    used_bytes=76 * GIB,
    parameter_bytes=4 * GIB,
    gradient_bytes=4 * GIB,
    optimizer_state_bytes=8 * GIB,
)


def test_bytes_follow_from_what_was_measured() -> None:
    known = MemorySituation(samples_count=8, recomputes=False, forward_ratio=0.3, is_low_precision=False)
    found = {one.fix.technique: one for one in rank_remedies(HELD, known)}
    rest = 76 - 16
    assert {name: (one.saved_bytes or 0) / GIB for name, one in found.items()} == pytest.approx(
        {
            "accumulation": rest * 7 / 8,
            "smaller-batch": rest * 7 / 8,
            "activation-checkpointing": rest,
            "bf16-autocast": rest / 2,
            "fsdp2": 16 * 3 / 4,
            "zero-optimizer": 8 * 3 / 4,
        }
    )
    order = list(found)
    # 60 GiB for 30 % more time weigh less than 52.5 for a time that is not known to be lost.
    assert order.index("accumulation") < order.index("activation-checkpointing") < order.index("bf16-autocast")


def test_what_is_in_place_is_not_offered_again() -> None:
    known = MemorySituation(samples_count=1, recomputes=True, is_low_precision=True, is_sharded=True)
    names = {one.fix.technique for one in rank_remedies(HELD, known)}
    assert names == set()


def test_a_category_that_no_event_told_is_unknown() -> None:
    held = held_by_category({"unknown": 50, "activation": 30}, "cuda", 1)
    assert (held.parameter_bytes, held.activation_bytes, held.used_bytes) == (None, 30, 80)
    told = held_by_category({"parameter": 50, "activation": 30}, "cuda", 1)
    assert (told.parameter_bytes, told.optimizer_state_bytes) == (50, 0)


def recording(pid: int, peak_gib: float, host: str = "a", restart: int = 0) -> Any:
    process = {"pid": pid, "rank": pid, "world_size": 2, "host": host, "restart": restart}
    facts = [
        {"kind": "memory", "peak_rss_bytes": round(peak_gib * GIB)},
        {"kind": "held", "device": "cpu", "parameter_bytes": GIB, "gradient_bytes": GIB, "optimizer_state_bytes": 2},
    ]
    return SimpleNamespace(process={**process, "memory_total_bytes": 24 * GIB}, facts=facts, rows=[])


def test_ranks_of_one_host_fill_its_memory_together() -> None:
    near = find_memory_near([recording(1, 11), recording(2, 12)], 0.9)
    (one,) = near
    assert (one.pid, one.used_bytes, one.parameter_bytes, one.is_killed) == (2, 23 * GIB, GIB, False)
    assert find_memory_near([recording(1, 11), recording(2, 12, host="b")], 0.9) == ()
    assert find_memory_near([recording(1, 23), recording(2, 5, restart=1)], 0.9) == (), "an attempt that is over"


@pytest.mark.parametrize(("used_gib", "severity"), [(22, Severity.LOW), (23.5, Severity.MEDIUM)])
def test_host_memory_that_is_nearly_full_names_remedies(used_gib: float, severity: Severity) -> None:
    held = replace(HELD, device="cpu", world_size=1, total_bytes=24 * GIB, used_bytes=round(used_gib * GIB))
    (found,) = out_of_memory.judge(replace(make_analysis(), memory_near=(held,)))  # type: ignore[misc]
    assert isinstance(found, Finding)
    assert found.severity is severity
    assert found.fix is not None
    assert "activation-checkpointing" in (found.evidence["saves_at_most_bytes"] or {})  # type: ignore[operator]
    assert rank_findings([found]) == (found,)
    on_device = replace(make_analysis(), memory_near=(HELD,))
    assert out_of_memory.judge(on_device) == (), "memory-pressure tells that"


def test_a_device_that_is_nearly_full_uses_what_was_recorded() -> None:
    analysis = make_analysis(
        accelerator=True, device_type="cuda", memory_peak_bytes=76 * GIB, memory_total_bytes=80 * GIB
    )
    bare = find(memory_pressure, analysis)
    assert bare.evidence["saves_at_most_bytes"] is not None
    found = find(memory_pressure, replace(analysis, memory_near=(HELD,)))
    assert found.evidence["activations_and_rest_bytes"] == 60 * GIB
    assert found.evidence["optimizer_state_bytes"] == 8 * GIB


def test_a_failed_allocation_of_a_snapshot_is_a_finding() -> None:
    where = Where(file="train.py", line=7, function="main")
    failed = OutOfMemory(
        device=0,
        event=3,
        failed_bytes=2 * GIB,
        device_free_bytes=GIB,
        requested_bytes=70 * GIB,
        reserved_bytes=76 * GIB,
        where=where,
    )
    file = MemoryFile(source="a.pickle", out_of_memory=(failed,))
    (found,) = describe_failures(list_failures(file), known=MemorySituation())
    assert found.where == (where,)
    assert fix_of(found).technique == "expandable-segments", "6 GiB lie in blocks that did not fit"
    assert found.evidence["parameter_bytes"] is None
    assert describe_failures(list_failures(replace(file, out_of_memory=())), known=MemorySituation()) == ()
