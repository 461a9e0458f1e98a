"""What a Trainer's loop costs beside a hand-written one -> benchmarks/results/trainer.json.

Loops alternate inside one process in blocks of a few steps: after every block of the outer one (a library that calls
back after each step) the hand-written loop, and Accelerate's, go on for a block. The cost is the process's CPU time. A
pair is two blocks beside each other; a process gives the mean of its pairs' logarithms, so that what differs between
processes (where the heap lies) is in the interval: 95 %, Student's t over processes. The claim: the upper bound of the
ratio to the hand-written loop is at most 1.02 at steps of 20 ms and more, and Accelerate's and Lightning's ratios are
not below. Those come from an environment of their own (`make frameworks`):

    .venv/bin/python benchmarks/trainer.py --frameworks .venv-frameworks

glibc gives freed gradients back to the system or not by what lies behind them, and page faults (kept in the result)
cost up to 3 of 24 ms. That is no work of a loop: half of the processes keep their heap (see keep-heap), and are told
apart; the claim is for both. `--overhead` times a tiny model, and counts calls of Python and C functions per step.

Processes that the result file holds are not run again (`--fresh` begins anew). 8 processes of each kind: 5 minutes
with both libraries, 3 without; `--quick` half a minute.
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from raw import describe_commit, draw_raw

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "trainer.json"
LIMIT_RATIO = 1.02
WIDTH = 512
BLOCK_STEPS = 4
WARM_BLOCKS = 3
T_975 = {1: 12.71, 2: 4.31, 3: 3.19, 4: 2.78, 5: 2.58, 6: 2.45, 7: 2.37, 8: 2.31, 9: 2.27, 10: 2.23, 11: 2.21}
T_MORE = 2.21
"""For more than 11 degrees of freedom: a little too wide."""
Steps = Iterator[None]
"""A loop that the caller drives: each ``next`` is one step."""
Called = Callable[[], None]
"""What the library's own loop calls after each step."""


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


def hand_written(width: int = WIDTH) -> Steps:
    model, optimizer, loader, loss_of = make_parts(width)
    model.train()
    while True:
        for x, y in loader:
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def accelerate(width: int = WIDTH) -> Steps:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader, loss_of = make_parts(width)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    while True:
        for x, y in loader:
            loss = loss_of(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield


def run_hotloop(steps: int, called: Called, width: int = WIDTH) -> None:
    from hotloop import Trainer

    class Callback:
        def on_step_end(self, trainer: Any, loss: Any) -> None:
            called()

    model, optimizer, loader, loss_of = make_parts(width)
    trainer = Trainer(
        model, optimizer, lambda model, batch: loss_of(model(batch[0]), batch[1]), callbacks=(Callback(),)
    )
    trainer.fit(loader, epochs=1_000_000, max_steps=steps)


def run_lightning(steps: int, called: Called, width: int = WIDTH) -> None:
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

    class Callback(lightning_package.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            called()

    lightning_package.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Callback()],
    ).fit(Module(), loader)


OUTER: Mapping[str, Callable[..., None]] = {"hotloop": run_hotloop, "lightning": run_lightning}
INNER: Mapping[str, Callable[..., Steps]] = {"hand-written": hand_written, "accelerate": accelerate}


class Turns:
    """Called after each step of the outer loop: after a block of it, every other loop makes a block too."""

    def __init__(self, outer: str, inner: Mapping[str, Steps], seed: int) -> None:
        self._outer, self._inner, self._draw = outer, inner, random.Random(seed)
        self._count = 0
        self.found: list[dict[str, tuple[float, float]]] = []
        """CPU ns and page faults a step, by loop."""
        self._begun = read_clocks()

    def __call__(self) -> None:
        self._count += 1
        if self._count % BLOCK_STEPS:
            return
        times = {self._outer: since(self._begun)}
        for name in self._draw.sample(list(self._inner), len(self._inner)):
            begun = read_clocks()
            for _ in range(BLOCK_STEPS):
                next(self._inner[name])
            times[name] = since(begun)
        self.found.append(times)
        self._begun = read_clocks()


def read_clocks() -> tuple[int, int]:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time_ns()


def since(begun: tuple[int, int]) -> tuple[float, float]:
    """CPU ns and page faults of a step, of a block that began then."""
    faults, now_ns = read_clocks()
    return (now_ns - begun[1]) / BLOCK_STEPS, (faults - begun[0]) / BLOCK_STEPS


