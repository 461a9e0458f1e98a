"""What a Trainer's loop costs beside a hand-written one -> benchmarks/results/trainer.json.

Sides alternate in one process, in a new order each round; the cost is the process's CPU time for the same steps of the
same model on the same data, each side's own start and end within a round included. The claim: the upper 95 % bound of
the paired ratio to the hand-written loop is at most 1.02 at steps of 20 ms and more, and Accelerate's and Lightning's
ratios are not below. Those come from an environment of their own (`make frameworks`):

    .venv/bin/python benchmarks/trainer.py --frameworks .venv-frameworks

glibc gives freed gradients back to the system or not by what lies behind them, and page faults (kept in the result)
cost up to 3 of 24 ms: `--keep-heap --result FILE` takes that away from all sides. `--overhead` times a tiny model.

Rounds that the result file holds are not run again (`--fresh` begins anew). About 5 minutes; `--quick` one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import math
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "trainer.json"
LIMIT_RATIO = 1.02
WIDTH = 512
Side = Callable[[int], None]
"""Trains so many steps."""


def make_parts(width: int) -> tuple[Any, Any, Any, Any]:
    """Model, optimizer, loader and loss function, equal for every side: about 25 ms a step on one core at WIDTH."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(6 if width >= WIDTH else 1):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = width // 4
    data = TensorDataset(torch.randn(batch * 512, width), torch.randint(0, 16, (batch * 512,)))
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    return model, optimizer, loader, torch.nn.functional.cross_entropy


def hand_written(width: int = WIDTH) -> Side:
    model, optimizer, loader, loss_of = make_parts(width)

    def train(steps: int) -> None:
        model.train()
        for x, y in itertools.islice(loader, steps):
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def hotloop_trainer(width: int = WIDTH) -> Side:
    from hotloop import Trainer

    model, optimizer, loader, loss_of = make_parts(width)
    trainer = Trainer(model, optimizer, lambda model, batch: loss_of(model(batch[0]), batch[1]))

    def train(steps: int) -> None:
        trainer.fit(loader, epochs=1_000_000, max_steps=trainer.place.step + steps)

    return train


