"""Small models -> what `uncompiled-model` forecasts beside what torch.compile saved (docs/compile-forecast.md).

    python benchmarks/compile_forecast.py [CASE ...]    what the table lacks, or these again

Run by `make compile-forecast`: about eight minutes on two quiet cores. Each case first trains a model eagerly under
`hotloop run` and keeps the forecast; then an eager and a compiled process take turns, in short blocks of
steps. A saving is one minus the compiled over the eager time of a round, the median over the rounds; its
interval are the rounds' quartiles. With one thread a round is timed by the process's CPU time, else by the clock.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import passes
from passes import Row

LIMIT_S = 280.0
"""A row that takes longer is ended, and nothing of it is kept."""
STEPS = 60
ROUNDS = 9
BLOCK_S = 0.25
CLOSE_RATIO = 0.10


# The models: what they are fed with, how, and what they answer.


def build(name: str) -> tuple[Any, Callable[[], tuple[Any, ...]], Callable[[Any], Any]]:
    """The model, a function that makes its inputs, and its loss."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Chain(nn.Module):
        """Pointwise terms one after another, as in a physical model."""

        def __init__(self, width: int, terms: int) -> None:
            super().__init__()
            self.gain, self.offset = nn.Parameter(torch.rand(terms, width)), nn.Parameter(torch.rand(terms, width))

        def forward(self, x: Any) -> Any:
            for gain, offset in zip(self.gain, self.offset, strict=True):
                x = x + 0.1 * torch.tanh(gain * x + offset) - 0.05 * x * torch.sigmoid(x)
            return x

    class Residual(nn.Module):
        def __init__(self, width: int, drop: float) -> None:
            super().__init__()
            self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(drop)
            self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            return x + self.drop(self.narrow(F.gelu(self.wide(self.norm(x)))))

    class Attention(nn.Module):
        """Softmax attention written out, as in older code."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.heads = heads

        def forward(self, x: Any) -> Any:
            b, t, w = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) * (w // self.heads) ** -0.5
            hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            weights = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
            return x + self.out((weights @ v).transpose(1, 2).reshape(b, t, w))

    class Language(nn.Module):
        def __init__(self, layer: Callable[[], Any], width: int, layers: int) -> None:
            super().__init__()
            self.words = nn.Embedding(512, width)
            self.layers = nn.ModuleList(layer() for _ in range(layers))
            self.head = nn.Linear(width, 512)

        def forward(self, x: Any) -> Any:
            x = self.words(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    class Diffusion(nn.Module):
        """Two fields on a grid, stepped by finite differences with learned rates."""

        def __init__(self, times: int) -> None:
            super().__init__()
            self.rates, self.times = nn.Parameter(torch.tensor([0.16, 0.08, 0.035, 0.06])), times

        def forward(self, u: Any, v: Any) -> Any:
            spread_u, spread_v, feed, kill = self.rates
            for _ in range(self.times):
                reaction = u * v * v
                around_u = u.roll(1, -1) + u.roll(-1, -1) + u.roll(1, -2) + u.roll(-1, -2) - 4.0 * u
                around_v = v.roll(1, -1) + v.roll(-1, -1) + v.roll(1, -2) + v.roll(-1, -2) - 4.0 * v
                u = u + spread_u * around_u - reaction + feed * (1.0 - u)
                v = v + spread_v * around_v + reaction - (feed + kill) * v
            return u, v

    class Recurrent(nn.Module):
        """A gated cell called for every step of a sequence."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.inlet, self.carry = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

        def forward(self, x: Any) -> Any:
            state = x.new_zeros(x.shape[0], x.shape[2])
            for part in self.inlet(x).unbind(1):
                reset, update, new = part.chunk(3, -1)
                old_reset, old_update, old_new = self.carry(state).chunk(3, -1)
                gate = torch.sigmoid(update + old_update)
                new = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
                state = gate * state + (1.0 - gate) * new
            return state

    def mlp(width: int, layers: int) -> Any:
        return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))

    def conv(width: int) -> Any:
        def block(before: int, after: int) -> list[Any]:
            return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

        return nn.Sequential(
            *block(3, width), *block(width, width), nn.MaxPool2d(2), *block(width, 2 * width),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
        )  # fmt: skip

    def square(out: Any) -> Any:
        return sum(one.square().mean() for one in (out if isinstance(out, tuple) else (out,)))

    def next_word(out: Any) -> Any:
        return F.cross_entropy(out.flatten(0, 1), torch.zeros(out.shape[0] * out.shape[1], dtype=torch.long))

    def normal(*shape: int) -> Callable[[], tuple[Any, ...]]:
        return lambda: (torch.randn(shape),)

    def words(*shape: int) -> Callable[[], tuple[Any, ...]]:
        return lambda: (torch.randint(0, 512, shape),)

    def layer(drop: float) -> Callable[[], Any]:
        return lambda: nn.TransformerEncoderLayer(128, 4, 512, drop, "gelu", batch_first=True, norm_first=True)

    written_out = lambda: nn.Sequential(Attention(128, 4), Residual(128, 0.0))  # noqa: E731
    made: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
        "chain-small": lambda: (Chain(64, 6), normal(64, 64), square),
        "chain-large": lambda: (Chain(1024, 3), normal(2048, 1024), square),
        "chain-in-net": lambda: (
            nn.Sequential(nn.Linear(256, 256), Chain(256, 2), nn.Linear(256, 256)), normal(512, 256), square,
        ),
        "residual-dropout": lambda: (nn.Sequential(*(Residual(192, 0.1) for _ in range(4))), normal(256, 192), square),
        "transformer": lambda: (Language(layer(0.0), 128, 2), words(8, 64), next_word),
        "transformer-dropout": lambda: (Language(layer(0.1), 128, 2), words(8, 64), next_word),
        "attention-written-out": lambda: (Language(written_out, 128, 2), words(8, 96), next_word),
        "convnet": lambda: (conv(24), normal(16, 3, 32, 32), square),
        "mlp": lambda: (mlp(768, 4), normal(192, 768), square),
        "mlp-small": lambda: (mlp(64, 6), normal(32, 64), square),
        "diffusion": lambda: (Diffusion(3), lambda: (torch.rand(32, 64, 64), torch.rand(32, 64, 64)), square),
        "recurrent": lambda: (Recurrent(96), normal(32, 12, 96), square),
    }  # fmt: skip
    torch.manual_seed(0)
    return made[name]()