def measure(outer: str, pairs: int, seed: int) -> dict[str, Any]:
    """CPU ns of a step of each loop in each block; loops that cannot be had are said with the reason."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    inner: dict[str, Steps] = {}
    skipped = {}
    for name, make in INNER.items():
        if outer == "lightning" and name != "hand-written":
            continue  # two libraries that both set up a process are not mixed
        steps = make()
        try:
            next(steps)
        except ImportError as error:
            skipped[name] = str(error)
        else:
            inner[name] = steps
    turns = Turns(outer, inner, seed)
    try:
        OUTER[outer](BLOCK_STEPS * (WARM_BLOCKS + pairs), turns)
    except ImportError as error:
        return {"outer": outer, "skipped": {**skipped, outer: str(error)}, "blocks": []}
    blocks = [{name: one[0] for name, one in times.items()} for times in turns.found[WARM_BLOCKS:]]
    faults = {name: mean([times[name][1] for times in turns.found[WARM_BLOCKS:]]) for name in turns.found[0]}
    return {
        "outer": outer,
        "blocks": blocks,
        "faults_per_step": faults,
        "skipped": skipped,
        "torch": torch.__version__,
        "block_steps_count": BLOCK_STEPS,
    }


def measure_overhead(rounds: int) -> dict[str, dict[str, Any]]:
    """Of a model so small that the loop's own work is most of a step: least CPU time per step, in us, of each loop.

    The least of ``rounds`` blocks of 100 steps, in turn. ``calls``: of Python and C functions, per step.
    """
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    least: dict[str, float] = {}
    for outer, run in OUTER.items():
        hand = hand_written(8)
        times: dict[str, list[float]] = {outer: [], "hand-written": []}
        state = {"count": 0, "begun": 0}

        def called(
            outer: str = outer, hand: Steps = hand, times: dict[str, Any] = times, state: dict[str, int] = state
        ) -> None:
            state["count"] += 1
            if state["count"] % 100:
                return
            now = time.process_time_ns()
            times[outer].append((now - state["begun"]) / 100)
            for _ in range(100):
                next(hand)
            times["hand-written"].append((time.process_time_ns() - now) / 100)
            state["begun"] = time.process_time_ns()

        with contextlib.suppress(ImportError):
            run(100 * (rounds + 2), called, 8)
        for name, found in times.items():
            if found:
                least[name] = min([least.get(name, math.inf), *found[2:]])
    calls = {"hotloop": calls_of(lambda steps: run_hotloop(steps, lambda: None, 8))}
    hand = hand_written(8)
    calls["hand-written"] = calls_of(lambda steps: [next(hand) for _ in range(steps)])
    return {
        name: {"us_per_step": ns / 1e3, "n": rounds, **({"calls": calls[name]} if name in calls else {})}
        for name, ns in least.items()
    }


def calls_of(run: Callable[[int], Any]) -> float:
    """Calls of Python and C functions in a step: those of 300 steps less those of 100."""
    found = []
    for steps in (100, 300):
        count: Counter[str] = Counter()

        def seen(frame: FrameType, event: str, argument: Any, count: Counter[str] = count) -> None:
            count[event] += 1

        sys.setprofile(seen)
        run(steps)
        sys.setprofile(None)
        found.append(count["call"] + count["c_call"])
    return (found[1] - found[0]) / 200


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def paired_logs(parts: Sequence[Mapping[str, Any]], name: str, base: str) -> list[float]:
    """For each process the mean logarithm of its pairs' ratios."""
    found = []
    for part in parts:
        logs = [math.log(one[name] / one[base]) for one in part["blocks"] if name in one and base in one]
        if logs:
            found.append(mean(logs))
    return found


def ratio_of(logs: Sequence[float], under: Sequence[float] = ()) -> dict[str, Any]:
    """exp of the mean, with its two-sided 95 % interval; of the difference of two means where ``under`` is given."""
    groups = [one for one in (logs, under) if len(one)]
    n = min((len(one) for one in groups), default=0)
    if n < 2:
        return {"n_processes": n, "ratio": None, "low_ratio": None, "high_ratio": None}
    middle = mean(logs) - (mean(under) if len(under) else 0.0)
    variance = sum(sum((x - mean(one)) ** 2 for x in one) / (len(one) - 1) / len(one) for one in groups)
    half = T_975.get(n - 1, T_MORE) * math.sqrt(variance)  # the smaller group's degrees of freedom: never too narrow
    ratios = {"ratio": middle, "low_ratio": middle - half, "high_ratio": middle + half}
    return {"n_processes": n, **{key: math.exp(value) for key, value in ratios.items()}}


