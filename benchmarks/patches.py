"""Whether a source patch wins what its strategy won: five scripts of different styles, unchanged, changed and patched.

    python benchmarks/patches.py run              2 pairs of each, about 10 s a process: 5 minutes on a quiet machine
    python benchmarks/patches.py run --pairs 4    from 4 pairs on with intervals and a verdict: 10 minutes
    python benchmarks/patches.py show

Every process is written to benchmarks/results/patches.json at once: started again, it goes on where it was. The three
sides take turns, every second round backwards. The patch is made from the first process of the strategy, must apply
with `patch` and with `git apply`, and may only insert text; its copy then trains without a strategy.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raw import describe_commit, draw_raw

import hotloop
from hotloop.apply import TECHNIQUES
from hotloop.core.strategy import Choice, Strategy
from hotloop.pipeline.tuning import attach_trial, measure_run
from hotloop.tune.patch import Patch, make_patch
from hotloop.tune.statistics import compare
from hotloop.tune.study import Request
from hotloop.tune.trials import Bench, Ran, TrialLimits, run_trial
from hotloop.tune.workspace import plan_workspace

RESULTS = Path(__file__).resolve().parent / "results" / "patches.json"
LIMITS = TrialLimits(steps=200, seconds=None, timeout_s=240.0, start_s=180.0, stall_s=60.0)
SIDES = ("unchanged", "strategy", "patched")

PLAIN = """# a script from top to bottom
import torch
torch.manual_seed(0)
layers = [torch.nn.Linear(24, 24) for _ in range(60)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(
    model.parameters(),
    1e-4,  # as always
)
for i in range(1000000):
    x = torch.randn(8, 24)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

CLASSES = '''"""Ein Trainer mit Tabulatoren: \N{LATIN SMALL LETTER U WITH DIAERESIS}bersichtlich."""
import torch
from torch import nn, optim

class Trainer:
\tdef __init__(self, width: int = 24) -> None:
\t\ttorch.manual_seed(1)
\t\tself.net = nn.Sequential(*[nn.Linear(width, width) for _ in range(50)])
\t\tself.opt = optim.Adam(self.net.parameters(), lr=1e-4,)  # plain

\tdef fit(self, steps: int) -> None:
\t\tfor _ in range(steps):
\t\t\tx = torch.randn(8, 24)
\t\t\tself.opt.zero_grad()
\t\t\t(self.net(x) - x).abs().mean().backward()
\t\t\tself.opt.step()

if __name__ == "__main__":
\tTrainer().fit(1_000_000)'''.replace("\n", "\r\n")

LOADER = """import argparse
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Disk(Dataset):
    \"\"\"Samples that take their time, as from a slow disk.\"\"\"

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        time.sleep(0.002)
        x = torch.full((64,), i / 4096)
        return x, x.sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(
        Disk(),
        batch_size=8, shuffle=True
    )
    for _ in range(args.epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
"""

NANO = """# in the style of small GPT repositories
import torch
from torch.nn import functional as F

n_layer, n_embd = 40, 48 # small
lr = 6e-4
torch.manual_seed(1337)

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(n_embd, n_embd); self.ln = torch.nn.LayerNorm(n_embd)
    def forward(self, x): return x + F.gelu(self.fc(self.ln(x)))

model = torch.nn.Sequential(*[Block() for _ in range(n_layer)])
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))
for it in range(10**6):
    X = torch.randn(4, n_embd)
    loss = F.mse_loss(model(X), X.roll(1, 1))
    loss.backward()
    optimizer.step(); optimizer.zero_grad(set_to_none=False) # flush
"""

DDP = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    net = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(40)))
    model = DDP(net,
                bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    while True:
        x = torch.randn(16, 96)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script with the strategy that is tried on it."""

    name: str
    style: str
    text: str
    strategy: Strategy
    ranks: int = 1


def choose(**choices: Mapping[str, Any]) -> Strategy:
    return Strategy(choices=tuple(Choice(technique=t.replace("_", "-"), settings=s) for t, s in choices.items()))


SCRIPTS = (
    Script(name="plain", style="top to bottom", text=PLAIN, strategy=choose(fused_optimizer={})),
    Script(
        name="classes", style="class, tabs, CRLF, no last newline", text=CLASSES, strategy=choose(fused_optimizer={})
    ),
    Script(name="loader", style="main(), argparse", text=LOADER, strategy=choose(loader_workers={"num_workers": 2})),
    Script(
        name="nano", style="small GPT repository", text=NANO, strategy=choose(fused_optimizer={}, zero_grad_to_none={})
    ),
    Script(
        name="ddp", style="torchrun, 2 ranks", text=DDP, strategy=choose(ddp_buckets={"bucket_cap_mb": 25}), ranks=2
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("run", "show"))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--only", help="the name of one script")
    options = parser.parse_args()
    if options.part == "run":
        for script in SCRIPTS:
            if options.only in (None, script.name):
                run_script(script, options.pairs)
    show()
    return 0


def run_script(script: Script, pairs: int) -> None:
    """Processes of all three sides, until each has ``pairs`` of them in the results."""
    found = read_pass()["scripts"].get(script.name) or {"style": script.style, "text": digest(script.text)}
    if found["text"] != digest(script.text):
        found = {"style": script.style, "text": digest(script.text)}
    processes: dict[str, list[dict[str, Any]]] = found.setdefault("processes", {side: [] for side in SIDES})
    if all(len(one) >= pairs for one in processes.values()):
        return
    with tempfile.TemporaryDirectory(prefix="hotloop-patches-") as made:
        bench, request = make_bench(script, Path(made))
        patch: Patch | None = None
        while True:
            number = min(len(one) for one in processes.values())
            todo = [side for side in SIDES if len(processes[side]) == number]
            if number >= pairs and len(todo) == len(SIDES):
                break
            for side in todo if number % 2 == 0 else reversed(todo):
                if side == "patched" and patch is None:
                    patch = first_patch(script, bench, request, found)
                measured = run_side(side, script, bench, patch, f"{side}-{number}")
                processes[side].append(measured)
                write_script(script.name, found)
                print(f"{script.name} {side} {number}: {measured['step_ns'] / 1e6:.3f} ms", file=sys.stderr)


def make_bench(script: Script, folder: Path) -> tuple[Bench, Request]:
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_bytes(script.text.encode())
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(script.ranks)) if script.ranks > 1 else ()
    request = Request(
        command=(sys.executable, *launcher, "train.py"),
        variables={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=project,
        folder=folder / "out",
        store=folder / "out" / "unused.sqlite",
        budget_s=60.0,
        goal="speed",
    )
    bench = Bench(
        command=request.command,
        plan=plan_workspace(project),
        folder=request.folder,
        environment=partial(attach_trial, request, deep=False),
        measure=measure_run,
    )
    return bench, request


def first_patch(script: Script, bench: Bench, request: Request, found: dict[str, Any]) -> Patch:
    """The patch, from a process under the strategy; what has to hold of it is in ``found``."""
    ran = need(run_trial(bench, script.strategy, LIMITS, f"records-{time.monotonic_ns()}"))
    assert ran.measured is not None
    patch = make_patch(ran.measured.applied, request.cwd, TECHNIQUES, script=request.cwd / "train.py")
    found["patch"] = describe_patch(patch, request.cwd)
    return patch


def describe_patch(patch: Patch, root: Path) -> dict[str, Any]:
    (change,) = patch.files
    before, after = change.before.decode(), change.after.decode()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    removed = "".join(before[a:b] for kind, a, b, _, _ in blocks if kind in ("delete", "replace"))
    return {
        "techniques": list(change.techniques),
        "left_out": [f"{one.technique}: {one.why}" for one in patch.left_out],
        "diff": patch.diff,
        "applies": [tool for tool in ("patch", "git") if applies(patch, root, tool)],
        "removed_text": removed,
    }


def applies(patch: Patch, root: Path, tool: str) -> bool:
    """Whether a foreign tool makes the same file of the diff."""
    words = {"patch": ["patch", "-s", "-p1", "--binary", "-i"], "git": ["git", "apply"]}[tool]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_bytes((root / "train.py").read_bytes())
        (Path(folder) / "p.diff").write_bytes(patch.diff.encode())
        done = subprocess.run([*words, "p.diff"], cwd=folder, check=False, capture_output=True)
        return done.returncode == 0 and (Path(folder) / "train.py").read_bytes() == patch.files[0].after


def run_side(side: str, script: Script, bench: Bench, patch: Patch | None, name: str) -> dict[str, Any]:
    strategy = script.strategy if side == "strategy" else Strategy()
    if side == "patched":
        assert patch is not None
        bench = replace(bench, patched={"train.py": patch.files[0].after})
    ran = need(run_trial(bench, strategy, LIMITS, f"{name}-{time.monotonic_ns()}"))
    assert ran.measured is not None
    losses = ran.measured.losses
    return {
        "step_ns": ran.measured.step_ns,
        "steady_count": ran.measured.steady_count,
        "last_loss": losses[-1] if losses else None,
        "losses_sha256": digest(json.dumps(losses)),
    }


def need(ran: Ran) -> Ran:
    if ran.measured is None:
        raise SystemExit(f"a process ended with {ran.ended}: {ran.reason}")
    return ran


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_results() -> dict[str, Any]:
    if not RESULTS.exists():
        return {"schema": "hotloop.patches/1", "scripts": {}}
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def read_pass() -> dict[str, Any]:
    """What this commit's pass has; processes of another commit are of another pass."""
    found = read_results()
    is_this = found.get("commit") == describe_commit()
    return found if is_this else {"schema": "hotloop.patches/1", "commit": describe_commit(), "scripts": {}}


def write_script(name: str, found: Mapping[str, Any]) -> None:
    results = read_pass()
    import torch

    results["machine"] = {
        "cores": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "hotloop": hotloop.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    results["date"] = results["machine"]["date"]
    results["scripts"][name] = {**found, **compare_sides(found["processes"])}
    part = RESULTS.with_suffix(".part")
    part.write_text(draw_raw(results))
    part.replace(RESULTS)


def compare_sides(processes: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Both ratios with intervals (from 4 pairs on), and the patched copy's time over the strategy's."""
    n = min(len(one) for one in processes.values())
    if not n:
        return {"n": 0}
    times = {side: [one["step_ns"] for one in processes[side][:n]] for side in SIDES}
    hashes = {side: {one["losses_sha256"] for one in processes[side]} for side in SIDES}
    told: dict[str, Any] = {"n": n, "patched_losses_equal_strategys": hashes["patched"] == hashes["strategy"]}
    for side in ("strategy", "patched"):
        found = compare(times["unchanged"], times[side])
        told[side] = {
            "speedup_ratio": found.speedup_ratio,
            "low_ratio": found.low_ratio,
            "high_ratio": found.high_ratio,
            "verdict": found.verdict.value,
        }
    logs = [math.log(a / b) for a, b in zip(times["strategy"], times["patched"], strict=True)]
    told["patched_over_strategy_ratio"] = math.exp(math.fsum(logs) / n)
    return told


def show() -> None:
    print("| script | in the patch | n | strategy | patched source | losses of both |")
    print("|---|---|---|---|---|---|")
    for name, one in read_results()["scripts"].items():
        if one.get("n"):
            cells = [tell_ratio(one[side]) for side in ("strategy", "patched")]
            equal = "equal bit for bit" if one["patched_losses_equal_strategys"] else "differ"
            inside = ", ".join(one["patch"]["techniques"])
            tools = " and ".join(one["patch"]["applies"]) or "nothing"
            print(f"| {name} ({one['style']}) | {inside}; applies with {tools} ", end="")
            print(f"| {one['n']} | {' | '.join(cells)} | {equal} |")


def tell_ratio(side: Mapping[str, Any]) -> str:
    if side["low_ratio"] is None:
        return f"{side['speedup_ratio']:.2f}x"
    return f"{side['speedup_ratio']:.2f}x [{side['low_ratio']:.2f}, {side['high_ratio']:.2f}]"


if __name__ == "__main__":
    raise SystemExit(main())
