"""The hook of .pre-commit-hooks.yaml, by the real pre-commit on a git repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / ".pre-commit-hooks.yaml"
FAULTY = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
"""
NAMES = {
    "train.py": True,
    "jobs/run.sbatch": True,
    "k8s/job.yaml": True,
    "Dockerfile": True,
    "docker/Dockerfile.train": True,
    "README.md": False,
    "tests/test_train.py": False,
    "conftest.py": False,
}


def read_hook() -> dict[str, Any]:
    (hook,) = yaml.safe_load(MANIFEST.read_text())
    assert isinstance(hook, dict)
    return hook


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    environment = {**os.environ, **names, "PATH": path, "PRE_COMMIT_HOME": str(folder / ".cache")}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_manifest_is_valid_and_takes_the_files_that_lint_reads(tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, "-m", "pre_commit", "validate-manifest", str(MANIFEST))
    assert done.returncode == 0, done.stdout + done.stderr
    hook = read_hook()
    taken = {name: bool(re.search(hook["files"], name)) and not re.search(hook["exclude"], name) for name in NAMES}
    assert taken == NAMES


def test_a_commit_with_a_fault_is_refused(tmp_path: Path) -> None:
    hook = {**read_hook(), "language": "system"}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": [hook]}]}))
    (tmp_path / ".gitignore").write_text(".cache/\n")
    (tmp_path / "train.py").write_text(FAULTY)
    assert run(tmp_path, "git", "init", "-q").returncode == 0
    assert run(tmp_path, sys.executable, "-m", "pre_commit", "install").returncode == 0
    run(tmp_path, "git", "add", ".")
    refused = run(tmp_path, "git", "commit", "-qm", "faulty")
    assert refused.returncode == 1
    assert "[missing-zero-grad]" in refused.stderr + refused.stdout
    (tmp_path / "train.py").write_text(FAULTY + "    optimizer.zero_grad()\n")
    run(tmp_path, "git", "add", ".")
    accepted = run(tmp_path, "git", "commit", "-qm", "mended")
    assert accepted.returncode == 0, accepted.stderr
    assert "Passed" in accepted.stderr + accepted.stdout
