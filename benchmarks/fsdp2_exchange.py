"""What FSDP2's needless exchanges cost a step on a CPU, over the time of the collectives that they call.

Two gloo ranks of one thread train small transformers with accumulation. Arms, in turn, each a run under `hotloop run`:
exchange after every micro-batch; gradients after the last alone; gradients after the last and weights kept whole until
then. won / counted = the saving of an arm over what the first arm's report counts: time in collectives x (k - 1) / k.
`SPREAD_WON_RATIO` and `KEPT_WON_RATIO` in hotloop/diagnose/rules/sync_every_microstep.py come from it.

    python benchmarks/fsdp2_exchange.py [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import torch
from loader_controller import describe_machine
from raw import describe_commit, draw_raw
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fsdp2_exchange.json"
ARMS = ("every", "gradients", "both")
SHAPES: dict[str, dict[str, int]] = {
    "narrow": {"width": 128, "depth": 4, "tokens": 256, "micro": 4},
    "middle": {"width": 256, "depth": 4, "tokens": 256, "micro": 4},
    "middle, two": {"width": 256, "depth": 4, "tokens": 512, "micro": 2},
    "deep": {"width": 192, "depth": 10, "tokens": 128, "micro": 4},
    "wide": {"width": 512, "depth": 3, "tokens": 256, "micro": 4},
}
STEPS = 30


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mixing = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.wide, self.narrow = (
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mixing(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return x + self.narrow(nn.functional.gelu(self.wide(x)))


def train(shape: dict[str, int], arm: str) -> None:
    """One rank."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(shape["width"]) for _ in range(shape["depth"])))
    for block in model:
        fully_shard(block)
    sharded: Any = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(4, shape["tokens"] // 4, shape["width"])
    for _ in range(STEPS):
        for micro in range(shape["micro"]):
            is_last = micro == shape["micro"] - 1
            sharded.set_requires_gradient_sync(is_last or arm == "every")
            sharded.set_reshard_after_backward(is_last or arm != "both")
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def run_arm(name: str, arm: str) -> dict[str, Any]:
    """Mean step and mean time in collectives, in ns, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.json"
        training = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
        command = [
            str(Path(sys.executable).with_name("hotloop")),
            "run",
            "--no-probe",
            "--no-deep",
            "-q",
            "--json",
            str(target),
        ]
        done = subprocess.run(
            [*command, "--", *training, "--train", name, arm], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        report = json.loads(target.read_text())
    mean_ns = report["step"]["mean_ns"]
    shares = [rank["breakdown"]["communication"]["mean_ns"] for rank in report["ranks"]]
    return {"step_ns": mean_ns, "communication_ns": min(shares)}


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds, by shape: what each arm won over what was counted."""
    table = []
    for name, shape in SHAPES.items():
        step = {arm: [r["step_ns"] for r in rows if (r["shape"], r["arm"]) == (name, arm)] for arm in ARMS}
        counted = [r["communication_ns"] for r in rows if (r["shape"], r["arm"]) == (name, "every")]
        needless = (shape["micro"] - 1) / shape["micro"]
        won = {
            arm: [
                (every - own) / (needless * ns)
                for every, own, ns in zip(step["every"], step[arm], counted, strict=True)
            ]
            for arm in ("gradients", "both")
        }
        table.append(
            {
                "shape": name,
                "micro_batches": shape["micro"],
                "step_ms": round(statistics.median(step["every"]) * 1e-6, 1),
                "collectives_ratio": round(statistics.median(counted) / statistics.median(step["every"]), 3),
                **{f"{arm}_won_ratio": round(statistics.median(values), 2) for arm, values in won.items()},
                **{f"{arm}_by_round": [round(value, 2) for value in values] for arm, values in won.items()},
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", nargs=2, metavar=("SHAPE", "ARM"), help="be one rank of an arm")
    options = parser.parse_args()
    if options.train:
        train(SHAPES[options.train[0]], options.train[1])
        return
    rows: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for name in SHAPES:
            for arm in ARMS:
                found = run_arm(name, arm)
                rows.append({"round": number, "shape": name, "arm": arm, "load": os.getloadavg()[0], **found})
                print(json.dumps(rows[-1]), flush=True)
    head = {"date": date.today().isoformat(), "commit": describe_commit(), "machine": describe_machine()}
    table = summarise(rows)
    RESULTS.write_text(draw_raw({**head, "torch": torch.__version__, "table": table, "rows": rows}))
    for row in table:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
