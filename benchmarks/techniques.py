"""What techniques save and cost on this machine: the rows of docs/claims.md.

    python benchmarks/techniques.py [CASE ...]    what the table lacks, or these again (`make techniques`)

A case is one process. Its variants alternate in short blocks of steps, in an order drawn for each round; a ratio is
taken within a round, so that other work on the machine meets all variants alike. Intervals are 95 %, from Student's t
over the logarithms of the rounds' ratios. Times are CPU times of the process, all threads.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import Row, ratio_of

WIDTH, LAYERS, VOCABULARY, BATCH, LENGTH = 384, 4, 8192, 4, 128
FEWEST_ROUNDS = 5
COMPILE_ROW_S = 120.0
"""Wall time after which the compile row starts no further round: compiling takes most of it on a busy machine."""
LIMIT_S = 280.0
"""A case that takes longer is ended, and nothing of it is kept."""


# The training: a transformer of about 10 million parameters.


def build_model(seed: int = 0, layers: int = LAYERS, length: int = LENGTH) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            b, n, w = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 6, w // 6).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, n, w))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(length, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, codes: Any) -> Any:
            x = self.tokens(codes) + self.places.weight[: codes.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.tokens.weight.T

    torch.manual_seed(seed)
    return Model()


class Training:
    """One variant: a model with its optimizer, changed by a strategy; ``around`` is entered for each forward."""

    def __init__(
        self,
        techniques: Sequence[str] = (),
        *,
        change: Callable[[Any], Any] = lambda m: m,
        around: Callable[[], Any] = contextlib.nullcontext,
        length: int = LENGTH,
        settings: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        import torch

        from hotloop.change.apply.api import apply_strategy
        from hotloop.core.strategy import Choice, Strategy

        bare = build_model(length=length)
        model = change(bare)
        optimizer = torch.optim.AdamW(bare.parameters(), 3e-4)
        options = settings or {}
        strategy = Strategy(choices=tuple(Choice(technique=t, settings=options.get(t, {})) for t in techniques))
        applied = apply_strategy(strategy, model=model, optimizer=optimizer)
        for record in applied.records:
            if record.status == "failed" or (record.status != "applied" and record.technique in techniques):
                raise RuntimeError(f"{record.technique}: {record.status}: {record.detail}")
        self.model, self.optimizer, self.around = applied.model, applied.optimizer, around
        self.codes = torch.randint(VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(1))
        self.optimizer_s = 0.0

    def forward(self) -> Any:
        import torch

        with self.around():
            logits = self.model(self.codes)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), self.codes[:, 1:].flatten())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()
        began = time.process_time()
        self.optimizer.step()
        self.optimizer_s += time.process_time() - began

    def saved_bytes(self) -> int:
        """Bytes that one forward keeps for backward, the loss's too, without parameters."""
        return self._count_saved(self.forward)

    def model_saved_bytes(self) -> int:
        """Bytes that the model's own forward keeps for backward, without parameters."""

        def run() -> Any:
            with self.around():
                return self.model(self.codes).sum()  # which keeps nothing

        return self._count_saved(run)

    def peak_kept_bytes(self) -> int:
        """The most bytes of what the model's forward operators made, when computed again too, that live in backward."""
        import torch
        from forward_bytes import ForwardBytes

        with ForwardBytes() as live:
            logits = self.model(self.codes)
            loss = logits.sum()  # keeps nothing
            del logits
            live.note()
            loss.backward()
        torch.nn.Module.zero_grad(self.model)
        return int(live.most_bytes)

    def _count_saved(self, run: Callable[[], Any]) -> int:
        import torch

        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()} | {
            self.codes.untyped_storage().data_ptr()
        }
        found: dict[int, int] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = run()
        total = sum(found.values())
        loss.backward()
        return total


# Measuring.


def alternate(
    variants: dict[str, Training], rounds: int, steps: int, limit_s: float = math.inf
) -> dict[str, dict[str, list[float]]]:
    """CPU seconds a step, and of its optimizer, of each variant and round; past the limit, FEWEST_ROUNDS at least."""
    draw, began_s = random.Random(0), time.perf_counter()
    for variant in variants.values():
        for _ in range(2):
            variant.step()
    found: dict[str, dict[str, list[float]]] = {name: {"step": [], "optimizer": []} for name in variants}
    for index in range(rounds):
        if index >= FEWEST_ROUNDS and time.perf_counter() - began_s > limit_s:
            break
        for name in draw.sample(list(variants), len(variants)):
            variant = variants[name]
            variant.optimizer_s, began = 0.0, time.process_time()
            for _ in range(steps):
                variant.step()
            found[name]["step"].append((time.process_time() - began) / steps)
            found[name]["optimizer"].append(variant.optimizer_s / steps)
    return found


