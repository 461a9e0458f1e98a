import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.doctor import DoctorReport, MachineCheck
from hotloop.show.report import render

MISSING = (
    'import os, sys\nprint(\'{"schema": "hotloop.machine/1", "torch": null, "torch_error": {"missing": true}}\')\n'
)


def make_check(check_id: str, status: Any, measured: str = "3 GiB", why: str = "", fix: str = "") -> MachineCheck:
    return MachineCheck(id=check_id, group="cpu", title=check_id, status=status, measured=measured, why=why, fix=fix)


def draw_doctor(checks: Any, command: str, *, width: int, color: bool) -> str:
    report = DoctorReport(tool_version="1", python=None, checks=checks, next=command)
    return render("terminal", report, width=width, color=color)


def run_doctor(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    dropped = ("CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND", "OMP_PLACES")
    environment = {k: v for k, v in os.environ.items() if k not in dropped} | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [sys.executable, "-m", "hotloop", "doctor", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )


@pytest.fixture
def quick_python(tmp_path: Path) -> str:
    """An interpreter that answers at once that it has no torch."""
    path = tmp_path / "quick-python"
    path.write_text(f"#!{sys.executable}\n{MISSING}")
    path.chmod(0o755)
    return str(path)


def test_problems_come_first_and_good_ones_take_a_line_per_group() -> None:
    checks = (
        make_check("shared-memory", "harmful", "64 MiB free", "workers die", "--shm-size=8g"),
        make_check("load", "warning", "8.0 on 2 cores", "slow", "wait"),
        make_check("clock", "good", "tsc"),
        make_check("quota", "good", "none"),
        make_check("frequency", "unknown", "unknown", "the kernel does not report it"),
    )
    text = draw_doctor(checks, "hotloop run -- python train.py", width=100, color=False)
    words = ["shared-memory", "why", "fix", "load", "cpu  ", "unknown  ", "next: "]
    assert sorted(map(text.index, words)) == list(map(text.index, words))


def test_a_python_without_torch_is_one_line_and_no_failure(tmp_path: Path, quick_python: str) -> None:
    done = run_doctor("--python", quick_python, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{quick_python} has no torch" in " ".join(done.stdout.split())
    assert done.stdout.splitlines()[-1].startswith("next: hotloop doctor --python PATH")


def test_a_harmful_variable_ends_with_1_unless_asked_not_to(tmp_path: Path, quick_python: str) -> None:
    words = ("--python", quick_python, "-q")
    assert run_doctor(*words, folder=tmp_path, PYTHONTRACEMALLOC="1").returncode == 1
    assert run_doctor(*words, "--exit-zero", folder=tmp_path, PYTHONTRACEMALLOC="1").returncode == 0


def test_json_holds_every_check(tmp_path: Path, quick_python: str) -> None:
    file = tmp_path / "doctor.json"
    done = run_doctor("--python", quick_python, "--data", ".", "--json", str(file), "-q", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    answer = json.loads(file.read_text())
    assert answer["schema"] == "hotloop.doctor/1"
    assert set(answer["checks"][0]) == {"id", "group", "title", "status", "measured", "why", "fix", "values"}
    data = next(c for c in answer["checks"] if c["id"] == "data-folder")
    assert data["values"]["file_system"]
