"""`hotloop run --record`: real trainings whose recording is sent away, and endpoints that are no help."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.remote.fetch import describe_fetch, fetch_run
from hotloop.remote.follow import FAILURE_FILE, REFUSED, process_words
from tests.remote.endpoint import settings_for
from tests.remote.nodes import Node, count_ranks

from .training import HOTLOOP, clean_environment, run_script, write_script

TRAINING = """
import time
optimizer = torch.optim.SGD(model.parameters())
for step in range({steps}):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)
"""


def find_uploader(parent: int) -> int | None:
    """The process that uploads for a `hotloop run`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if above == parent and b"--follow" in words:
            return int(folder.name)
    return None


def test_a_killed_uploader_costs_neither_the_training_nor_a_row(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAINING.format(steps=400))
    command = [*HOTLOOP, "run", "--no-probe", "--no-deep", "-q", "--record", "store", "--", sys.executable, script.name]
    ran = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True)
    killed: set[int] = set()
    while ran.poll() is None:
        pid = find_uploader(ran.pid)
        if pid is not None and len(killed) < 2 and (not killed or pid not in killed):
            time.sleep(1.0)  # it has begun
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.1)
    assert ran.stderr is not None
    said = ran.stderr.read()
    ran.stderr.close()
    assert ran.returncode == 0
    assert killed
    assert said.splitlines()[-1].endswith(f"rows arrived; to see the report: hotloop report {tmp_path}/store")
    folder = fetch_run(f"{tmp_path}/store", tmp_path / "cache")
    (here,) = (path for path in (tmp_path / ".hotloop").iterdir() if path.is_dir())
    assert count_ranks(folder) == count_ranks(here)
    assert describe_fetch(folder) == ()
    assert {"outcome.json", "cores.json", "verdict.json"} <= {path.name for path in folder.iterdir()}


def test_a_dead_endpoint_costs_a_bounded_wait_and_says_what_to_type(tmp_path: Path) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))  # bound and not listening: refused
        dead = settings_for(f"http://127.0.0.1:{port.getsockname()[1]}")
        url = ("--record", "s3://runs/one", "--record-wait", "1")
        ran = run_script(tmp_path, TRAINING.format(steps=150), "--no-deep", *url, **dead)
    assert ran.exit_code == 0
    assert ran.seen["step"]["count"] == 150
    assert all("hotloop upload" not in one["message"] for one in ran.seen["health"])  # not counted before the end
    *_, line = ran.stderr.splitlines()
    assert "152 of 152 rows, in" in line
    assert line.endswith(f"it is kept here; to continue: hotloop upload {ran.run_folder.name} s3://runs/one")
    assert json.loads((ran.run_folder / "upload.json").read_text())["lost_rows_count"] == 152


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--record", "s4://runs/one"], "fsspec knows no s4://; give a URL such as s3://bucket/run, or a folder"),
        (["--record", "memory://one"], "a process's memory is gone when the process ends"),
        (
            ["--record", "adl://one/two"],
            "needs adlfs, which is not installed; run: pip install 'hotloop[remote]' adlfs",
        ),
        (["--record", "store", "--record-id", "a b"], "--record-id 'a b': use only letters, digits"),
        (["--record", "store", "--record-wait", "-1"], "--record-wait -1.0: give a number of seconds, 0 or more"),
        (["--record-id", "one"], "--record-id needs --record URL"),
    ],
)
def test_what_cannot_work_is_one_line_before_the_training_starts(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *options, "--", sys.executable, "-c", "open('began', 'w')"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert list(tmp_path.iterdir()) == []


def test_without_fsspec_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec.registry", None)
    assert main(["run", "--record", "s3://me:secret@runs/one", "--", sys.executable, "-c", "pass"]) == 2
    line = "hotloop: s3://***@runs/one needs fsspec, which is not installed; run: pip install 'hotloop[remote]'"
    assert capsys.readouterr().err.splitlines() == [line]


class TestTheUploadingProcess:
    @staticmethod
    def start(folder: Path, url: str) -> subprocess.Popen[bytes]:
        words = process_words(folder, url, None)
        return subprocess.Popen(words, stdin=subprocess.PIPE, env=clean_environment())

    def test_it_outlives_signals_and_sends_what_is_there_when_hotloop_run_is_gone(self, tmp_path: Path) -> None:
        node = Node(tmp_path / "run", 0)
        node.train(100)
        with self.start(node.folder, f"{tmp_path}/store") as process:
            give_up_s = time.monotonic() + 30
            while not list((tmp_path / "store").glob("nodes/*/manifest-*")) and time.monotonic() < give_up_s:
                time.sleep(0.05)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            node.train(50)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(20) == 0
        folder = fetch_run(f"{tmp_path}/store", tmp_path / "cache")
        assert count_ranks(folder) == {0: 150}

    def test_another_run_s_url_is_refused_and_the_rest_is_sent_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yesterday = Node(tmp_path / ".hotloop" / "old", 0, began_wall_s=time.time() - 86_400)
        yesterday.train(5)
        yesterday.end()
        os.utime(next((yesterday.folder / "processes").iterdir()), (0, 0))
        assert main(["upload", "old", "store"]) == 0
        today = Node(tmp_path / ".hotloop" / "new", 0, began_wall_s=time.time() + 1)
        today.train(20)
        with self.start(today.folder, f"{tmp_path}/store") as process:
            assert process.wait(20) == REFUSED
        refusal = (today.folder / FAILURE_FILE).read_text()
        assert "was not recording at the same time as this one" in refusal
        today.end()
        assert main(["upload", "new", "store"]) == 2
        assert main(["upload", "new", "store2"]) == 0
        capsys.readouterr()
        assert main(["report", f"{tmp_path}/store2", "--json", "-", "-q", "--exit-zero"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["step"]["count"] == 20
        assert "hotloop-" not in report["next"]
        assert main(["diff", "store", "store2", "-q"]) == 0