def count_row(
    row_id: str, claim: str, what: str, ratio: float, *, target: str | None = None, is_reached: bool | None = None
) -> Row:
    """A row of a ratio of counted bytes, which is the same in every run."""
    return {
        "id": row_id,
        "claim": claim,
        "target": target,
        "what": what,
        "verdict": None if is_reached is None else "reached" if is_reached else "missed",
        "ratio": ratio,
        "low": None,
        "high": None,
        "n": 1,
        "unit": "a byte count, which does not vary",
    }


def verdict(figure: Row, least: float) -> str:
    if figure["low"] >= least:
        return "reached"
    return "missed" if figure["high"] < least else "cannot tell"


# The rows.


def measure_precision() -> list[Row]:
    names = {"fp32": (), "fused": ("fused-optimizer",), "bf16": ("bf16-autocast", "fused-optimizer")}
    times = alternate({name: Training(techniques) for name, techniques in names.items()}, 12, 2)
    speed = ratio_of(times["fp32"]["step"], times["bf16"]["step"])
    optimizer = ratio_of(times["fp32"]["optimizer"], times["fused"]["optimizer"])
    return [
        {
            "id": "bf16-fused",
            "claim": "bf16 trains 2 to 3 times as fast",
            "what": "speedup of bf16-autocast and fused-optimizer over fp32",
            "target": ">= 1.8x",
            "verdict": verdict(speed, 1.8),
            **speed,
        },
        {
            "id": "fused-step",
            "claim": "a fused optimizer is faster",
            "what": "speedup of AdamW's fused step over its default step",
            "target": ">= 3x",
            "verdict": verdict(optimizer, 3.0),
            **optimizer,
        },
    ]


def measure_compile() -> list[Row]:

    started = time.perf_counter()
    own = ("bf16-autocast", "fused-optimizer")
    eager, base, compiled = Training(own), Training(), Training((*own, "compile-model"))
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    compiled.step()
    compiled.step()
    compile_s, compile_cpu_s = time.perf_counter() - began, sum(os.times()[:4]) - cpu
    left_s = max(40.0, COMPILE_ROW_S - (time.perf_counter() - started))
    times = alternate({"fp32": base, "bf16": eager, "compiled": compiled}, 10, 2, limit_s=left_s)
    speed = ratio_of(times["fp32"]["step"], times["compiled"]["step"])
    alone = ratio_of(times["bf16"]["step"], times["compiled"]["step"])
    return [
        {
            "id": "compiled",
            "claim": "torch.compile speeds up training by 10 to 50%",
            "target": ">= 2.0x",
            "verdict": verdict(speed, 2.0),
            "what": "speedup of bf16-autocast, fused-optimizer, and torch.compile over fp32",
            **speed,
            **break_even(times["fp32"]["step"], speed, compile_s, compile_cpu_s, "fp32"),
        },
        {
            "id": "compile-alone",
            "claim": "torch.compile speeds up training by 10 to 50%",
            "what": "speedup that torch.compile adds to bf16-autocast and fused-optimizer",
            "target": None,
            "verdict": None,
            **alone,
            **break_even(times["bf16"]["step"], alone, compile_s, compile_cpu_s, "bf16 + fused"),
            "took_s": time.perf_counter() - started,
        },
    ]


def break_even(eager_s: Sequence[float], ratio: Row, compile_s: float, compile_cpu_s: float, base: str) -> Row:
    """Steps until the compilation's CPU time has paid for itself, at the ratio and at both ends of its interval.

    CPU time on both sides, all processes and threads: waiting for other work on the machine is in neither.
    """
    step_s = statistics.median(eager_s)

    def steps(gain: float) -> int | None:
        return None if gain <= 1 else math.ceil(compile_cpu_s / (step_s * (1 - 1 / gain)))

    middle, soonest, latest = steps(ratio["ratio"]), steps(ratio["high"]), steps(ratio["low"])
    if soonest is None:
        said = f"; compilation is slower than {base} over the entire interval and never pays off"
    elif latest is None:
        said = (
            f"; compared with {base}, hotloop cannot tell whether compilation pays off (after {soonest} steps at best)"
        )
    else:
        said = f"; compared with {base}, compilation pays off after {middle} steps ({soonest} to {latest})"
    return {
        "compile_s": compile_s,
        "compile_cpu_s": compile_cpu_s,
        "break_even_steps": middle if latest is not None else None,
        "note": f"the first two steps took {compile_cpu_s:.0f} s of CPU time ({compile_s:.0f} s of wall time){said}",
    }