ROWS = (
    ("chain-small", 1), ("chain-large", 1), ("chain-in-net", 1), ("residual-dropout", 1), ("transformer", 1),
    ("transformer-dropout", 1),
    ("attention-written-out", 1), ("convnet", 1), ("mlp", 1), ("mlp-small", 1), ("diffusion", 1), ("recurrent", 1),
    ("chain-large", 2), ("transformer", 2), ("diffusion", 2),
)  # fmt: skip


@dataclass
class Training:
    model: Any
    inputs: Any
    loss: Any
    optimizer: Any
    call: Any

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.call(*self.inputs)).backward()
        self.optimizer.step()


def make_training(name: str, *, is_compiled: bool) -> Training:
    import torch

    model, make_inputs, loss = build(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    compile_model: Any = torch.compile
    return Training(model, make_inputs(), loss, optimizer, compile_model(model) if is_compiled else model)


def train(name: str) -> None:
    """The eager training alone, for `hotloop run`."""
    training = make_training(name, is_compiled=False)
    for _ in range(STEPS):
        training.step()


def serve(name: str, side: str) -> None:
    """Trains so many steps as each line of standard input says, and answers with the seconds that one took."""
    import torch

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    training = make_training(name, is_compiled=side == "compiled")
    for line in sys.stdin:
        begin = clock()
        for _ in range(int(line)):
            training.step()
        print((clock() - begin) / int(line), flush=True)


def compare(name: str, environment: dict[str, str], deadline_s: float) -> Row:
    """Eager and compiled steps in turns, each in a process of its own: what one frees is not the other's to use."""
    command = [sys.executable, __file__, "--train", name, "--serve"]
    sides = {
        side: subprocess.Popen(
            [*command, side], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for side in ("eager", "compiled")
    }
    watch = threading.Timer(max(1.0, deadline_s - time.monotonic()), lambda: [one.kill() for one in sides.values()])
    watch.start()

    def run(side: str, steps: int) -> float:
        child = sides[side]
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{steps}\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{name}: the {side} training ended or took too long")
        return float(answer)

    try:
        begin_s = time.monotonic()
        run("compiled", 1)
        compile_s = time.monotonic() - begin_s
        for side in sides:
            run(side, 5)
        block = max(3, min(200, round(BLOCK_S / max(1e-5, run("eager", 3)))))
        times: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(ROUNDS):
            for side in sorted(sides, reverse=bool(turn % 2)):
                times[side].append(run(side, block))
    finally:
        watch.cancel()
        for child in sides.values():
            child.kill()
            child.wait()
    savings = [1.0 - c / e for e, c in zip(times["eager"], times["compiled"], strict=True)]
    low, mid, high = statistics.quantiles(savings, n=4)
    return {
        "eager_ms": round(1e3 * statistics.median(times["eager"]), 3),
        "compiled_ms": round(1e3 * statistics.median(times["compiled"]), 3),
        "compile_s": round(compile_s, 1),
        "rounds": ROUNDS,
        "block_steps": block,
        "realised_ratio": round(mid, 4),
        "realised_quartiles": [round(low, 4), round(high, 4)],
    }


# Rows


def measure_case(name: str, threads: int) -> Row:
    """Forecast first, then what compiling really saved."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    hotloop = str(Path(sys.executable).with_name("hotloop"))
    deadline_s = time.monotonic() + LIMIT_S
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [hotloop, "run", "-q", "--json", str(report), "--", sys.executable, __file__, "--train", name]
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=LIMIT_S)
        found = json.loads(report.read_text(encoding="utf-8"))
    finding = next((one for one in found["findings"] if one["rule"] == "uncompiled-model"), None)
    forecast = {"low_ratio": 0.0, "mid_ratio": 0.0, "high_ratio": 0.0, "basis": None, "severity": None}
    if finding is not None:
        forecast = dict(finding["saving"]) | {"severity": finding["severity"]}
    return (
        {"model": name, "threads": threads, "step_ns": found["step"]["mean_ns"], "forecast": forecast}
        | {"evidence": finding["evidence"] if finding is not None else None}
        | compare(name, environment, deadline_s)
    )


def draw_page(table: Mapping[str, Any]) -> str:
    """The page: every row, and how many forecasts were close."""
    rows = table["rows"]
    # A model that compiling makes slower is not compiled: forecasting that nothing is saved is right then.
    errors = [row["forecast"]["mid_ratio"] - max(0.0, row["realised_ratio"]) for row in rows]
    close = sum(abs(error) <= CLOSE_RATIO for error in errors)
    kept = sum(max(0.0, row["realised_ratio"]) >= row["forecast"]["low_ratio"] - 0.02 for row in rows)
    loud = [row for row in rows if row["forecast"]["severity"] in ("medium", "high")]
    won = sum(row["realised_ratio"] >= 0.5 * row["forecast"]["low_ratio"] for row in loud)
    lost = [row for row in rows if row["realised_ratio"] < -0.02]
    silent = sum(row["forecast"]["severity"] in (None, "info") for row in lost)
    lines = [
        "# What torch.compile is forecast to save, and what it saved",
        "",
        f"Measured {table['date']} at commit {table['commit']} on {passes.describe_place(table['machine'])}. Made by "
        "`make compile-forecast` from benchmarks/results/compile_forecast.json.",
        "",
        "`uncompiled-model` compiles nothing: it computes the saving from a probe of the step's operators. Here each",
        "small training first ran eagerly under `hotloop run`, which stored the forecast; then an eager and a",
        f"compiled process took turns ({ROUNDS} rounds; the median saving of a round, with quartiles). A model without",
        "a finding is forecast to save nothing; where compiling lost time, nothing is what it would have saved.",
        "",
        "| what | of | n |",
        "|---|---|---|",
        f"| forecast within {CLOSE_RATIO:.2f} of what was saved | {close} | {len(rows)} |",
        f"| saved at least the low forecast, less 0.02 | {kept} | {len(rows)} |",
        f"| reported as medium or high and saved at least half of the low forecast | {won} | {len(loud)} |",
        f"| got slower by more than 0.02, and nothing was promised (silent or info) | {silent} | {len(lost)} |",
        "",
        "| model | threads | eager step ms | compiled ms | compiling s | low | forecast | high | saved | quartiles "
        "| error | severity |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row, error in zip(rows, errors, strict=True):
        said, (least, most) = row["forecast"], row["realised_quartiles"]
        lines.append(
            f"| {row['model']} | {row['threads']} | {row['eager_ms']:.2f} | {row['compiled_ms']:.2f} "
            f"| {row['compile_s']:.0f} | {said['low_ratio']:.2f} | {said['mid_ratio']:.2f} | {said['high_ratio']:.2f} "
            f"| {row['realised_ratio']:.2f} | {least:.2f} to {most:.2f} | {error:+.2f} | {said['severity'] or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] != ["--train"]:
        cases = {f"{name} {threads}": partial(measure_case, name, threads) for name, threads in ROWS}
        return passes.measure(__doc__, "compile_forecast.json", cases)
    if "--serve" in arguments:
        serve(arguments[1], arguments[3])
    else:
        train(arguments[1])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
