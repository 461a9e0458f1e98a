"""Rows of docs/claims.md about memory, exchanges between two ranks, and buckets (run by benchmarks/techniques.py)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import ROOT, Row, ratio_of
from techniques import BATCH, VOCABULARY, Training, build_model, count_row, verdict

MICRO_BATCHES = 8
ATTENTION_LENGTHS, TIMED_LENGTH = (256, 1024), 512
BUCKET_MB = (1, 5, 25, 100)
BUCKET_RATE = "1gbit"
BUCKET_ROUNDS = 7


def draw_codes(batch: int, length: int) -> Any:
    import torch

    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def measure_memory() -> list[Row]:
    """Bytes kept for backward: micro-batches, bfloat16, and attention without its matrix."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    plain = Training()
    plain.codes = draw_codes(BATCH * MICRO_BATCHES, 64)
    whole = plain.saved_bytes()
    plain.codes = plain.codes[:BATCH].clone()
    rows = [
        count_row(
            "accumulation-memory",
            f"accumulation over {MICRO_BATCHES} micro-batches reduces activation memory to 1/{MICRO_BATCHES}",
            f"bytes kept for the backward pass by one of {MICRO_BATCHES} micro-batches, relative to the whole batch",
            plain.saved_bytes() / whole,
        )
    ]
    single, half = Training(), Training(("bf16-autocast",))
    single.codes = half.codes = draw_codes(BATCH * MICRO_BATCHES, 128)
    rows.append(
        count_row(
            "bf16-activations",
            "bf16 takes 50% less memory",
            f"bytes kept for the backward pass by {single.codes.numel()} tokens under bf16-autocast, relative to "
            "float32; includes the float32 loss and the copies of the weights",
            half.saved_bytes() / single.saved_bytes(),
        )
    )
    single.codes = draw_codes(BATCH, 128)
    narrow = Training(("bf16-parameters",))
    rows.append(
        count_row(
            "bf16-state",
            "bf16 takes 50% less memory",
            "bytes of weights, gradients, and AdamW's state with bf16-parameters (compensated), relative to float32",
            state_bytes(narrow) / state_bytes(single),
        )
    )

    def with_math() -> Any:
        return sdpa_kernel(SDPBackend.MATH)

    for length in ATTENTION_LENGTHS:
        pair = {"fused": Training(length=length), "math": Training(around=with_math, length=length)}
        for one in pair.values():
            one.codes = draw_codes(1, length)
        rows.append(
            count_row(
                f"attention-memory-{length}",
                "fused attention takes 50% less memory and is 2 to 3 times as fast",
                f"bytes that the model keeps for the backward pass with {length} tokens: torch's fused attention "
                "relative to its math attention",
                pair["fused"].model_saved_bytes() / pair["math"].model_saved_bytes(),
            )
        )
    rows.append(
        {
            "id": "attention-time",
            "claim": "fused attention takes 50% less memory and is 2 to 3 times as fast",
            "what": f"CPU time of the forward and backward passes of attention alone ({BATCH} x 6 heads x "
            f"{TIMED_LENGTH} tokens x 64, causal, float32): math relative to fused",
            "target": None,
            "verdict": None,
            **time_attention(with_math),
        }
    )
    return rows


def time_attention(with_math: Callable[[], Any]) -> Row:
    import torch

    q, k, v = (torch.randn(BATCH, 6, TIMED_LENGTH, 64, requires_grad=True) for _ in range(3))
    around: dict[str, Callable[[], Any]] = {"fused": contextlib.nullcontext, "math": with_math}

    def attend(name: str) -> None:
        for _ in range(4):
            with around[name]():
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    times = passes.alternate({name: partial(attend, name) for name in around}, 12)
    return ratio_of(times["math"], times["fused"])


def state_bytes(training: Training) -> int:
    """Weights, gradients and the optimizer's state after one step."""
    import torch

    training.step()
    tensors = [one for p in training.model.parameters() for one in (p, p.grad)]
    tensors += [one for state in training.optimizer.state.values() for one in state.values()]
    return sum(one.numel() * one.element_size() for one in tensors if isinstance(one, torch.Tensor))