BUDGETS = (0.75, 0.5, 0.25)


def measure_activations() -> list[Row]:
    import torch
    from torch._functorch import config

    rows: list[Row] = []

    def add(kind: str, what: str, budget: float, kept_ratio: float, note: str) -> None:
        what = f"{what} {budget:g}: peak number of bytes kept for the backward pass during a step, relative to budget 1"
        is_kept = abs(kept_ratio - budget) <= 0.05
        claim, target = "the memory stays within the given budget", "within 5 points"
        row = count_row(f"{kind}-{budget:g}", claim, what, kept_ratio, target=target, is_reached=is_kept)
        rows.append({**row, "note": note})

    plain = Training()
    plain.step()
    whole = plain.peak_kept_bytes()
    for budget in BUDGETS:
        variant = Training(("activation-checkpointing",), settings={"activation-checkpointing": {"budget": budget}})
        variant.step()  # in the first step blocks are watched, not recomputed
        add("budget", "eager mode, activation-checkpointing with budget", budget, variant.peak_kept_bytes() / whole, "")
    full = None
    for budget in (1.0, *BUDGETS):
        torch._dynamo.reset()
        config.activation_memory_budget = budget
        variant = Training(change=lambda m: torch.compile(m, backend="aot_eager_decomp_partition"))
        variant.model_saved_bytes()
        saved = variant.model_saved_bytes()
        full = full or saved
        if budget < 1:
            note = (
                "measured at the end of the model's forward pass, because the backward pass recomputes inside one graph"
            )
            add("compiled-budget", "compiled model, activation_memory_budget", budget, saved / full, note)
    config.activation_memory_budget = 1.0
    return rows


def measure_recompute() -> list[Row]:
    import torch

    recompute = Training(("activation-checkpointing",), length=256)
    plain = Training(length=256)
    offload = Training(around=torch.autograd.graph.save_on_cpu, length=256)
    kept = recompute.saved_bytes() / plain.saved_bytes()
    times = alternate({"plain": plain, "recompute": recompute}, 8, 1)
    cost = ratio_of(times["recompute"]["step"], times["plain"]["step"])
    rows: list[Row] = [
        count_row(
            "recompute-memory",
            "recomputation saves 30 to 50% of the memory",
            "bytes kept for the backward pass: every block recomputed, relative to none",
            kept,
        ),
        {
            "id": "recompute-time",
            "claim": "recomputation costs 10 to 15% of the time",
            "target": None,
            "verdict": None,
            "what": "CPU time of a step: every block recomputed, relative to none",
            **cost,
        },
    ]
    times = alternate({"plain": plain, "offload": offload}, 8, 1)
    rows.append(
        {
            "id": "offload-time",
            "claim": "offloading is 20 to 30% slower",
            "target": None,
            "verdict": None,
            "what": "CPU time of a step with save_on_cpu, relative to a step without it",
            **ratio_of(times["offload"]["step"], times["plain"]["step"]),
            "note": "save_on_cpu does not copy tensors that are already on the CPU, so this is the cost of the hooks "
            "alone",
        }
    )
    return rows


def measure_ranks() -> list[Row]:
    """Two processes over gloo: bytes of optimizer state, and the scan for unused parameters."""
    found: list[Row] = passes.run_ranks([__file__, "--rank"])[0]
    return found