def accelerate(width: int = WIDTH) -> Side:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, loss_of = make_parts(width)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def train(steps: int) -> None:
        model.train()
        for x, y in itertools.islice(loader, steps):
            loss = loss_of(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return train


def lightning(width: int = WIDTH) -> Side:
    import lightning as lightning_package

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, loader, loss_of = make_parts(width)

    class Module(lightning_package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            return loss_of(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return optimizer

    module = Module()

    def train(steps: int) -> None:
        lightning_package.Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, loader)

    return train


SIDES = {"hand-written": hand_written, "hotloop": hotloop_trainer, "accelerate": accelerate, "lightning": lightning}


def measure(rounds: int, steps: int, seed: int) -> dict[str, Any]:
    """CPU time per step of each side in each round, in ns; sides that cannot be had are said with the reason."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sides: dict[str, Side] = {}
    skipped = {}
    for name, build in SIDES.items():
        try:
            sides[name] = build()
        except ImportError as error:
            skipped[name] = str(error)
    choose = random.Random(seed)
    for train in sides.values():
        train(5)
    found = []
    faults: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        order = list(sides)
        choose.shuffle(order)
        times = {}
        for name in order:
            faults_before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            begun_ns = time.process_time_ns()
            sides[name](steps)
            times[name] = (time.process_time_ns() - begun_ns) / steps
            faults[name].append((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults_before) / steps)
        found.append(times)
    return {"rounds": found, "faults": faults, "skipped": skipped, "torch": torch.__version__}


def measure_overhead(rounds: int) -> dict[str, dict[str, float]]:
    """Of a model so small that the loop's own work is most of a step: least CPU time per step, in us, of each side.

    The least of ``rounds`` runs of 600 steps less the least of as many of 100, so that a run's own start and end are
    not in it.
    """
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sides: dict[str, Side] = {}
    for name, build in SIDES.items():
        with contextlib.suppress(ImportError):
            sides[name] = build(8)
    times: dict[str, dict[int, list[int]]] = {name: {100: [], 600: []} for name in sides}
    for train in sides.values():
        train(20)
    for _ in range(rounds):
        for name, steps in itertools.product(sides, (100, 600)):
            begun_ns = time.process_time_ns()
            sides[name](steps)
            times[name][steps].append(time.process_time_ns() - begun_ns)
    return {
        name: {"us_per_step": (min(one[600]) - min(one[100])) / 500 / 1e3, "n": rounds} for name, one in times.items()
    }


def paired_ratio(rounds: list[dict[str, float]], name: str, base: str) -> dict[str, Any]:
    """Geometric mean of the paired ratios, with its two-sided 95 % interval."""
    logs = [math.log(one[name] / one[base]) for one in rounds if name in one and base in one]
    n = len(logs)
    if n < 2:
        return {"n": n, "ratio": None, "low_ratio": None, "high_ratio": None}
    mean = sum(logs) / n
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / (n - 1))
    half = (1.96 + 2.5 / (n - 1)) * spread / math.sqrt(n)  # Student's t within 1 % from 8 pairs on
    ratios = {"ratio": mean, "low_ratio": mean - half, "high_ratio": mean + half}
    return {"n": n, **{key: math.exp(value) for key, value in ratios.items()}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", type=Path, help="environment with accelerate and lightning")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--quick", action="store_true", help="6 rounds of 20 steps: shows that it works, proves nothing"
    )
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--keep-heap", action="store_true", help="all sides with freed memory kept (see keep-heap)")
    parser.add_argument("--overhead", action="store_true", help="a tiny model: us per step of each side; one minute")
    parser.add_argument("--worker", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 6, 20
    if options.overhead and options.worker is not None:
        print(json.dumps(measure_overhead(8), indent=1))
        return 0
    if options.worker is not None:
        options.result.write_text(json.dumps(measure(options.rounds, options.steps, options.worker)))
        return 0
    content: dict[str, Any] = {"rounds": []}
    if options.result.exists() and not options.fresh:
        content = json.loads(options.result.read_text())
    if options.keep_heap and options.result == RESULT:
        parser.error("--keep-heap measures something else: give --result FILE")
    python = sys.executable if options.frameworks is None else str(options.frameworks.resolve() / "bin" / "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    if options.keep_heap:
        environment |= {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
    if options.overhead:
        return subprocess.run([python, __file__, "--overhead", "--worker", "0"], env=environment).returncode
    while len(content["rounds"]) < options.rounds:  # few rounds a process: an interrupted run loses little
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json"
            command = [python, __file__, "--worker", str(len(content["rounds"])), "--result", str(part)]
            command += ["--rounds", str(min(6, options.rounds - len(content["rounds"]))), "--steps", str(options.steps)]
            subprocess.run(command, check=True, env=environment, cwd=folder)
            found = json.loads(part.read_text())
        content["rounds"] += found["rounds"]
        faults = content.setdefault("faults", {})
        for name, counts in found["faults"].items():
            faults.setdefault(name, []).extend(counts)
        content["faults_per_step"] = {name: sum(counts) / len(counts) for name, counts in faults.items()}
        content |= {"skipped": found["skipped"], "torch": found["torch"], "steps_a_round_count": options.steps}
        content |= {"machine": platform.platform(), "date": time.strftime("%Y-%m-%d")}
        rounds = content["rounds"]
        step_ns = sorted(one["hand-written"] for one in rounds)[len(rounds) // 2]
        names = [name for name in SIDES if name in rounds[0]]
        content["step_median_ns"] = step_ns
        content["to_hand_written"] = {
            name: paired_ratio(rounds, name, "hand-written") for name in names if name != "hand-written"
        }
        content["hotloop_to"] = {
            name: paired_ratio(rounds, "hotloop", name) for name in names if name in ("accelerate", "lightning")
        }
        high = content["to_hand_written"]["hotloop"]["high_ratio"]
        content["holds"] = None if len(rounds) < 20 or step_ns < 20e6 else high <= LIMIT_RATIO
        options.result.parent.mkdir(exist_ok=True)
        options.result.write_text(json.dumps(content, indent=1) + "\n")
    shown = {key: value for key, value in content.items() if key not in ("rounds", "faults")}
    print(json.dumps(shown, indent=1))
    for name, why in content["skipped"].items():
        print(f"skipped {name}: {why} (give --frameworks FOLDER)", file=sys.stderr)
    return 1 if content["holds"] is False else 0


if __name__ == "__main__":
    sys.exit(main())
