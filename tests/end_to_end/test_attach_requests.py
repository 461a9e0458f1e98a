"""What `hotloop attach` asks of a training that runs: a trace, silence, operators; steps stay exact."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from .training import HOTLOOP, clean_environment, write_script

UNTIL_TOLD = """
import os, time
optimizer = torch.optim.SGD(model.parameters())
steps = 0
while not os.path.exists("enough"):
    time.sleep(0.005)
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    steps += 1
print("steps", steps)
"""


def test_a_run_is_traced_muted_and_heard_again_and_its_steps_are_exact(tmp_path: Path) -> None:
    write_script(tmp_path, UNTIL_TOLD)
    environment = clean_environment()
    command = [*HOTLOOP, "run", "--no-probe", "--json", "seen.json", "--", sys.executable, "train.py"]
    run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        asked = [*HOTLOOP, "attach", "last", *words]
        return subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150)

    try:
        give_up_s = time.monotonic() + 60
        while (early := ask("--on")).returncode and time.monotonic() < give_up_s:
            assert early.returncode == 2  # no step yet
            time.sleep(0.5)
        traced = ask("--trace", "2")
        for word in ("--off", "--on", "--deep"):
            assert ask(word).returncode == 0
            time.sleep(3.5)  # it is heard at the end of a step, at most three seconds later
    finally:
        (tmp_path / "enough").touch()
        out, _ = run.communicate(timeout=60)
    (path,) = map(Path, traced.stdout.split())
    ranges = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")]
    first, second = sorted(int(e["name"].partition("#")[2]) for e in ranges)
    assert (second - first, first > 2) == (1, True)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["step"]["count"] == int(out.split()[1])
    messages = [entry["message"] for entry in seen["health"]]
    assert [word for word in ("--off", "--on") if any(word in message for message in messages)] == ["--off", "--on"]
    assert "uncompiled-model" not in {skipped["rule"] for skipped in seen["skipped"] if "operator" in skipped["reason"]}
    late = ask("--trace", "2")
    assert (late.returncode, "is over" in late.stderr) == (2, True)