def work_as_rank(out: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    codes = torch.randint(VOCABULARY, (1, 32))

    def step(model: Any, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(codes).float().square().mean().backward()
        optimizer.step()

    def state_bytes(optimizer: Any) -> int:
        inner = getattr(optimizer, "optim", optimizer)
        total = 0
        for state in inner.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim():
                    local = value.to_local() if hasattr(value, "to_local") else value
                    total += local.numel() * local.element_size()
        return total

    ddp = DistributedDataParallel(build_model())
    plain = torch.optim.AdamW(ddp.parameters())
    step(ddp, plain)
    whole = state_bytes(plain)
    sharded: dict[str, int] = {}
    zero_model = DistributedDataParallel(build_model())
    zero = ZeroRedundancyOptimizer(zero_model.parameters(), optimizer_class=torch.optim.AdamW)
    step(zero_model, zero)
    sharded["zero-1"] = state_bytes(zero)
    fsdp = build_model()
    for block in fsdp.blocks:
        fully_shard(block)
    fully_shard(fsdp)
    fsdp_optimizer = torch.optim.AdamW(fsdp.parameters())
    step(fsdp, fsdp_optimizer)
    sharded["fsdp2"] = state_bytes(fsdp_optimizer)
    rows: list[Row] = []
    for name, size in sharded.items():
        # Of all ranks, the one that is furthest from its share.
        away = torch.tensor(size / whole, dtype=torch.float64)
        gathered = [torch.zeros_like(away) for _ in range(2)]
        dist.all_gather(gathered, away)
        worst = max((float(one) for one in gathered), key=lambda one: abs(one - 0.5))
        rows.append(
            {
                "id": f"state-{name}",
                "claim": "sharding reduces the optimizer state per rank to 1/N",
                "target": "1/2 ± 1%",
                "what": f"{name}, 2 ranks: one rank's share of the optimizer state",
                "verdict": "reached" if abs(worst - 0.5) <= 0.005 else "missed",
                "ratio": worst,
                "low": None,
                "high": None,
                "n": 2,
                "unit": "ranks; the ratio is from the rank that is furthest from its share",
            }
        )
    scan = DistributedDataParallel(build_model(), find_unused_parameters=True)
    scanning = torch.optim.AdamW(scan.parameters())
    warnings.simplefilter("ignore")

    def four_steps(model: Any, optimizer: Any) -> None:
        for _ in range(4):
            step(model, optimizer)

    works = {"off": partial(four_steps, ddp, plain), "on": partial(four_steps, scan, scanning)}
    times = passes.alternate(works, 12, around=dist.barrier)
    rows.append(
        {
            "id": "unused-scan",
            "claim": "the scan for unused parameters costs 10 to 20%",
            "target": None,
            "verdict": None,
            "what": "CPU time of a step on rank 0 with the scan, relative to a step without it",
            **ratio_of(times["on"], times["off"]),
        }
    )
    Path(out).write_text(json.dumps(rows))
    dist.destroy_process_group()


MEASURES: dict[str, Callable[[], list[Row]]] = {
    "precision": measure_precision,
    "compile": measure_compile,
    "activations": measure_activations,
    "recompute": measure_recompute,
    "ranks": measure_ranks,
}
AMX_ROWS = ("bf16-fused", "compiled")
"""Their targets are for AMX bf16."""


def measure_alone(case: str) -> list[Row]:
    """The rows of a case, from a process of its own."""
    words = [sys.executable, __file__, "--case", case]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    rows: list[Row] = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        if row["id"] in AMX_ROWS and not passes.describe_machine()["amx_bf16"]:
            row["verdict"] = "not applicable: the target is for AMX bf16, which this CPU lacks"
    return rows


def draw_page(table: Mapping[str, Any]) -> str:
    """docs/claims.md."""
    rows = passes.read_rows(table)
    commits = {row["case"]: row["commit"] or "not kept" for row in rows}
    lines = [
        "<!-- Generated by scripts/evidence.py from benchmarks/results/techniques.json; do not edit. -->",
        "# What the guides claim, and what was measured",
        "",
        "If a ratio varies, the table states its 95% interval. Each target is hotloop's own and was set before the "
        "measurement. The cases were measured at these commits: "
        + "; ".join(f"{case} {commit}" for case, commit in commits.items())
        + ".",
        "",
        "| claim in guides | quantity measured | ratio | 95% interval | n | target | verdict | machine and date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        places = ".2f" if row["ratio"] >= 0.1 else ".2g"
        interval = "-" if row["low"] is None else f"{row['low']:{places}}..{row['high']:{places}}"
        note = f"; {row['note']}" if row.get("note") else ""
        amx = "AMX bf16" if row["machine"]["amx_bf16"] else "no AMX bf16"
        lines.append(
            f"| {row['claim']} | {row['what']}{note} | {row['ratio']:.3g} | {interval} | {row['n']} "
            f"({row['unit']}) | {row['target'] or '-'} | {row['verdict'] or '-'} | "
            f"{passes.describe_place(row['machine'])}, {amx}, {row['date']} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    import claim_rows

    measures = {**MEASURES, **claim_rows.MEASURES}
    warnings.simplefilter("ignore")
    if arguments[:1] == ["--rank"]:
        work_as_rank(arguments[1])
    elif arguments[:1] == ["--case"]:
        print(json.dumps(measures[arguments[1]]()))
    else:
        return passes.measure(__doc__, "techniques.json", {case: partial(measure_alone, case) for case in measures})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
