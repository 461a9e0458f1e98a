"""How trainings end and what goes wrong around them: the training is never harmed, the report says what is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .training import HOTLOOP, Ran, clean_environment, run_command, run_plain, run_script, write_script

LOOP = """
import os, signal, sys
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""

ENDS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed", "SIGKILL"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", 143, "signal", "SIGTERM"),
    "os._exit": ("os._exit(3)", 3, "completed", None),
    "sys.exit": ("sys.exit(4)", 4, "completed", None),
    "exception": ("raise KeyError('gone')", 1, "exception", None),
    "out of memory": ("raise MemoryError('no more')", 1, "oom", None),
}


@pytest.mark.parametrize("end", ENDS)
def test_two_hundred_steps_and_how_it_ended(tmp_path: Path, end: str) -> None:
    last_line, exit_code, ended, name = ENDS[end]
    ran = run_script(tmp_path, LOOP + last_line)
    assert ran.exit_code == exit_code
    assert ran.seen["step"]["count"] == 200
    assert ran.seen["ranks"][0]["lost_rows"] == 0
    outcome = ran.seen["outcome"]
    assert (outcome["ended"], outcome["signal"]) == (ended, name)
    assert outcome["exit_code"] == (None if name else exit_code)
    assert "Traceback" not in ran.stderr.replace('Traceback (most recent call last):\n  File "', "", 1)


