"""Trainings that run out of memory, each in its own way: the report says so first, with what held it and what helps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from .training import Ran, run_command, run_script, write_script

LOOP = """
optimizer = torch.optim.AdamW(model.parameters())
for step in range({steps}):
    loss_of(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.25 GiB is free. "
    "Of the allocated memory 6.00 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated."
)
PARAMETERS_BYTES = 4 * (32 * 64 + 64 + 64 * 8 + 8)


def first_finding(ran: Ran) -> dict[str, Any]:
    assert ran.seen["outcome"]["ended"] == "oom"
    finding: dict[str, Any] = ran.seen["findings"][0]
    assert (finding["rule"], finding["severity"], finding["saving"]) == ("out-of-memory", "high", None)
    assert ran.seen["verdict"] == f"out-of-memory: {finding['title']}"
    return finding


@pytest.mark.parametrize("steps", [1, 40])
def test_a_python_without_memory_names_what_held_it_and_the_remedies_in_order(tmp_path: Path, steps: int) -> None:
    finding = first_finding(run_script(tmp_path, LOOP.format(steps=steps) + "raise MemoryError('no more')"))
    evidence = finding["evidence"]
    assert f"after {steps} step" in finding["title"]
    assert evidence["parameter_bytes"] == evidence["gradient_bytes"] == PARAMETERS_BYTES
    moments, step_counts = 2 * PARAMETERS_BYTES, 4 * 4
    assert evidence["optimizer_state_bytes"] == moments + step_counts
    held = PARAMETERS_BYTES * 2 + evidence["optimizer_state_bytes"]
    assert evidence["activations_and_rest_bytes"] == evidence["used_bytes"] - held
    saved = evidence["saves_at_most_bytes"]
    lost = {"accumulation": 0.0, "smaller-batch": 0.0, "bf16-autocast": 0.0, **evidence["time_cost_ratio"]}
    assert set(saved) == set(lost) == {"accumulation", "smaller-batch", "activation-checkpointing", "bf16-autocast"}
    worth = [saved[name] * (1 - lost[name]) for name in saved]
    assert worth == sorted(worth, reverse=True)
    assert saved["accumulation"] == round(evidence["activations_and_rest_bytes"] * 15 / 16)
    assert finding["fix"]["technique"] == next(iter(saved))


def test_one_allocation_larger_than_all_memory_is_told_by_its_line(tmp_path: Path) -> None:
    finding = first_finding(run_script(tmp_path, LOOP.format(steps=5) + "torch.empty(1 << 45)"))
    assert "one allocation of 128.0 TiB exceeds all memory" in finding["title"]
    assert finding["evidence"]["asked_bytes"] == 4 << 45
    assert finding["where"][0]["file"].endswith("train.py")
    assert finding["fix"] is None


def test_the_text_of_a_device_s_allocator_is_read(tmp_path: Path) -> None:
    ran = run_script(tmp_path, LOOP.format(steps=3) + f"raise torch.OutOfMemoryError({CUDA_TEXT!r})")
    evidence = first_finding(ran)["evidence"]
    gib = 1 << 30
    assert (evidence["device"], evidence["asked_bytes"], evidence["used_bytes"]) == ("cuda", 5 * gib // 2, 6 * gib)
    assert (evidence["total_bytes"], evidence["free_bytes"]) == (8 * gib, 5 * gib // 4)
    assert "activation-checkpointing" in evidence["saves_at_most_bytes"]
    assert "expandable-segments" not in evidence["saves_at_most_bytes"]  # half a GiB would not have been enough


def test_a_first_forward_that_does_not_fit_is_told_too(tmp_path: Path) -> None:
    text = (
        "class Wide(nn.Module):\n    def forward(self, value): return torch.empty(1 << 45)\nmodel[1] = Wide()\nmodel(x)"
    )
    ran = run_script(tmp_path, text)
    finding = first_finding(ran)
    assert "before completing its first step" in finding["title"]
    assert ran.seen["outcome"]["training_seen"] is False


def test_the_rank_that_ran_out_is_named_though_the_other_one_did_not(tmp_path: Path) -> None:
    text = LOOP.format(steps=5) + "\nimport os, time\nif os.environ['RANK'] == '1': raise MemoryError\ntime.sleep(60)"
    script = write_script(tmp_path, text)
    ran = run_command(
        tmp_path, sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script.name
    )
    finding = first_finding(ran)
    assert finding["ranks"] == [1]
    assert finding["title"].startswith("rank 1 ran out of host memory after 5 steps")
    saved = finding["evidence"]["saves_at_most_bytes"]
    assert saved["fsdp2"] > saved["zero-optimizer"] > 0
