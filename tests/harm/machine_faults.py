#!/usr/bin/env python3
"""A sound training for a minute while the machine fails around hotloop: does it notice? Alone, and under faults.

    python tests/harm/machine_faults.py [--seconds 60] [--seed 0] [--python P] [--hotloop H]

Faults, drawn at random twice a second: hotloop's own process is stopped for up to 3 s (SIGSTOP); one of its
files is cut to half, to nothing, or removed; the run folder is moved away and back; its disk fills up. The disk is a
tmpfs of 2 MiB where mounting is allowed, else the temporary folder. Compared: exit code, the loss bit for bit, and the
longest step after the first hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LONGEST_FACTOR, LONGEST_ADDED_MS = 1.5, 100.0
TRAINING = """
import sys, time, torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
steps, longest = int(sys.argv[1]), 0.0
for step in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad(); loss = model(torch.randn(32, 64)).square().mean(); loss.backward(); optimizer.step()
    time.sleep(0.002)
    if step > 100:
        longest = max(longest, time.perf_counter() - begin)
print(f"RESULT loss={loss.item().hex()} longest_ms={longest * 1e3:.3f}")
"""


def main() -> int:
    ask = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    ask.add_argument("--seconds", type=float, default=60.0)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--python", default=sys.executable)
    ask.add_argument("--hotloop", default=str(Path(sys.executable).parent / "hotloop"))
    args = ask.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "train.py").write_text(TRAINING)
        steps = str(round(args.seconds / 0.004))
        alone = subprocess.run([args.python, "train.py", steps], cwd=folder, capture_output=True, text=True)
        disk = folder / ".hotloop"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True)
        try:
            under, faults = run_under_faults(
                [args.hotloop, "run", "-q", "--no-probe", "--", args.python, "train.py", steps], folder, args.seed
            )
        finally:
            if mounted.returncode == 0:
                subprocess.run(["umount", "-l", disk], check=False)
    first, second = read_result(alone.stdout), read_result(under.stdout)
    limit_ms = max(LONGEST_FACTOR * first[1], first[1] + LONGEST_ADDED_MS)
    print(f"alone  exit {alone.returncode}, loss {first[0]}, longest step {first[1]:.1f} ms")
    print(f"faults exit {under.returncode}, loss {second[0]}, longest step {second[1]:.1f} ms (limit {limit_ms:.0f})")
    print(
        f"{sum(faults.values())} faults on {'a tmpfs' if mounted.returncode == 0 else 'the temporary folder'}: {faults}"
    )
    same = (alone.returncode, first[0]) == (under.returncode, second[0]) and second[1] <= limit_ms
    print("as alone" if same else f"HARMED\n{under.stderr[-2000:]}")
    return int(not same)


def run_under_faults(
    command: list[str], folder: Path, seed: int
) -> tuple[subprocess.CompletedProcess[str], dict[str, int]]:
    draw, counts = random.Random(seed), dict.fromkeys(("stop", "half", "empty", "remove", "move", "fill"), 0)
    with open(folder / "out.txt", "w+") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True)
        while process.poll() is None:
            time.sleep(0.5)
            fault = draw.choice(tuple(counts))
            with contextlib.suppress(IndexError, FileNotFoundError):  # nothing is there yet, or any more
                make_fault(fault, process.pid, folder / ".hotloop", draw)
                counts[fault] += 1
        out.seek(0)
        done = subprocess.CompletedProcess(command, process.returncode, out.read(), process.communicate()[1])
    return done, counts


def make_fault(fault: str, pid: int, disk: Path, draw: random.Random) -> None:
    files = [path for path in disk.rglob("*") if path.is_file()]
    if fault == "stop":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0.1, 3.0))
        os.kill(pid, signal.SIGCONT)
    elif fault in ("half", "empty"):
        path = draw.choice(files)
        os.truncate(path, path.stat().st_size // 2 if fault == "half" else 0)
    elif fault == "remove":
        draw.choice(files).unlink()
    elif fault == "move":
        run = draw.choice([path for path in disk.iterdir() if path.is_dir()])
        run.rename(run.with_name("away"))
        time.sleep(draw.uniform(0.0, 1.0))
        run.with_name("away").rename(run)
    else:
        with contextlib.suppress(OSError), open(disk / "filler", "wb") as file:  # no space is left: as wanted
            for _ in range(64):
                file.write(b"x" * 65536)
                file.flush()


def read_result(text: str) -> tuple[str, float]:
    found = re.search(r"RESULT loss=(\S+) longest_ms=(\S+)", text)
    return (found.group(1), float(found.group(2))) if found else ("none", float("inf"))


if __name__ == "__main__":
    sys.exit(main())
