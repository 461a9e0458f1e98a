"""Rows of docs/claims.md about memory, exchanges between two ranks, buckets and data (run by benchmarks/techniques.py).

Each ``measure_*`` is one group, measured as the rows of techniques.py are. ``cite`` computes the rows of claims whose
raw tables another benchmark keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from techniques import BATCH, VOCABULARY, Row, Training, build_model, count_row, ratio_of, verdict

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MICRO_BATCHES = 8
ATTENTION_LENGTHS, TIMED_LENGTH = (256, 1024), 512
QUIET_LOAD = 0.3
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
            f"accumulation over {MICRO_BATCHES} takes {MICRO_BATCHES}x less activation memory",
            f"bytes kept for backward by one of {MICRO_BATCHES} micro-batches, over those of the whole batch",
            plain.saved_bytes() / whole,
        )
    ]
    single, half = Training(), Training(("bf16-autocast",))
    single.codes = half.codes = draw_codes(BATCH * MICRO_BATCHES, 128)
    rows.append(
        count_row(
            "bf16-activations",
            "bf16 takes 50 % less memory",
            f"bytes kept for backward by {single.codes.numel()} tokens under bf16-autocast, over float32; the float32 "
            "loss and the copies of weights included",
            half.saved_bytes() / single.saved_bytes(),
        )
    )
    single.codes = draw_codes(BATCH, 128)
    narrow = Training(("bf16-parameters",))
    rows.append(
        count_row(
            "bf16-state",
            "bf16 takes 50 % less memory",
            "bytes of weights, gradients and AdamW's state with bf16-parameters (compensated), over float32",
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
                "fused attention takes 50 % less memory and is 2-3x as fast",
                f"bytes that the model keeps for backward, {length} tokens, torch's fused attention over its math",
                pair["fused"].model_saved_bytes() / pair["math"].model_saved_bytes(),
            )
        )
    rows.append(
        {
            "id": "attention-time",
            "claim": "fused attention takes 50 % less memory and is 2-3x as fast",
            "what": f"CPU time of forward and backward of attention alone, {BATCH} x 6 heads x {TIMED_LENGTH} tokens x "
            "64, causal, float32, math over fused",
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
    times: dict[str, list[float]] = {name: [] for name in around}
    draw = random.Random(0)
    for turn in range(13):
        for name in draw.sample(list(around), 2):
            began = time.process_time()
            for _ in range(4):
                with around[name]():
                    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
            if turn:
                times[name].append(time.process_time() - began)
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
    with tempfile.TemporaryDirectory() as folder:
        environment = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        load = os.getloadavg()[0]
        children = [
            subprocess.Popen(
                [sys.executable, __file__, "exchanges", folder],
                env={**os.environ, **environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
        try:
            codes = [child.wait(timeout=240) for child in children]
        finally:
            for child in children:
                child.kill()
        if any(codes):
            raise RuntimeError(f"the two ranks ended with {codes}")
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
    speed = ratio_of([2 * one for one in found["alone_s"]], found["both_s"])
    return [
        count_row(
            "no-sync",
            "no_sync() under accumulation over N sends 1/N",
            f"bytes of gradients that DDP exchanges in a step of {MICRO_BATCHES} micro-batches, micro_batches() over "
            "an exchange for each",
            found["with_no_sync_bytes"] / found["without_bytes"],
            target=f"1/{MICRO_BATCHES}",
            is_reached=found["with_no_sync_bytes"] * MICRO_BATCHES == found["without_bytes"],
        ),
        {
            "id": "ddp-2-ranks",
            "claim": "DDP is 1.8-1.9x as fast on 2 ranks",
            "what": "samples a second of 2 gloo ranks over 1 rank, one thread and core each, wall time",
            "target": ">= 1.8x",
            "verdict": verdict(speed, 1.8)
            if load < QUIET_LOAD
            else f"not measurable here: two ranks need both cores, and other work held some (load {load:.1f} before)",
            **speed,
        },
    ]


def exchange_as_rank(folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hotloop.train.accumulate import micro_batches

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
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
    times: dict[str, list[float]] = {"alone": [], "both": []}
    draw = random.Random(0)
    for turn in range(9):
        for name in draw.sample(list(times), 2):
            dist.barrier()
            began = time.perf_counter()
            if name == "both" or rank == 0:
                network, optimizer = trainings[name]
                for _ in range(3):
                    optimizer.zero_grad()
                    network(codes).float().square().mean().backward()
                    optimizer.step()
            took_s = time.perf_counter() - began
            dist.barrier()
            if turn:  # the first round warms up, and rebuilds DDP's buckets
                times[name].append(took_s / 3)
    if rank == 0:
        found |= {"alone_s": times["alone"], "both_s": times["both"]}
        (Path(folder) / "found.json").write_text(json.dumps(found))
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
            "claim": "buckets of 25 MB",
            "what": f"wall time of a DDP step, 25.2 million parameters, 2 ranks, 1 Gbit/s, 25 MB over {size} MB",
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
    from compression_ranks import LENGTH, Transformer
    from compression_ranks import VOCABULARY as CODES
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    models = {size: DistributedDataParallel(Transformer(), bucket_cap_mb=size) for size in BUCKET_MB}
    times: dict[int, list[float]] = {size: [] for size in BUCKET_MB}
    codes = torch.randint(CODES, (1, LENGTH))
    draw = random.Random(0)
    for turn in range(BUCKET_ROUNDS + 1):
        for size in draw.sample(BUCKET_MB, len(BUCKET_MB)):
            models[size].zero_grad()
            dist.barrier()
            began = time.perf_counter()
            models[size](codes).square().mean().backward()
            took_s = time.perf_counter() - began
            if turn:  # the first step lays DDP's buckets out anew
                times[size].append(took_s)
    dist.barrier()
    if dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(times))
    dist.destroy_process_group()


def measure_data() -> list[Row]:
    """CPU time that the next batch takes, over a whole step: prepared tokens, and text tokenised in the loop."""
    import torch
    from tokenizers import Tokenizer
    from tokenizing import END, prepare, read_sources
    from torch.utils.data import DataLoader

    from hotloop import TokenDataset
    from hotloop.cli import main

    shares: dict[str, list[float]] = {"prepared": [], "in the loop": []}
    steps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file, texts = prepare(Path(folder), 400_000)
        out = Path(folder) / "tokens"
        words = ["tokenize", str(texts), "--tokenizer", str(tokenizer_file), "-o", str(out), "--eos", END]
        with contextlib.redirect_stdout(sys.stderr):
            if main([*words, "--processes", "1", "-q"]):
                raise RuntimeError("hotloop tokenize failed")
        training = Training()
        batches = iter(DataLoader(TokenDataset(out, 127), batch_size=BATCH, shuffle=True))  # type: ignore[arg-type]
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
        documents = read_sources()

        def tokenize() -> Any:
            long = (ids for ids in (tokenizer.encode(one).ids for one in documents) if len(ids) >= 128)
            return torch.tensor([next(long)[:128] for _ in range(BATCH)])

        makers: dict[str, Callable[[], Any]] = {"prepared": lambda: next(batches), "in the loop": tokenize}
        draw = random.Random(0)
        for turn in range(9):
            for name in draw.sample(list(makers), 2):
                began = time.process_time()
                for _ in range(3):
                    training.codes = makers[name]()
                made_s = time.process_time() - began
                if turn:
                    shares[name].append(made_s / 3)
            began = time.process_time()
            training.step()
            if turn:
                steps.append(time.process_time() - began)
    rows = []
    for name, what in {
        "prepared": "prepared with hotloop tokenize, no workers",
        "in the loop": "documents of 4,000 characters tokenised in the loop, no workers",
    }.items():
        share = ratio_of(shares[name], [one + made for one, made in zip(steps, shares[name], strict=True)])
        rows.append(
            {
                "id": f"data-{name}",
                "claim": "data takes below 5 % of the step",
                "what": f"CPU time of the next batch of 512 tokens over the step's: {what}",
                "note": "a CPU's step: on an accelerator the share is larger",
                "target": "< 0.05",
                "verdict": "reached" if share["high"] < 0.05 else "missed" if share["low"] >= 0.05 else "cannot tell",
                **share,
            }
        )
    return rows


ROWS: dict[str, Callable[[], list[Row]]] = {
    "memory": measure_memory,
    "exchanges": measure_exchanges,
    "buckets": measure_buckets,
    "data": measure_data,
}

SENT = Path("compression", "steps-100mbit.json")
TOKENIZED = Path("tokenize", "speed.json")
BUILT = Path("operations", "image.json")
STOPPED = Path("operations", "slurm.json")
CITED = (SENT, TOKENIZED, BUILT, STOPPED)
"""Below benchmarks/results."""
NO_GPU = "not measurable here: it needs a GPU"
UNMEASURED: tuple[tuple[str, str, str], ...] = (
    (
        "time-slicing lets 4x more users share a GPU",
        "4 slices of a device plugin are a setting, not a gain: each job gets its share of the time, and "
        "nothing keeps their memory apart; `hotloop launch --target gpu-sharing` derives the count from a run",
        NO_GPU,
    ),
    (
        "a job takes `nvidia.com/gpu: 0.25`",
        "invalid in Kubernetes, where devices are whole; `hotloop launch --validate` refuses it",
        "not measurable: the API server refuses it",
    ),
    (
        "an HPA scales training by the Resource metric `gpu`",
        "invalid in Kubernetes, whose resource metrics are cpu and memory; `hotloop launch --validate` refuses it",
        "not measurable: there is no such metric",
    ),
    (
        "NCCL is set up by NCCL_IB_DISABLE=1, NCCL_P2P_DISABLE=1 and the like",
        "each switches a transport off; `hotloop launch` sets NCCL_DEBUG=WARN and the interface that you name only",
        NO_GPU,
    ),
)
"""Claims that nothing here can measure: claim, what there is to say, why not."""


def cite(results: Path = RESULTS) -> list[Row]:
    """The rows that follow from the raw tables of other benchmarks, each with its machine, date and commit."""
    return [
        row
        for path, rows in zip(CITED, (_sent, _tokenized, _built, _stopped), strict=True)
        for row in _from(results, path, rows)
    ] + [{"claim": claim, "what": what, "ratio": None, "verdict": verdict} for claim, what, verdict in UNMEASURED]


def _from(results: Path, path: Path, rows: Callable[[Row], list[Row]]) -> list[Row]:
    table = json.loads((results / path).read_text(encoding="utf-8"))
    place = f"{table['machine']}, {table['date']}, commit {table['commit']}"
    return [{"place": place, "target": None, "verdict": None, **row} for row in rows(table)]


def _sent(table: Row) -> list[Row]:
    """True bytes of a step, by round."""
    by_method: dict[str, list[float]] = {}
    for row in table["rows"]:
        by_method.setdefault(row["method"], []).append(row["sent_bytes"])
    found = []
    for method, claim, note, target, is_reached in (
        ("bf16", "bf16 gradients are half the bytes", "", "0.50", lambda r: abs(r - 0.5) <= 0.005),
        (
            "topk",
            "top-k sends 1 % of the gradients",
            "an index of 4 bytes goes with each value",
            "<= 0.021",
            lambda r: r <= 0.021,
        ),
        (
            "int8",
            "quantised gradients are 4x smaller",
            "a scale goes with each block",
            "0.25",
            lambda r: abs(r - 0.25) <= 0.005,
        ),
    ):
        figure = ratio_of(by_method[method], by_method["plain"])
        found.append(
            {
                "claim": claim,
                "what": f"bytes on the wire of a DDP step with compress-gradients ({method}), over plain DDP's; "
                "2 ranks, 25.2 million parameters",
                "note": note,
                "target": target,
                **figure,
                "verdict": "reached" if is_reached(figure["ratio"]) else "missed",
                "unit": "steps by turns",
            }
        )
    return found


def _tokenized(table: Row) -> list[Row]:
    others = max(row["two"]["others_cores"] for row in table["rows"])
    ratios = [row["wall_ratio"] for row in table["rows"]]
    return [
        {
            "claim": "tokenising is 12x as fast by processes",
            "what": "wall time of hotloop tokenize with 1 process over 2",
            "ratio": sum(ratios) / len(ratios),
            "low": None,
            "high": None,
            "n": len(ratios),
            "unit": "rounds",
            "verdict": "not measurable here: it needs 12 cores and more; here are 2, of which other work held "
            f"{others}",
        }
    ]


def _built(table: Row) -> list[Row]:
    """A build after a code edit, as the file is over the file with what is proven: one row a case."""
    found = []
    code = [row for row in table["rows"] if row["scenario"] == "code" and row["samples_s"]]
    for case in dict.fromkeys(row["case"] for row in code):
        before = next(row for row in code if row["case"] == case and row["variant"] == "as-is")
        proven = [row for row in code if row["case"] == case and row["verdict"] == "proven"]
        best = max(proven, key=lambda row: (row["variant"] == "together", row["speedup"]), default=before)
        found.append(
            {
                "claim": "image rebuilds are 9x as fast",
                "what": f"{case}: seconds of a buildah build after a code edit, as the file is over "
                + (" and ".join(best["fixes"]) or "itself: nothing was proven"),
                "ratio": statistics.median(before["samples_s"]) / statistics.median(best["samples_s"]),
                "low": None,
                "high": None,
                "n": len(best["samples_s"]),
                "unit": "builds of each; local packages that take seconds",
                "target": ">= 5x for the best",
            }
        )
    largest = max(row["ratio"] for row in found)
    return [
        {**row, "verdict": ("reached" if largest >= 5 else "missed") if row["ratio"] == largest else None}
        for row in found
    ]


def _stopped(table: Row) -> list[Row]:
    """Seconds from a signal to a save on both nodes, over the notice of a spot machine."""
    after_s = [one for row in table["rows"] for one in row.get("saved_after_s", ())]
    return [
        {
            "claim": f"a spot machine's notice ({notice}) is enough to save",
            "what": f"time from the signal to the end of the save, the longest of all, over {notice_s} s; a small "
            f"model with a save of {table['save_s']:g} s on 2 nodes of Slurm: what counts is your own save (--run)",
            "ratio": max(after_s) / notice_s,
            "low": None,
            "high": None,
            "n": len(after_s),
            "unit": "preemptions",
        }
        for notice, notice_s in (("30 s of Google Cloud and Azure", 30), ("120 s of AWS", 120))
    ]


def main(arguments: Sequence[str]) -> None:
    what, folder = arguments
    {"exchanges": exchange_as_rank, "buckets": time_buckets_as_rank}[what](folder)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main(sys.argv[1:])