def measure_exchanges() -> list[Row]:
    """Two gloo ranks on this machine: bytes exchanged under accumulation, and the rate of two ranks over one."""
    load = os.getloadavg()[0]
    found = passes.run_ranks([__file__, "exchanges"])[0]
    speed = ratio_of([2 * one for one in found["alone_s"]], found["both_s"])
    return [
        count_row(
            "no-sync",
            "no_sync() reduces the bytes sent to 1/N when accumulating over N micro-batches",
            f"bytes of gradients that DDP exchanges in a step of {MICRO_BATCHES} micro-batches: micro_batches() "
            "relative to one exchange per micro-batch",
            found["with_no_sync_bytes"] / found["without_bytes"],
            target=f"1/{MICRO_BATCHES}",
            is_reached=found["with_no_sync_bytes"] * MICRO_BATCHES == found["without_bytes"],
        ),
        {
            "id": "ddp-2-ranks",
            "claim": "DDP is 1.8 to 1.9 times as fast on 2 ranks",
            "what": "samples per second (wall time) of 2 gloo ranks relative to 1 rank, with one thread and one core "
            "per rank",
            "target": ">= 1.8x",
            "verdict": verdict(speed, 1.8)
            if load < passes.QUIET_LOAD
            else "not measurable here: two ranks need both cores, but other programs used some of their time (load "
            f"{load:.1f} before)",
            **speed,
        },
    ]


def exchange_as_rank(out: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hotloop.train.accumulate import micro_batches

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    sent = {"bytes": 0}

    def count(bucket: Any) -> Any:
        sent["bytes"] += bucket.buffer().nbytes
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)

    model = DistributedDataParallel(build_model())
    model.register_comm_hook(None, lambda state, bucket: count(bucket))
    codes = draw_codes(MICRO_BATCHES, 32)

    def count_step(run: Callable[[], Any]) -> int:
        sent["bytes"] = 0
        run()
        return sent["bytes"]

    def sync_each() -> None:
        for piece in codes.split(1):
            model(piece).float().square().mean().backward()

    def sync_once() -> None:
        for part in micro_batches(model, codes, MICRO_BATCHES):
            with part.exchange():
                (model(part.batch).float().square().mean() * part.weight).backward()

    found: dict[str, Any] = {"without_bytes": count_step(sync_each), "with_no_sync_bytes": count_step(sync_once)}
    alone, shared = build_model(), DistributedDataParallel(build_model())
    codes = draw_codes(BATCH, 128)
    trainings = {
        "alone": (alone, torch.optim.AdamW(alone.parameters())),
        "both": (shared, torch.optim.AdamW(shared.parameters())),
    }

    def three_steps(name: str) -> None:
        if name == "alone" and dist.get_rank():
            return
        network, optimizer = trainings[name]
        for _ in range(3):
            optimizer.zero_grad()
            network(codes).float().square().mean().backward()
            optimizer.step()

    works = {name: partial(three_steps, name) for name in trainings}
    times = passes.alternate(works, 8, time.perf_counter, around=dist.barrier)
    found |= {f"{name}_s": times[name] for name in trainings}
    Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


def measure_buckets() -> list[Row]:
    """Steps of plain DDP by size of its buckets, over a link of 1 Gbit/s between two network namespaces."""
    sys.path.insert(0, str(ROOT / "tests" / "zoo"))
    from shaped_link import shaped_link

    with tempfile.TemporaryDirectory() as folder, shaped_link(BUCKET_RATE) as link:
        command = [sys.executable, __file__, "buckets", folder]
        run = link.run(command, timeout_s=240, environment={"OMP_NUM_THREADS": "1"})
        if run.return_codes != (0, 0):
            raise RuntimeError("\n".join(run.outputs))
        found: dict[str, list[float]] = json.loads((Path(folder) / "found.json").read_text())
    return [
        {
            "id": f"buckets-25-over-{size}",
            "claim": "25 MB is a good bucket size",
            "what": "wall time of a DDP step with 25.2 million parameters, 2 ranks, and 1 Gbit/s: 25 MB relative to "
            f"{size} MB",
            "target": None,
            "verdict": None,
            **ratio_of(found["25"], found[str(size)]),
        }
        for size in BUCKET_MB
        if size != 25
    ]


def time_buckets_as_rank(folder: str) -> None:
    import torch
    import torch.distributed as dist
    from link_choice_ranks import LENGTH, Transformer
    from link_choice_ranks import VOCABULARY as CODES
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    models = {size: DistributedDataParallel(Transformer(), bucket_cap_mb=size) for size in BUCKET_MB}
    codes = torch.randint(CODES, (1, LENGTH))

    def step(size: int) -> None:
        models[size].zero_grad()
        models[size](codes).square().mean().backward()

    works = {str(size): partial(step, size) for size in BUCKET_MB}
    times = passes.alternate(works, BUCKET_ROUNDS, time.perf_counter, around=dist.barrier)
    if dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(times))
    dist.destroy_process_group()


MEASURES: dict[str, Callable[[], list[Row]]] = {
    "memory": measure_memory,
    "exchanges": measure_exchanges,
    "buckets": measure_buckets,
}


if __name__ == "__main__":
    {"exchanges": exchange_as_rank, "buckets": time_buckets_as_rank}[sys.argv[1]](sys.argv[2])