def test_two_runs_at_once(tmp_path: Path) -> None:
    script = write_script(tmp_path, LOOP + "print('finished')")
    commands = [
        subprocess.Popen(
            [*HOTLOOP, "run", "--no-probe", "-q", "--json", f"{i}.json", "--", sys.executable, script.name],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    for i, command in enumerate(commands):
        out, _ = command.communicate(timeout=180)
        assert (command.returncode, out) == (0, "finished\n")
        assert json.loads((tmp_path / f"{i}.json").read_text())["step"]["count"] == 200


UNTIL_ORPHANED = """
import os, time
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parent, steps, until_s = os.getppid(), 0, time.monotonic() + 60
while os.getppid() == parent and time.monotonic() < until_s:
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    steps += 1
open("finished", "w").write(str(steps))
os.rename("finished", "done")
"""


def test_hotloop_killed_leaves_the_training_alone(tmp_path: Path) -> None:
    write_script(tmp_path, UNTIL_ORPHANED)
    parent = subprocess.Popen(
        [*HOTLOOP, "run", "--name", "orphan", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        stderr=subprocess.PIPE,
    )
    processes = tmp_path / ".hotloop" / "orphan" / "processes"
    _wait_for(lambda: processes.is_dir() and any(processes.iterdir()))
    parent.kill()
    parent.communicate(timeout=60)
    _wait_for((tmp_path / "done").exists)
    report = _report(tmp_path, "orphan")
    assert 0 < report["step"]["count"] <= int((tmp_path / "done").read_text())
    assert report["outcome"]["exit_code"] is None


def _report(folder: Path, run: str) -> dict:
    done = subprocess.run(
        [*HOTLOOP, "report", run, "--json", "-", "--exit-zero"],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    report: dict = json.loads(done.stdout)
    return report


def _wait_for(condition: object, timeout_s: float = 90.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.1)


def test_signals_to_hotloop_alone_reach_the_training(tmp_path: Path) -> None:
    text = """
        import signal, sys, time
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def stop(*_):
            print("told to stop")
            sys.exit(5)
        signal.signal(signal.SIGUSR1, stop)
        for step in range(10**9):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            if step == 20:
                open("training", "w").write("yes")
        """
    write_script(tmp_path, text)
    parent = subprocess.Popen(
        [*HOTLOOP, "run", "--no-probe", "-q", "--json", "r.json", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    _wait_for((tmp_path / "training").exists)
    parent.send_signal(signal.SIGUSR1)
    out, _ = parent.communicate(timeout=60)
    assert (parent.returncode, out) == (5, "told to stop\n")


ENDLESS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**9):
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
    if step == 300:
        print("trains", flush=True)
"""

COUNTING = """
import os, signal, sys, time
got = []
signal.signal(signal.{name}, lambda *_: got.append(1))
print(os.getpid(), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, flush=True)
deadline = time.monotonic() + 60
while not got and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(1.0)
print(len(got), flush=True)
"""


def start_counting(folder: Path, name: str) -> subprocess.Popen[str]:
    """`hotloop run` of a script that counts this signal, in a session of its own."""
    (folder / f"{name}.py").write_text(COUNTING.format(name=name))
    return subprocess.Popen(
        [*HOTLOOP, "run", "-q", "--", sys.executable, f"{name}.py"],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_signal_reaches_the_training_once(tmp_path: Path) -> None:
    cases = [(name, to_group) for name in ("SIGINT", "SIGTERM", "SIGUSR1") for to_group in (True, False)]
    parents = [start_counting(tmp_path, name) for name, _ in cases]
    for parent in parents:
        assert parent.stdout is not None
        parent.stdout.readline()
    time.sleep(0.2)
    for parent, (name, to_group) in zip(parents, cases, strict=True):
        send = os.killpg if to_group else os.kill
        send(parent.pid, getattr(signal, name))
    told = [(parent.communicate(timeout=90)[0], parent.returncode) for parent in parents]
    assert dict(zip(cases, told, strict=True)) == dict.fromkeys(cases, ("1\n", 0))


@pytest.mark.parametrize("options", [(), ("--probe",)])
def test_ctrl_c_ends_with_a_report_and_without_a_probe(options: tuple[str, ...], tmp_path: Path) -> None:
    write_script(tmp_path, ENDLESS)
    parent = subprocess.Popen(
        [*HOTLOOP, "run", "--name", "one", *options, "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "trains\n"
    os.killpg(parent.pid, signal.SIGINT)
    told = parent.communicate(timeout=90)[1]
    assert parent.returncode == 130
    assert "\nNext: hotloop" in told
    assert (tmp_path / ".hotloop" / "one" / "probe.json").exists() == bool(options)
    assert ("opportunities were not measured" in told) == (not options)


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    write_script(tmp_path, ENDLESS)
    parent = subprocess.Popen(
        [*HOTLOOP, "run", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "trains\n"
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.stderr is not None
    assert any("opportunities were not measured" in line for line in parent.stderr)  # the training is gone
    parent.send_signal(signal.SIGINT)
    told = parent.communicate(timeout=30)[1]
    assert parent.returncode == 130
    assert "hotloop: interrupted; to see the report: hotloop report" in told
    assert "Next: " not in told
    assert "run_command.py" not in told


def test_a_signal_that_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(COUNTING.format(name="SIGUSR1"))
    command = " ".join([*HOTLOOP, "run", "-q", "--", sys.executable, "count.py"])
    parent = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' HUP; exec {command}"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    child, ignored = parent.stdout.readline().split()
    assert ignored == "True"
    os.killpg(parent.pid, signal.SIGHUP)
    os.kill(int(child), signal.SIGUSR1)
    assert parent.communicate(timeout=90)[0] == "1\n"
    assert parent.returncode == 0


def test_a_run_folder_deleted_meanwhile(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        LOOP.replace("optimizer.step()", "optimizer.step()\n    if step == 100: shutil.rmtree('.hotloop')").replace(
            "import os", "import shutil, os"
        )
        + "\nprint('finished')",
    )
    assert (ran.exit_code, ran.stdout) == (0, "finished\n")
    assert "Traceback" not in ran.stderr


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".hotloop").write_text("a file where the folder should be")
    ran = run_script(tmp_path, LOOP + "print('finished')")
    assert (ran.exit_code, ran.stdout) == (0, "finished\n")
    assert ran.seen["step"]["count"] == 200


def test_a_file_system_that_fills(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not permitted")
    try:
        text = LOOP.replace("range(200)", "range(4000)") + "print('finished')"
        script = write_script(tmp_path, text)
        done = subprocess.run(
            [*HOTLOOP, "run", "--no-probe", "--json", str(tmp_path / "r.json"), "--", sys.executable, str(script)],
            cwd=small,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr
        report = json.loads((tmp_path / "r.json").read_text())
        lost = report["ranks"][0]["lost_rows"]
        assert report["step"]["count"] + lost in (4000, 4001)  # the row after the last step may be lost too
        assert lost == 0 or any(f"lacks {lost} rows" in h["message"] for h in report["health"])
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_bug_in_the_agent_is_recorded_and_harms_nothing(tmp_path: Path) -> None:
    text = (
        LOOP.replace(
            "optimizer = torch",
            "import hotloop.agent.observe.agent as a, hotloop.agent.observe.inputs as b\n"
            "exec(compile('def broken(*a, **k): raise ZeroDivisionError(1)', '<frozen planted>', 'exec'))\n"
            "b.describe_batch = broken\nb.identify_inputs = broken\na.caller_place = broken\n"
            "optimizer = torch",
            1,
        )
        + "print('finished')"
    )
    ran = run_script(tmp_path, text)
    assert (ran.exit_code, ran.stdout) == (0, "finished\n")
    assert ran.seen["step"]["count"] == 200
    assert any("ZeroDivisionError" in h["message"] for h in ran.seen["health"])


def test_a_command_that_never_trains(tmp_path: Path) -> None:
    ran = run_command(tmp_path, sys.executable, "-c", "import torch, sys; sys.exit(9)")
    assert ran.exit_code == 9
    assert ran.seen["outcome"]["training_seen"] is False
    assert ran.seen["step"] is None
    assert ran.seen["breakdown"] is None
    assert ran.seen["findings"] == []
    assert len(ran.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "exit_code", "words"),
    [
        (("no-such-command",), 127, "not found"),
        (("./missing.sh",), 127, "no such file"),
        (("./plain.txt",), 126, "not executable"),
        (("missing.py",), 127, "no such file"),
    ],
)
def test_a_command_that_cannot_start(tmp_path: Path, command: tuple[str, ...], exit_code: int, words: str) -> None:
    (tmp_path / "plain.txt").write_text("text")
    ran = run_command(tmp_path, *command)
    assert ran.exit_code == exit_code
    assert words in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_secrets_stay_out_of_every_report(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuv"
    script = write_script(tmp_path, LOOP + "raise ValueError('login with token=abc123secretvalue')")
    ran: Ran = run_command(
        tmp_path,
        sys.executable,
        script.name,
        "--api-key",
        "sk-12345678901234567890",
        "--url",
        "https://me:hunter2@host/x",
        options=("--html", "r.html"),
        HF_TOKEN=secret,
        WANDB_API_KEY="0123456789abcdef0123456789abcdef01234567",
    )
    texts = [(tmp_path / "report.json").read_text(), (tmp_path / "r.html").read_text()]
    texts.append(ran.stderr[ran.stderr.index("hotloop 0") :] if "hotloop 0" in ran.stderr else "")
    texts += [p.read_bytes().decode("latin1") for p in ran.run_folder.rglob("*") if p.is_file()]
    for text in texts:
        for hidden in (secret, "sk-1234567890", "hunter2", "0123456789abcdef", "abc123secretvalue"):
            assert hidden not in text


def test_foreign_recordings_are_one_clear_line(tmp_path: Path) -> None:
    folder = tmp_path / ".hotloop" / "odd" / "processes"
    folder.mkdir(parents=True)
    (folder / "host-1-0-0.hlr").write_bytes(os.urandom(5000))
    done = subprocess.run(
        [*HOTLOOP, "report", "odd"], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_a_clock_jump_changes_nothing(tmp_path: Path) -> None:
    ran = run_script(
        tmp_path,
        "import time\nreal = time.time\ntime.time = lambda: real() - 10**6\n" + LOOP,
    )
    assert ran.seen["step"]["count"] == 200
    assert ran.seen["step"]["mean_ns"] < 10**9


def test_the_plain_result_is_bit_identical(tmp_path: Path) -> None:
    script = write_script(tmp_path, LOOP + "torch.save(model.state_dict(), sys.argv[1])\n")
    assert run_plain(tmp_path, sys.executable, script.name, "plain.pt").returncode == 0
    assert run_command(tmp_path, sys.executable, script.name, "seen.pt").exit_code == 0
    import torch

    plain, seen = (torch.load(tmp_path / name, weights_only=True) for name in ("plain.pt", "seen.pt"))
    assert all(torch.equal(plain[k], seen[k]) for k in plain)
