"""The shell script of a node: a stop signal reaches the ranks and nobody else, and its exit code says what happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.ahead.launch.request import STOPPED_CODE
from hotloop.ahead.launch.target import NODE_SCRIPT

PRETEND = Path(__file__).with_name("pretend.py")
SHELLS = [shell for shell in ("dash", "bash") if Path(f"/bin/{shell}").exists()]


def start(folder: Path, steps: int, shell: str, *before: str, script: Path = PRETEND) -> subprocess.Popen[bytes]:
    words = [*before, sys.executable, str(PRETEND), "torchrun", str(script), str(folder), str(steps)]
    environment = {**os.environ, "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0"}
    environment.pop("LOCAL_RANK", None)
    return subprocess.Popen(
        [shell, "-c", NODE_SCRIPT, "node", *words], env=environment, start_new_session=True, stdout=subprocess.PIPE
    )


def wait_for(*paths: Path) -> None:
    end = time.monotonic() + 20
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"{paths} did not appear"
        time.sleep(0.02)
    time.sleep(0.1)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_ranks_are_asked_and_their_workers_live(tmp_path: Path, shell: str, number: signal.Signals) -> None:
    node = start(tmp_path, 400, shell)
    wait_for(tmp_path / "started.0", tmp_path / "started.1")
    node.send_signal(number)
    output, _ = node.communicate(timeout=20)

    assert node.returncode == STOPPED_CODE, output
    assert (tmp_path / "step.0").exists()
    assert (tmp_path / "step.1").exists()
    assert b"worker" not in output


@pytest.mark.parametrize("shell", SHELLS)
def test_usr1_to_every_process_asks_the_ranks_too(tmp_path: Path, shell: str) -> None:
    """As Slurm sends it. A process that was not told to listen to USR1 ignores it."""
    node = start(tmp_path, 400, shell)
    wait_for(tmp_path / "started.0", tmp_path / "started.1")
    for pid in [node.pid, *find_all(node.pid)]:
        os.kill(pid, signal.SIGUSR1)
    output, _ = node.communicate(timeout=20)

    assert node.returncode == STOPPED_CODE, output
    assert (tmp_path / "step.0").exists()
    assert (tmp_path / "step.1").exists()


def find_all(pid: int) -> list[int]:
    children = [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]
    return [one for child in children for one in (child, *find_all(child))]


def test_ranks_are_found_behind_another_program(tmp_path: Path) -> None:
    """hotloop run stands between the shell and torchrun."""
    node = start(tmp_path, 400, SHELLS[0], sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])")
    wait_for(tmp_path / "started.0", tmp_path / "started.1")
    node.send_signal(signal.SIGTERM)
    node.communicate(timeout=20)

    assert node.returncode == STOPPED_CODE
    assert (tmp_path / "step.1").exists()


@pytest.mark.parametrize(("steps", "code"), [("1", 0), ("no-number", 1)])
def test_without_a_signal_the_exit_code_is_the_trainings_own(tmp_path: Path, steps: str, code: int) -> None:
    words = [sys.executable, str(PRETEND), "torchrun", str(PRETEND), str(tmp_path), steps]
    environment = {**os.environ, "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "0"}
    done = subprocess.run(
        ["sh", "-c", NODE_SCRIPT, "node", *words], env=environment, capture_output=True, timeout=20, check=False
    )

    assert done.returncode == code


def test_a_signal_before_the_ranks_started_ends_the_launcher(tmp_path: Path) -> None:
    node = subprocess.Popen(["sh", "-c", NODE_SCRIPT, "node", "sleep", "60"])
    time.sleep(0.3)
    node.terminate()

    assert node.wait(timeout=10) == STOPPED_CODE
