"""Families of faults of Dockerfiles are found at what they cost, with the context and its history; sound files pass."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hotloop.core.lint import Confidence, LintFinding
from hotloop.judge.lint import lint_paths

from .cases.dockerfiles import FAULTS, SOUND, TORCH

RANKS = ("info", "low", "medium", "high")


def lint(folder: Path, text: str, files: dict[str, str] | None = None) -> list[LintFinding]:
    for name, content in {"Dockerfile": text, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    report, _ = lint_paths([str(folder / "Dockerfile")], "0")
    assert report.unread == ()
    return list(report.findings)


def costly(found: list[LintFinding]) -> set[str]:
    return {one.rule for one in found if one.severity.value in ("medium", "high")}


@pytest.mark.parametrize(("rule", "severity", "text"), FAULTS, ids=[f"{at}-{row[0]}" for at, row in enumerate(FAULTS)])
def test_the_fault_is_found_at_its_cost(rule: str, severity: str, text: str, tmp_path: Path) -> None:
    found = [one.severity.value for one in lint(tmp_path, text) if one.rule == rule]
    assert max(found, key=RANKS.index, default="none") == severity


@pytest.mark.parametrize("text", SOUND)
def test_sound_files_have_no_costly_finding(text: str, tmp_path: Path) -> None:
    assert [one for one in lint(tmp_path, text) if one.severity.value in ("medium", "high")] == []


def test_what_the_ignore_file_takes_out_or_lets_in_is_known(tmp_path: Path) -> None:
    text = f"{TORCH}COPY requirements.txt ./\nCOPY src/ src/\n"
    files = {"requirements.txt": "a==1\n", "src/a.py": "", ".dockerignore": "*.txt\n"}
    assert costly(lint(tmp_path, text, files)) == {"copy-without-source"}
    assert costly(lint(tmp_path, text, {".dockerignore": "*.txt\n!requirements.txt\n"})) == set()
    (tmp_path / "third_party" / "sim").mkdir(parents=True)  # a submodule that is not checked out
    assert costly(lint(tmp_path, f"{TORCH}COPY third_party/sim/ sim/\n", {".dockerignore": ".venv\n"})) == set()
    os.truncate(tmp_path / "src" / "a.py", 0)
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "x.tar").open("wb") as file:
        file.truncate(300 << 20)
    whole = f"{TORCH}COPY . /app\n"
    assert costly(lint(tmp_path, whole, {".dockerignore": "data\n"})) == set()
    found = lint(tmp_path, whole, {".dockerignore": "data\n!data/*.tar\n"})
    assert [(one.rule, one.severity.value) for one in found if "300 MiB" in one.message] == [
        ("large-files-in-image", "medium")
    ]


def test_a_package_that_is_imported_and_ignored_is_found(tmp_path: Path) -> None:
    text = f"{TORCH}COPY src/ src/\n"
    files = {"src/net/__init__.py": "", "src/net/data/radar.py": "", "src/net/tests/a.py": ""}
    for line in ("from net.data.radar import Frames", "from .data import radar", "from net import data"):
        found = lint(tmp_path, text, {**files, "src/net/train.py": f"{line}\n", ".dockerignore": "**/data\n"})
        assert costly(found) == {"copy-without-source"}
    assert costly(lint(tmp_path, text, {".dockerignore": "/data\n**/tests\n"})) == set()
    other = {"src/net/train.py": "from torch.utils.data import DataLoader\nimport data\n", ".dockerignore": "**/data\n"}
    assert costly(lint(tmp_path, text, other)) == set()


def test_a_list_of_packages_that_need_no_library_is_sound(tmp_path: Path) -> None:
    text = "FROM python:3.11-slim\nCOPY r.txt a.txt ./\nRUN pip install --no-cache-dir -r r.txt\n"
    files = {"r.txt": "opencv-python-headless==4.10.0.84\npython-magic-bin==1\n", "a.txt": ""}
    assert costly(lint(tmp_path, text, files)) == set()
    assert costly(lint(tmp_path, text, {"r.txt": "opencv-python==4.10.0.84\n"})) == {"missing-at-start"}


def test_a_fault_that_a_stage_repeats_is_one_finding(tmp_path: Path) -> None:
    text = f"{TORCH}RUN apt-get update\n" + "".join(
        f"RUN apt-get install -y {name}\n" for name in ("git", "curl", "vim")
    )
    found = [one for one in lint(tmp_path, text) if one.rule == "failing-step"]
    assert [(one.line, one.message.rpartition("; ")[2]) for one in found] == [(3, "again on line 4, 5")]
    found = lint(tmp_path, f"{TORCH}ENV NCCL_IB_DISABLE=1\nENV NCCL_SHM_DISABLE=1\n")
    assert len([one for one in found if "DISABLE" in one.message]) == 2


def test_a_script_is_looked_for_where_the_command_reads_it(tmp_path: Path) -> None:
    files = {"src/train.py": "", "ops/setup.py": "from torch.utils.cpp_extension import CUDAExtension\n", "b/c.py": ""}
    text = f'{TORCH}WORKDIR /app\nCOPY src/ b/ ./\nCMD ["python", "src/train.py"]\n'
    assert "unknown-name" in costly(lint(tmp_path, text, files))
    assert costly(lint(tmp_path, text.replace("src/train", "train"), files)) == set()
    text = "FROM pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel\nCOPY ops/ /ops/\nRUN cd /ops && python setup.py install\n"
    assert costly(lint(tmp_path, text, files)) == {"failing-step"}
    assert costly(lint(tmp_path, text.replace("RUN", "ENV TORCH_CUDA_ARCH_LIST=8.0\nRUN"), files)) == set()


def test_the_history_says_whether_a_copy_changes(tmp_path: Path) -> None:
    text = f"{TORCH}COPY tool.py train.py /app/\nRUN pip install einops==0.8.0\n"

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@e.org")
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    def churn(changed: str) -> list[LintFinding]:
        for at in range(5):
            (tmp_path / changed).write_text(f"{at}")
            git("add", "-A")
            git("commit", "-qm", "a")
        return [one for one in lint(tmp_path, text) if one.rule == "source-before-install"]

    (before,) = [
        one for one in lint(tmp_path, text, {"tool.py": "", "train.py": ""}) if one.rule == "source-before-install"
    ]
    assert before.confidence == Confidence.LIKELY
    git("init", "-q")
    (after,) = churn("train.py")
    assert after.confidence == Confidence.CERTAIN
    assert "commits" in after.message


def test_no_program_of_a_hostile_repository_is_started(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(
            f"[core]\n\tfsmonitor = touch {tmp_path}/run\n\thooksPath = {tmp_path}\n[log]\n\tshowSignature = true\n"
        )
    lint(tmp_path, f"{TORCH}COPY . /app\nRUN pip install -r a.txt\n", {"a.py": ""})
    assert not (tmp_path / "run").exists()


def test_a_script_that_the_container_starts_is_read(tmp_path: Path) -> None:
    text = f'{TORCH}WORKDIR /app\nCOPY start.sh ./\nENTRYPOINT ["./start.sh"]\n'
    script = "#!/bin/bash\nset -e\npython train.py\n"
    (tmp_path / "other.sh").touch(mode=0o755)  # without it, no file has its mode
    found = lint(tmp_path, text, {"start.sh": script})
    assert {one.severity.value for one in found if one.rule == "shell-as-first-process"} == {"medium", "high"}
    (tmp_path / "start.sh").chmod(0o755)
    found = lint(tmp_path, text, {"start.sh": script.replace("python", "exec python")})
    assert "shell-as-first-process" not in costly(found)
    for faulty in ("exec > log\npython train.py | tee log", 'echo "$@"\n"$@"', "hf download a/b\nexec python train.py"):
        found = lint(tmp_path, text, {"start.sh": script.replace("python train.py", faulty)})
        assert "shell-as-first-process" in costly(found)


@pytest.mark.parametrize(
    "text",
    [
        "FROM a:1\nRUN " + "(" * 20_000 + "\n",
        "FROM a:1\nRUN echo " + "a" * 1_000_000 + "\n",
        "FROM debian:12\nRUN echo " + "({" * 10_000 + ".{a,b " * 5_000 + "\n",
        "FROM debian:12\nRUN rm "
        + "." * 100_000
        + "\nRUN export A="
        + "$" * 100_000
        + "\nRUN cd "
        + "a " * 10_000
        + "\n",
        "FROM a:1\nENV " + " ".join(f"A{at}=$A{at}" for at in range(5000)) + "\n",
        "FROM a:1\n" + "RUN pip install torch==2.5.1 | tee x\n" * 400,
        "FROM a:1\nONBUILD\n",
        "FROM a:1\nCOPY []\nCOPY a\nCMD []\nENTRYPOINT\nENV\nUSER\nSHELL x\n",
    ],
)
def test_hostile_files_take_bounded_time(text: str, tmp_path: Path) -> None:
    lint(tmp_path, text, {".dockerignore": "*" * 200 + "\n[z-a]\n" + "**/" * 500 + "a\n"})
