"""A real Prometheus scrapes a real training; what it answers to queries is what the report says."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.phases import PHASES
from hotloop.evidence.trace.recording import read_run
from hotloop.pipeline.runs import read_report

from .training import HOTLOOP, clean_environment, write_script

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")

TRAINING = """
import os, time
optimizer = torch.optim.SGD(model.parameters())
for step in range(60):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)
until_s = time.monotonic() + 60
while not os.path.exists("scraped") and time.monotonic() < until_s:  # its last steps stay the newest
    time.sleep(0.05)
"""


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    """The address of a server that scrapes the port every 200 ms, and ends with the block."""
    scrape = {"job_name": "training", "scrape_interval": "200ms", "scrape_timeout": "200ms"}
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]  # type: ignore[assignment]
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrape]}))
    address = f"127.0.0.1:{find_port()}"
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    server = subprocess.Popen(["prometheus", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def query(address: str, expression: str) -> list[tuple[dict[str, str], float]]:
    """Labels and newest value of each series that fits; nothing while the server does not answer."""
    try:
        with urllib.request.urlopen(
            f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", timeout=5
        ) as answer:
            found: Any = json.load(answer)
    except (urllib.error.URLError, ConnectionError):
        return []
    assert found["status"] == "success"
    return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]


def test_prometheus_has_the_report_s_numbers(tmp_path: Path) -> None:
    script, port = write_script(tmp_path, TRAINING), find_port()
    words = ["run", "--name", "one", "--no-probe", "--no-deep", "-q", "--watch-numbers", "--steps-total", "60"]
    command = [*HOTLOOP, *words, "--export", f"prometheus=:{port}", "--", sys.executable, script.name]
    with prometheus(tmp_path, port) as address:
        running = subprocess.Popen(command, cwd=tmp_path, env=clean_environment())
        try:
            until_s = time.monotonic() + 60
            while query(address, "hotloop_training_steps_total") == [] or (
                query(address, "hotloop_training_steps_total")[0][1] < 60
            ):
                assert time.monotonic() < until_s
                assert running.poll() is None
                time.sleep(0.2)
            scraped = {
                name: query(address, name)
                for name in (
                    "hotloop_training_steps_total",
                    "hotloop_training_progress_ratio",
                    "hotloop_training_step_duration_seconds",
                    "hotloop_training_step_phase_duration_seconds",
                    "hotloop_training_step_phase_share_ratio",
                    'hotloop_training_metric{name="loss"}',
                    'hotloop_run_state{state="running"}',
                )
            }
        finally:
            (tmp_path / "scraped").touch()
            assert running.wait(60) == 0
    assert all(scraped.values()), scraped
    folder = tmp_path / ".hotloop" / "one"
    report = read_report(folder)
    assert report.step is not None
    assert report.breakdown is not None
    excluded = report.step.excluded
    assert excluded is not None
    labels, steps = scraped["hotloop_training_steps_total"][0]
    assert (labels["run"], labels["rank"], labels["job"]) == ("one", "0", "training")
    assert steps == report.step.count == 60
    assert scraped["hotloop_training_progress_ratio"][0][1] == 1.0
    assert scraped['hotloop_run_state{state="running"}'][0][1] == 1.0
    (process,) = read_run(folder).processes
    losses = [fact["value"] for fact in process.facts if fact["kind"] == "metric"]  # one a second, and the last
    assert scraped['hotloop_training_metric{name="loss"}'][0][1] in losses
    total_ns = {name: report.breakdown.phases[name].total_ns + excluded.phase_ns[name] for name in PHASES}
    step_s = sum(total_ns.values()) / 60 * 1e-9
    assert scraped["hotloop_training_step_duration_seconds"][0][1] == pytest.approx(step_s, rel=1e-12)
    for name, scale in (("duration_seconds", 1e-9 / 60), ("share_ratio", 1 / sum(total_ns.values()))):
        of_phase = {at["phase"]: value for at, value in scraped[f"hotloop_training_step_phase_{name}"]}
        assert of_phase == {phase: pytest.approx(ns * scale, rel=1e-12) for phase, ns in total_ns.items()}
