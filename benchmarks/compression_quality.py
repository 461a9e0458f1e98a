"""A small language model on two ranks -> what fewer bits and local updates do to its loss.

    python benchmarks/compression_quality.py [CASE ...] [--limit 600]    what the table lacks, or these again

Run by `make compression-quality`: about a minute for each run on two cores. The load of the machine does not matter,
since nothing is timed. Where network namespaces can be made, each rank runs in one, and what it sends is counted at
its interface. The model predicts the next byte of the Python standard library's sources. A seed draws the weights and
the order of the tokens, which are the same for all methods. Methods are applied as a user would: hotloop's techniques,
by API.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import ROOT, Row

sys.path.insert(0, str(ROOT / "tests" / "zoo"))
from shaped_link import rank_environment, shaped_link, why_no_link

SEEDS = (1, 2, 3)
WORLD_SIZE = 2
STEPS = 2000
LAST_STEPS = 100
"""The result of a run is the mean loss of this many steps at its end."""
BLOCK_STEPS = 50
"""A curve is kept as means over this many steps."""
ALLOWED_RATIO = 0.01
"""Share of plain's loss, or the distance between plain's best and worst seed where that is larger; fixed beforehand."""
LENGTH, BATCH, WIDTH, HEADS, LAYERS = 64, 4, 96, 3, 2
HELD_OUT_BATCHES = 64
CORPUS_BYTES = 8_000_000
LEARNING_RATE = 2e-3
WARM_UP_STEPS = 100
LEAST_RATE_RATIO = 0.1
LIMIT_S = 3600.0
"""A run that takes longer is stopped, and none of it is kept."""

COMPRESS, LOCAL = "compress-gradients", "local-updates"
"""The second was removed after these runs, and so was PowerSGD: their rows stay as they were measured."""
DILOCO = {"outer": "nesterov", "steps": 10, "outer_rate": 0.7, "outer_momentum": 0.9}
"""The outer optimizer of the paper (arXiv 2311.08105, which makes 500 steps between exchanges)."""
WARM_UP = {"warm_up_steps": 500}
"""A quarter of the run. Chosen on seeds 11 and 12, like top-k's 100 steps: no run of the judging seeds was used."""
OWN_MOMENTUM = {"most_momentum": 0.999}
"""The optimizer keeps its beta1 with top-k."""
BETAS: Mapping[str, tuple[float, float]] = {"plain, beta1 0": (0.0, 0.999)}
"""AdamW's betas, where they are not (0.9, 0.999)."""
METHODS: Mapping[str, tuple[str, Mapping[str, Any]] | None] = {
    "plain": None,
    "bf16": (COMPRESS, {"method": "bf16"}),
    "fp16": (COMPRESS, {"method": "fp16"}),
    "int8": (COMPRESS, {"method": "int8"}),
    "top-k 1 %": (COMPRESS, {"method": "topk", "ratio": 0.01, **OWN_MOMENTUM}),
    "PowerSGD rank 4": (COMPRESS, {"method": "powersgd", "rank": 4}),
    "Local SGD, H=10": (LOCAL, {"outer": "average", "steps": 10, "send": "float32"}),
    "DiLoCo, H=10, bf16": (LOCAL, {**DILOCO, "send": "bf16"}),
    "DiLoCo, H=10, bf16, momentum 0.5": (LOCAL, {**DILOCO, "outer_momentum": 0.5, "send": "bf16"}),
    "DiLoCo, H=10, top-k 1 %": (LOCAL, {**DILOCO, "send": "topk", "ratio": 0.01}),
    "plain, again": None,
    "plain, beta1 0": None,
    "top-k 1 %, beta1 0": (COMPRESS, {"method": "topk", "ratio": 0.01}),
    "top-k 1 %, beta1 0, warm-up 100": (COMPRESS, {"method": "topk", "ratio": 0.01, "warm_up_steps": 100}),
    "PowerSGD rank 4, warm-up 500": (COMPRESS, {"method": "powersgd", "rank": 4, **WARM_UP}),
    "Local SGD, H=10, warm-up 500": (LOCAL, {"outer": "average", "steps": 10, "send": "float32", **WARM_UP}),
    "DiLoCo, H=10, bf16, momentum 0.5, warm-up 500": (
        LOCAL,
        {**DILOCO, "outer_momentum": 0.5, "send": "bf16", **WARM_UP},
    ),
    "DiLoCo, H=10, bf16, momentum 0.5, warm-up 200": (
        LOCAL,
        {**DILOCO, "outer_momentum": 0.5, "send": "bf16", "warm_up_steps": 200},
    ),
    "SGD, plain": None,
    "SGD, top-k 1 %": (COMPRESS, {"method": "topk", "ratio": 0.01, **OWN_MOMENTUM}),
    "SGD, top-k 1 %, momentum before": (COMPRESS, {"method": "topk", "ratio": 0.01}),
}
SGD_RATE, SGD_MOMENTUM = 0.1, 0.9
"""For the rows whose names begin with SGD, which are compared with plain SGD training; a first guess, on seed 11."""