def summarize(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios of one kind of process (with or without its heap kept)."""
    own = [one for one in parts if one["outer"] == "hotloop" and one["blocks"]]
    others = [one for one in parts if one["outer"] == "lightning" and one["blocks"]]
    if not own:
        return {}
    steps = sorted(block["hand-written"] for part in own for block in part["blocks"])
    to_hand = {"hotloop": paired_logs(own, "hotloop", "hand-written")}
    to_hand["accelerate"] = paired_logs(own, "accelerate", "hand-written")
    to_hand["lightning"] = paired_logs(others, "lightning", "hand-written")
    to_hotloop = {"accelerate": ratio_of(paired_logs(own, "hotloop", "accelerate"))}
    if to_hand["lightning"]:
        to_hotloop["lightning"] = ratio_of(to_hand["hotloop"], to_hand["lightning"])
    faults: dict[str, list[float]] = {}
    for part in (*own, *others):
        for name, count in part["faults_per_step"].items():
            faults.setdefault(name, []).append(count)
    return {
        "step_median_ns": steps[len(steps) // 2],
        "n_pairs": sum(len(part["blocks"]) for part in own),
        "to_hand_written": {name: ratio_of(logs) for name, logs in to_hand.items() if logs},
        "hotloop_to": {name: one for name, one in to_hotloop.items() if one["ratio"] is not None},
        "faults_per_step": {name: mean(counts) for name, counts in faults.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", type=Path, help="environment with accelerate and lightning")
    parser.add_argument("--processes", type=int, default=8, help="of each kind")
    parser.add_argument("--pairs", type=int, default=36, help="blocks of each loop in a process")
    parser.add_argument("--quick", action="store_true", help="2 processes of 6 pairs: shows that it works")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no further process after this time")
    parser.add_argument("--overhead", action="store_true", help="a tiny model: us and calls per step; one minute")
    parser.add_argument("--worker", choices=list(OUTER), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.processes, options.pairs = 2, 6
    if options.overhead and options.worker:
        print(json.dumps(measure_overhead(20), indent=1))
        return 0
    if options.worker:
        options.result.write_text(json.dumps(measure(options.worker, options.pairs, options.seed)))
        return 0
    python = sys.executable if options.frameworks is None else str(options.frameworks.resolve() / "bin" / "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    if options.overhead:
        command = [python, __file__, "--overhead", "--worker", "hotloop"]
        return subprocess.run(command, env=environment).returncode
    content: dict[str, Any] = {"schema": "hotloop.trainer-cost/2", "commit": describe_commit(), "processes": []}
    if options.result.exists() and not options.fresh:
        old = json.loads(options.result.read_text())
        # Processes of another commit are of another pass.
        content = old if all(old.get(key) == content[key] for key in ("schema", "commit")) else content
    began_s = time.monotonic()
    kept_heap = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
    for number, outer, keep in itertools.product(range(options.processes), OUTER, (False, True)):
        key = {"number": number, "outer": outer, "keep_heap": keep}
        if any(all(one[name] == value for name, value in key.items()) for one in content["processes"]):
            continue
        if time.monotonic() - began_s > options.limit_s:
            print("not all processes were run: run it again", file=sys.stderr)
            break
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json"
            command = [python, __file__, "--worker", outer, "--pairs", str(options.pairs), "--seed", str(number)]
            variables = {**environment, **(kept_heap if keep else {})}
            subprocess.run([*command, "--result", str(part)], check=True, env=variables, cwd=folder)
            content["processes"].append({**json.loads(part.read_text()), **key})
        judge(content)
        options.result.parent.mkdir(exist_ok=True)
        options.result.write_text(draw_raw(content))
    shown = {key: value for key, value in content.items() if key != "processes"}
    print(json.dumps(shown, indent=1))
    for name, why in content.get("skipped", {}).items():
        print(f"skipped {name}: {why} (give --frameworks FOLDER)", file=sys.stderr)
    return 1 if content.get("holds") is False else 0


def judge(content: dict[str, Any]) -> None:
    """Write the ratios and the verdict into ``content``."""
    parts = content["processes"]
    content["default_heap"] = summarize([one for one in parts if not one["keep_heap"]])
    content["kept_heap"] = summarize([one for one in parts if one["keep_heap"]])
    content["skipped"] = {name: why for one in parts for name, why in one["skipped"].items()}
    content |= {"machine": platform.platform(), "date": time.strftime("%Y-%m-%d"), "block_steps_count": BLOCK_STEPS}
    verdicts = [verdict_on(content[name]) for name in ("default_heap", "kept_heap")]
    content["holds"] = False if False in verdicts else None if None in verdicts else True


def verdict_on(found: Mapping[str, Any]) -> bool | None:
    """Whether the Trainer's ratio is within the limit over its whole interval, or beyond it; None: cannot tell."""
    figure = found.get("to_hand_written", {}).get("hotloop", {})
    if figure.get("n_processes", 0) < 5 or found["step_median_ns"] < 20e6:
        return None
    if figure["high_ratio"] <= LIMIT_RATIO:
        return True
    return False if figure["low_ratio"] > LIMIT_RATIO else None


if __name__ == "__main__":
    sys.exit(main())
