"""Exports of real trainings: numbers while they run, the report's numbers at the end, losses told, secrets kept."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hotloop.core.phases import PHASES
from hotloop.pipeline.live import LiveReader

from .training import HOTLOOP, Ran, clean_environment, run_script, write_script

TRAINING = """
import time
optimizer = torch.optim.SGD(model.parameters())
for step in range({steps}):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)
"""
SECRET = "s3cr3t-s3cr3t"


def check_live_numbers(ran: Ran) -> None:
    """Those of a live reader are the report's over the same steps."""
    step = ran.seen["step"]
    everything = LiveReader(ran.run_folder, window_count=1000).read()
    (rank,) = everything.ranks
    excluded = step["excluded"]
    totals = {name: ran.phase(name)["total_ns"] + excluded["phase_ns"][name] for name in PHASES}
    assert rank.phase_ns == totals
    assert (rank.steps_count, everything.state) == (40, "ended")
    (steady,) = LiveReader(ran.run_folder, window_count=step["steady_count"]).read().ranks
    assert excluded["later_count"] or steady.step_mean_ns == step["mean_ns"]


def test_numbers_are_the_report_s_losses_are_told_once(tmp_path: Path) -> None:
    """And secrets nowhere."""
    began_s = time.monotonic()
    ran = run_script(
        tmp_path,
        TRAINING.format(steps=40),
        "--no-deep",
        *("--export", f"otlp=http://me:{SECRET}@127.0.0.1:9/?token={SECRET}"),
        *("--export", "json=run.jsonl", "--export", "tensorboard=logs", "--export", "prometheus=run.prom"),
        *("--steps-total", "40"),
        OTEL_EXPORTER_OTLP_HEADERS=f"api-key={SECRET}",
    )
    assert time.monotonic() - began_s < 180
    assert ran.exit_code == 0
    check_live_numbers(ran)
    lines = [one["message"] for one in ran.seen["health"] if one["message"].startswith("export to ")]
    assert len(lines) == 1
    assert lines[0].startswith("export to otlp: ")
    assert "Connection refused" in lines[0]
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])["step"] == 40
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "train.py"]
    assert len(written) >= 6
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in ran.stderr + ran.stdout


UNTIL_SCRAPED = """
import os, time
optimizer = torch.optim.SGD(model.parameters())
until_s = time.monotonic() + 90
while not os.path.exists("scraped") and time.monotonic() < until_s:
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)
"""


def test_metrics_are_scraped_while_the_training_runs(tmp_path: Path) -> None:
    script = write_script(tmp_path, UNTIL_SCRAPED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *HOTLOOP,
        "run",
        "--no-probe",
        "-q",
        "--export",
        f"prometheus=:{port}",
        "--",
        sys.executable,
        script.name,
    ]
    running = subprocess.Popen(command, cwd=tmp_path, env=clean_environment())
    steps, until_s = 0.0, time.monotonic() + 60
    try:
        while steps < 2 and running.poll() is None and time.monotonic() < until_s:
            time.sleep(0.2)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    families = text_string_to_metric_families(answer.read().decode())
                    samples = [sample for family in families for sample in family.samples]
            except OSError:
                continue
            found = {sample.name: sample.value for sample in samples}
            steps = found.get("hotloop_training_steps_total", 0.0)
            states = {s.labels["state"]: s.value for s in samples if s.name == "hotloop_run_state"}
        assert steps >= 2
        # A mean of all steps so far, and the first one ends before the first sleep.
        assert found["hotloop_training_step_duration_seconds"] > 0.01 * (steps - 1) / steps
        assert states == {"running": 1.0, "ended": 0.0, "stale": 0.0, "stalled": 0.0}
    finally:
        (tmp_path / "scraped").touch()
        assert running.wait(60) == 0


def test_a_target_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    ran = run_script(tmp_path, "open('ran', 'w')", "--export", "prometheus=gone/run.prom")
    assert ran.exit_code == 2
    assert "there is no folder gone" in ran.stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / ".hotloop").exists()
