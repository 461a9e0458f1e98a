"""A planned run as a strategy file: every setting becomes a technique or a comment, and the file is accepted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hotloop.ahead.plan.strategy import LIBRARY_TECHNIQUES, draw_strategy, plan_strategy
from hotloop.change.apply import TECHNIQUES, check_strategy
from hotloop.core.strategy import Strategy, load_strategy
from hotloop.core.workload import OFFLOADS, PRECISIONS, RECOMPUTES, SHARDINGS

from .build_plan import DEVICE, make_workload


def write(tmp_path: Path, **run: Any) -> tuple[Strategy, str]:
    """The strategy as `hotloop run --strategy` reads it, and the file's comments."""
    path = tmp_path / "planned.toml"
    path.write_text(draw_strategy(*plan_strategy(make_workload(**run), DEVICE)))
    found = check_strategy(load_strategy(path), TECHNIQUES)
    return found, "".join(line for line in path.read_text().splitlines(True) if line.startswith("#"))


def settings(strategy: Strategy) -> dict[str, dict[str, Any]]:
    return {choice.technique: dict(choice.settings) for choice in strategy.choices}


def test_the_plan_and_the_techniques_agree_on_what_needs_the_library() -> None:
    assert {id for id, one in TECHNIQUES.items() if one.needs_library} == set(LIBRARY_TECHNIQUES)


def test_every_combination_is_accepted() -> None:
    for precision, recompute, sharding, offload, compiled in itertools.product(
        PRECISIONS, RECOMPUTES, SHARDINGS, OFFLOADS, (False, True)
    ):
        run = {"precision": precision, "recompute": recompute, "sharding": sharding, "offload": offload}
        strategy, _ = plan_strategy(make_workload(compiled=compiled, **run), DEVICE)
        check_strategy(strategy, TECHNIQUES)


def test_ddp_in_bfloat16_with_recomputation_and_accumulation(tmp_path: Path) -> None:
    strategy, comments = write(tmp_path, precision="bf16", recompute="full", micro_batch=2)
    assert settings(strategy) == {
        "accumulation": {"micro_batches": 4},
        "activation-checkpointing": {},
        "bf16-autocast": {},
    }
    assert "# launch: torchrun --nnodes 1 --nproc-per-node 8" in comments
    assert "gives 8 sequences of 1024 tokens per step (global batch 64)" in comments
    assert "DistributedDataParallel" in comments


def test_fsdp_casts_and_offloads_by_itself(tmp_path: Path) -> None:
    strategy, comments = write(tmp_path, sharding="fsdp", offload="parameters", micro_batch=8)
    dtypes = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
    assert settings(strategy) == {"fsdp2": {**dtypes, "cpu_offload": True}}
    assert "fsdp2: by hotloop's Trainer or apply_strategy" in comments


@pytest.mark.parametrize(
    ("run", "techniques", "comment"),
    [
        ({"sharding": "zero2"}, {"zero-optimizer", "bf16-autocast"}, '{"zero_optimization": {"stage": 2}}'),
        ({"sharding": "hsdp"}, {"bf16-autocast"}, "no technique shards within a node; fully_shard(mesh="),
        ({"sharding": "zero3"}, {"fsdp2"}, "it is stage 3"),
        ({"precision": "fp8"}, {"bf16-autocast"}, "torchao.float8"),
        ({"precision": "fp16", "sharding": "fsdp"}, {"fsdp2"}, "GradScaler"),
        ({"precision": "pure-bf16"}, {"bf16-parameters"}, ""),
        ({"precision": "fp32"}, set(), ""),
        ({"tp": 2, "ep": 1}, {"bf16-autocast"}, "--parallelism.tensor_parallel_degree 2"),
        ({"offload": "optimizer", "sharding": "zero1"}, {"zero-optimizer", "bf16-autocast"}, '{"offload_optimizer"'),
        ({"offload": "activations", "compiled": True}, {"compile-model", "bf16-autocast"}, "save_on_cpu"),
        ({"optimizer": "adamw-8bit"}, {"bf16-autocast"}, "run.optimizer = adamw-8bit: the script builds it"),
        ({"framework": "megatron", "tp": 4, "recompute": "full"}, set(), "--tensor-model-parallel-size 4"),
    ],
)
def test_what_no_technique_applies_is_a_comment(
    tmp_path: Path, run: dict[str, Any], techniques: set[str], comment: str
) -> None:
    strategy, comments = write(tmp_path, micro_batch=4, global_batch=32 // run.get("tp", 1), **run)
    assert set(settings(strategy)) == techniques
    assert comment in comments
