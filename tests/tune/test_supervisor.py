"""Trials that crash, hang, run out of memory or leave orphans: told apart, and nothing of them is left running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.tune.supervisor import MARK, Cores
from hotloop.change.tune.trials import CRASH, HANG, NO_TRAINING, OK, OOM, TIMEOUT, Bench, Ran, TrialLimits, run_trial
from hotloop.change.tune.workspace import plan_workspace
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from tests.tune.records import measurement
from tests.waiting import is_alive, wait_until

LIMITS = TrialLimits(steps=10, seconds=None, timeout_s=20.0, start_s=20.0, stall_s=20.0)
MEASURED = measurement()


def try_script(tmp_path: Path, text: str, limits: TrialLimits = LIMITS, measured: Measurement | None = MEASURED) -> Ran:
    source = tmp_path / "source"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(text)

    @contextmanager
    def environment(strategy: Strategy, folder: Path, options: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        yield {"PATH": os.environ["PATH"], "FOLDER": str(folder)}

    bench = Bench(
        command=(sys.executable, "-S", "train.py"),
        plan=plan_workspace(source),
        folder=tmp_path / "out",
        environment=environment,
        measure=lambda folder: measured,
    )
    return run_trial(bench, Strategy(), limits, "one")


def quick(**changes: float) -> TrialLimits:
    return TrialLimits(**{"steps": 10, "seconds": None, "timeout_s": 20.0, "start_s": 20.0, "stall_s": 20.0, **changes})  # type: ignore[arg-type]


CASES = [
    ("raise RuntimeError('no such layer')", CRASH, "exit code 1: RuntimeError: no such layer"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", CRASH, "signal 11"),
    ("raise MemoryError('no room')", OOM, "MemoryError: no room"),
    ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", OOM, "CUDA out of memory"),
    ("import os; os.kill(os.getpid(), 9)", OOM, "signal 9"),
    ("print('done')", OK, ""),
]


@pytest.mark.parametrize(("text", "ended", "words"), CASES)
def test_ends_are_told_apart(tmp_path: Path, text: str, ended: str, words: str) -> None:
    ran = try_script(tmp_path, text)
    assert ran.ended == ended
    assert words in ran.reason
    assert (ran.measured is None) == (ended != OK)


def test_a_command_that_trains_nothing_is_told_so(tmp_path: Path) -> None:
    assert try_script(tmp_path, "print('hello')", measured=None).ended == NO_TRAINING


def test_no_first_step_is_a_hang_and_too_long_is_a_timeout(tmp_path: Path) -> None:
    sleep = "import time; time.sleep(60)"
    assert try_script(tmp_path, sleep, quick(start_s=0.3)).ended == HANG
    assert try_script(tmp_path, sleep, quick(timeout_s=0.3)).ended == TIMEOUT


def test_steps_that_cease_are_a_hang(tmp_path: Path) -> None:
    text = "import os, time; open(os.environ['FOLDER'] + '/progress', 'w'); time.sleep(60)"
    ran = try_script(tmp_path, text, quick(stall_s=0.3))
    assert (ran.ended, "no step was completed" in ran.reason) == (HANG, True)


def test_orphans_in_sessions_of_their_own_are_ended(tmp_path: Path) -> None:
    text = (
        "import os, subprocess, sys\n"
        "one = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "two = subprocess.Popen(['sleep', '60'], start_new_session=True, env={})\n"
        "open(os.environ['FOLDER'] + '/pids', 'w').write(f'{one.pid} {two.pid}')\n"
        "os._exit(0)\n"
    )
    ran = try_script(tmp_path, text)
    pids = [int(word) for word in (tmp_path / "out/trials/one/pids").read_text().split()]
    assert ran.ended == OK
    assert len(pids) == 2
    assert [is_alive(pid) for pid in pids] == [False, False]


def test_the_users_files_stay_and_the_working_copy_goes(tmp_path: Path) -> None:
    ran = try_script(tmp_path, "open('train.py', 'w').write('gone'); open('model.pt', 'w').write('x')")
    assert ran.ended == OK
    assert "gone" in (tmp_path / "source/train.py").read_text().partition("(")[2]
    assert sorted(path.name for path in (tmp_path / "source").iterdir()) == ["train.py"]
    assert list((tmp_path / "out/work").iterdir()) == []


def test_nothing_is_left_when_tune_is_killed(tmp_path: Path) -> None:
    """kill -9 of the process that runs the trial: its trial ends, with the orphans that it made."""
    marks = tmp_path / "pids"
    (tmp_path / "train.py").write_text(
        "import os, subprocess, time\n"
        "one = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        f"open({str(marks)!r} + '.part', 'w').write(f'{{one.pid}} {{os.getpid()}} {{os.getppid()}}')\n"
        f"os.rename({str(marks)!r} + '.part', {str(marks)!r})\n"
        "time.sleep(60)\n"
    )
    request = {
        "command": [sys.executable, "-S", "train.py"],
        "cwd": str(tmp_path),
        "environment": {"PATH": os.environ["PATH"]},
        "folder": str(tmp_path),
        "mark": "killed-tune",
        "timeout_s": 60,
        "start_s": 60,
        "stall_s": 60,
        "least_memory_ratio": 0.0,
    }
    text = f"from hotloop.change.tune.trials import run_supervised; run_supervised({request!r})"
    tune = subprocess.Popen([sys.executable, "-c", text])
    try:
        assert wait_until(marks.exists), "the trial never began"
    finally:
        os.kill(tune.pid, signal.SIGKILL)
        tune.wait()
    pids = [int(word) for word in marks.read_text().split()]
    assert len(pids) == 3
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids)), [pid for pid in pids if is_alive(pid)]
    assert MARK == "HOTLOOP_TRIAL"


def test_a_process_of_hotloop_s_own_is_not_the_command_s() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; s = time.time()\nwhile time.time() < s + 60: pass"])
    try:
        cores = Cores()
        cores.sample(now=True)
        while cores.samples[-1][3] < cores.samples[0][3] + 0.2:
            cores.sample(now=True)
        cores.apart = child.pid
        cores.sample(now=True)
        assert cores.samples[-1][3] < cores.samples[0][3] + 0.2
    finally:
        child.kill()
        child.wait()


def test_what_others_used_of_the_cores_is_told_apart_from_the_trial_s_own_work(tmp_path: Path) -> None:
    """A forked child that is busy is the trial's too, also after its parent has gone."""
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    open(os.environ['FOLDER'] + '/done', 'w')\n"
        "    time.sleep(30)\n"
        "while not os.path.exists(os.environ['FOLDER'] + '/done'): time.sleep(0.02)\n"
    )
    assert try_script(tmp_path, text).ended == OK
    samples = json.loads((tmp_path / "out" / "trials" / "one" / "cores.json").read_text())["samples"]
    (start_s, busy, whole, own), (end_s, busy_end, whole_end, own_end) = samples[0][:4], samples[-1][:4]
    cores = len(os.sched_getaffinity(0))
    assert own_end - own >= 0.25
    assert busy_end - busy >= 0.2
    assert whole_end - whole == pytest.approx(cores * (end_s - start_s), rel=0.3, abs=0.1 * cores)