# One rank of one run.


def read_corpus() -> bytes:
    """The standard library's sources, in the order of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(path.relative_to(root).parts)
    )
    return b"".join(path.read_bytes() for path in files)[:CORPUS_BYTES]


def build_model() -> Any:
    """A decoder of LAYERS blocks over bytes, with learned positions."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x_BLD: Any) -> Any:
            batch, length, width = x_BLD.shape
            parts = self.qkv(self.before(x_BLD)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            x_BLD = x_BLD + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            return x_BLD + self.narrow(F.gelu(self.wide(self.between(x_BLD))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
            for part in self.modules():
                if isinstance(part, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(part.weight, std=0.02)

        def forward(self, x_BL: Any) -> Any:
            return self.head(self.norm(self.blocks(self.bytes(x_BL) + self.places(torch.arange(x_BL.shape[1])))))

    return Decoder()


def train_rank(method: str, seed: int, out: Path) -> None:
    """This rank's losses of every step, and its loss on held-out text at the end."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    from hotloop.change.apply.api import apply_strategy
    from hotloop.core.strategy import Choice, Strategy

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    corpus = torch.frombuffer(bytearray(read_corpus()), dtype=torch.uint8)
    held_out_count = len(corpus) // 20
    model: Any = DistributedDataParallel(build_model())
    optimizer: Any
    if method.startswith("SGD"):
        optimizer = torch.optim.SGD(model.parameters(), SGD_RATE, SGD_MOMENTUM)
    else:
        betas = BETAS.get(method, (0.9, 0.999))
        optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, betas, weight_decay=0.01)
    said: list[str] = []
    chosen = METHODS[method]
    if chosen is not None:
        strategy = Strategy(choices=(Choice(technique=chosen[0], settings=chosen[1]),))
        applied = apply_strategy(strategy, model=model, optimizer=optimizer)
        model, optimizer = applied.model, applied.optimizer
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    rank = dist.get_rank()

    def draw(generator: torch.Generator, first: int, end: int) -> tuple[Any, Any]:
        starts = torch.randint(first, end - LENGTH - 1, (BATCH,), generator=generator).tolist()
        windows = torch.stack([corpus[start : start + LENGTH + 1] for start in starts]).long()
        return windows[:, :-1], windows[:, 1:]

    def loss_of(x_BL: Any, y_BL: Any) -> Any:
        return F.cross_entropy(model(x_BL).flatten(0, 1), y_BL.flatten())

    order = torch.Generator().manual_seed(1_000 * seed + rank)
    losses: list[float] = []
    before_bytes = read_sent_bytes()
    for _ in range(STEPS):
        loss = loss_of(*draw(order, held_out_count, len(corpus)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    dist.barrier()
    after_bytes = read_sent_bytes()
    order.manual_seed(0)
    model.eval()
    with torch.no_grad():
        held_out = [loss_of(*draw(order, 0, held_out_count)).item() for _ in range(HELD_OUT_BATCHES)]
    if chosen is not None:
        said = [f"{one.status}: {one.detail}" for one in applied.applier.records]
        if not any(one.startswith("applied") for one in said):
            raise SystemExit(f"{method} was not applied: {said}")
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    answer = {
        "losses": losses,
        "held_out_loss": statistics.fmean(held_out),
        "sent_bytes": None if before_bytes is None or after_bytes is None else after_bytes - before_bytes,
        "parameters_count": sum(one.numel() for one in model.parameters()),
        "said": said,
        "weights": hashlib.sha256(weights).hexdigest(),
        "corpus": hashlib.sha256(corpus.numpy().tobytes()).hexdigest(),
    }
    out.write_text(json.dumps(answer))
    dist.destroy_process_group()


def read_sent_bytes() -> int | None:
    """Bytes that this rank's interface has sent, headers included; None where it has no interface of its own."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    return int(Path(f"/sys/class/net/{name}/statistics/tx_bytes").read_text()) if name else None


def rate_at(step: int) -> float:
    """Factor of the learning rate: a linear start, then a linear decay."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return max(LEAST_RATE_RATIO, 1.0 - (1.0 - LEAST_RATE_RATIO) * (step - WARM_UP_STEPS) / (STEPS - WARM_UP_STEPS))


# A pass.


def run_once(method: str, seed: int) -> Row:
    """Both ranks of one run -> its row. Raises RuntimeError where a rank fails or the replicas differ at the end."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        link = None if why_no_link() else stack.enter_context(shaped_link())
        outs = [Path(folder) / f"{rank}.json" for rank in range(WORLD_SIZE)]
        ranks = []
        for rank, out in enumerate(outs):
            words = [sys.executable, __file__, "--rank-of", method, str(seed), str(out)]
            variables = {**rank_environment(rank), "OMP_NUM_THREADS": "1"}
            if link is None:
                del variables["GLOO_SOCKET_IFNAME"]
                variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}
            else:
                words = ["ip", "netns", "exec", link.ends[rank], *words]
            ranks.append(subprocess.Popen(words, env={**os.environ, **variables}))
        try:
            codes = [process.wait(LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{method}, seed {seed}: the ranks ended with {codes}")
        found = [json.loads(out.read_text()) for out in outs]
    if found[0]["weights"] != found[1]["weights"]:
        raise RuntimeError(f"{method}, seed {seed}: the replicas differ after the last step")
    losses = [statistics.fmean(pair) for pair in zip(*(one["losses"] for one in found), strict=True)]
    return {
        "method": method,
        "seed": seed,
        "last_loss": statistics.fmean(losses[-LAST_STEPS:]),
        "held_out_loss": found[0]["held_out_loss"],
        "sent_bytes": found[0]["sent_bytes"],
        "curve": [
            round(statistics.fmean(losses[at : at + BLOCK_STEPS]), 4) for at in range(0, len(losses), BLOCK_STEPS)
        ],
        "said": found[0]["said"],
        "parameters_count": found[0]["parameters_count"],
        "corpus_sha256": found[0]["corpus"],
    }


# The page.


def plain_of(method: str) -> str:
    """The plain training that a method is compared with: that of its optimizer."""
    return "SGD, plain" if method.startswith("SGD") else "plain"


def allowed_loss(result: Mapping[str, Any], method: str = "plain") -> float:
    """How far a method's mean may be above plain's mean."""
    losses = losses_of(result, plain_of(method))
    return max(result["allowed_ratio"] * statistics.fmean(losses), max(losses) - min(losses))


def losses_of(result: Mapping[str, Any], method: str, key: str = "last_loss") -> list[float]:
    return [row[key] for row in result["rows"] if row["method"] == method]


def above_plain(result: Mapping[str, Any], method: str) -> float:
    """The mean difference from plain, seed by seed, as a share of plain's loss there."""
    plain = {row["seed"]: row["last_loss"] for row in result["rows"] if row["method"] == plain_of(method)}
    pairs = [(row["last_loss"], plain[row["seed"]]) for row in result["rows"] if row["method"] == method]
    return sum(own - base for own, base in pairs) / sum(base for _, base in pairs)


def sent_ratio(result: Mapping[str, Any], method: str) -> float | None:
    """Bytes sent in a run, as a share of plain training's; None where either was not counted."""
    own, plain = (
        [row["sent_bytes"] for row in result["rows"] if row["method"] == one and row.get("sent_bytes") is not None]
        for one in (method, "plain, again")
    )
    return statistics.fmean(own) / statistics.fmean(plain) if own and plain else None


def describe_runs(result: Mapping[str, Any]) -> str:
    """Day, machine and commits of the runs, group by group."""
    groups: dict[tuple[str, ...], set[str]] = {}
    for row in passes.read_rows(result):
        groups.setdefault((row["date"], passes.describe_place(row["machine"])), set()).add(row["commit"])
    return "; and on ".join(
        f"{day} on {place} (commits {', '.join(sorted(commits))})" for (day, place), commits in groups.items()
    )


def name_of(method: str) -> str:
    """A method as the page prints it."""
    return method.replace(" %", "%")


def verdict_of(result: Mapping[str, Any], method: str) -> str:
    seeds_count = result["seeds_count"]
    base = plain_of(method)
    counts = [len(losses_of(result, one)) for one in (base, method)]
    if counts != [seeds_count] * 2:
        return f"open: {counts[1]} of {seeds_count} seeds"
    if method == base:
        return ""
    plain, own = (statistics.fmean(losses_of(result, one)) for one in (base, method))
    return "pass" if own - plain <= allowed_loss(result, method) else "**worse**"


def draw_page(result: Mapping[str, Any]) -> str:
    rows = result["rows"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        "# What sending less does to the loss",
        "",
        f"The runs were measured on {describe_runs(result)}. `make compression-quality` produces these runs and "
        "stores them in `benchmarks/results/compression_quality.json`.",
        "",
        f"A decoder with {rows[0]['parameters_count']:,} parameters predicts the next byte of the Python standard "
        f"library's source code. It trains on {result['world_size']} gloo ranks with {result['batch_size']} windows "
        f"of {result['length']} bytes each, for {result['steps_count']:,} AdamW steps. For each seed, all methods "
        "start from the same weights, see the same tokens, and have the same hyperparameters, which were chosen for "
        "plain training (without compression). Rows whose names begin with SGD use SGD with a learning rate of "
        f"{SGD_RATE} and a momentum of {SGD_MOMENTUM}, and are compared with plain SGD training. The *loss* is the "
        f"mean over the last {result['last_steps_count']} steps and both ranks; *held out* is the loss on text that "
        "was not used for training.",
        "",
        f"A method passes if its mean loss exceeds the loss of plain training by at most {allowed_loss(result):.4f}. "
        f"This limit is {result['allowed_ratio']:.0%} of the plain loss, or the difference between the best and the "
        "worst seed of plain training, whichever is larger. The limit and all settings were fixed before the runs. "
        f"In total, {len(rows)} of {result['wanted_count']} runs are finished. *Above plain* compares runs that have "
        "the same seed. *Sent* is the number of bytes that a rank's interface sent in the entire run, including "
        "warm-up and headers, relative to plain training; the first runs did not count these bytes.",
        "",
        "| method | "
        + " | ".join(f"seed {seed}" for seed in seeds)
        + " | mean | above plain | held out | sent | verdict |",
        "|---|" + "---|" * (len(seeds) + 5),
    ]
    for method in methods:
        own = {row["seed"]: row for row in rows if row["method"] == method}
        losses = [one["last_loss"] for one in own.values()]
        cells = [f"{own[seed]['last_loss']:.4f}" if seed in own else "" for seed in seeds]
        cells += [f"{statistics.fmean(losses):.4f}", f"{above_plain(result, method):+.1%}"]
        sent = sent_ratio(result, method)
        cells += [f"{statistics.fmean(losses_of(result, method, 'held_out_loss')):.4f}"]
        cells += ["not counted" if sent is None else f"{sent:.3f}", verdict_of(result, method)]
        lines.append(f"| {name_of(method)} | " + " | ".join(cells) + " |")
    lines += ["", *explain_momentum(result), "hotloop reported that it applied the following:", ""]
    for method in methods:
        said = {one for row in rows if row["method"] == method for one in row["said"]}
        lines += [f"- {name_of(method)}: {one.removeprefix('applied: ')}" for one in sorted(said)]
    lines += ["", "## Curves", "", *draw_curves(result, methods), ""]
    return "\n".join(lines)


def explain_momentum(result: Mapping[str, Any]) -> list[str]:
    """Why top-k had a higher loss with the optimizer's momentum, in the figures of the rows."""
    names = ("top-k 1 %", "top-k 1 %, beta1 0", "plain, beta1 0")
    if any(not losses_of(result, name) for name in names):
        return []
    late, mended, control = (f"{above_plain(result, name):+.1%}" for name in names)
    counted = len(losses_of(result, names[-1]))
    return [
        "The optimizer's momentum explains why top-k had a higher loss. The gradients that top-k does not send "
        "arrive in a later step, and momentum delays their effect further. Meanwhile, the ranks collect gradients "
        "for weights that have not moved, and then send too much. Compared with the plain loss, the top-k loss "
        f"differed by {late} when AdamW's beta1 was 0.9, and by {mended} when beta1 was 0. Setting beta1 to 0 is not "
        f"an improvement by itself: without compression, the loss then differed by {control} ({counted} of "
        f"{result['seeds_count']} seeds). Under top-k, hotloop therefore sets beta1 to 0. Rows that do not name beta1 "
        "use 0.9.",
        "",
    ]


def draw_curves(result: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """The loss at ten places on the way, each the mean of one block of steps and all seeds."""
    block = result["block_steps_count"]
    count = result["steps_count"] // block
    places = [index * count // 10 - 1 for index in range(1, 11)]
    lines = [
        f"Each value is the mean loss, over all seeds, in the {block} steps that end at the step number in the table's "
        "header. The results file contains all blocks.",
        "",
        "| method | " + " | ".join(str((place + 1) * block) for place in places) + " |",
        "|---|" + "---|" * len(places),
    ]
    for method in methods:
        curves = [row["curve"] for row in result["rows"] if row["method"] == method]
        cells = (f"{statistics.fmean(curve[place] for curve in curves):.3f}" for place in places)
        lines.append(f"| {name_of(method)} | " + " | ".join(cells) + " |")
    return lines


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--rank-of"]:
        train_rank(arguments[1], int(arguments[2]), Path(arguments[3]))
        return 0
    head = {
        "wanted_count": len(METHODS) * len(SEEDS),
        "seeds_count": len(SEEDS),
        "steps_count": STEPS,
        "last_steps_count": LAST_STEPS,
        "block_steps_count": BLOCK_STEPS,
        "world_size": WORLD_SIZE,
        "batch_size": BATCH,
        "length": LENGTH,
        "allowed_ratio": ALLOWED_RATIO,
    }
    cases = {f"{method}, seed {seed}": partial(run_once, method, seed) for seed in SEEDS for method in METHODS}
    return passes.measure(__doc__, "compression_quality.json", cases, head)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
