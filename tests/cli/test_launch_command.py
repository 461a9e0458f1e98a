"""hotloop launch from the command line: what it prints, refuses, writes and starts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hotloop.ahead.launch import TARGETS
from hotloop.cli import main

PLAN = """
[model]
name = "llama-3-8b"
seq = 8192
[run]
micro_batch = 1
global_batch = 256
sharding = "fsdp"
recompute = "full"
[hardware]
gpu = "h100-80g-sxm"
count = {count}
"""
SHAPE = ("--nodes", "2", "--gpus-per-node", "8")
COMMAND = ("--", "torchrun", "--nproc-per-node", "8", "train.py", "--lr", "1e-3")


def launch(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["launch", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_it_prints_the_script_and_warns_of_an_unknown_save(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = launch(capsys, "--target", "slurm", *SHAPE, *COMMAND)

    assert code == 0
    assert "#SBATCH --signal=B:TERM@300" in out
    assert "torchrun train.py --lr 1e-3 &" in out
    assert "the save time is unknown" in err


def test_a_plan_gives_the_shape_of_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(count=64))
    code, out, _ = launch(capsys, "--target", "skypilot", "--plan", str(plan), "--save-s", "3", "--", "train.py")

    assert code == 0
    task = yaml.safe_load(out)
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (8, "H100:8")
    plan.write_text(PLAN.format(count=4))
    assert yaml.safe_load(launch(capsys, "--target", "dstack", "--plan", str(plan), "--", "t.py")[1])["nodes"] == 1


def test_a_plan_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(count=64).replace("fsdp", "ddp").replace("full", "none"))
    words = ("--target", "slurm", "--plan", str(plan), "--", "t.py")
    code, out, err = launch(capsys, *words)

    assert (code, out) == (2, "")
    assert f"per device; `hotloop plan {plan} --why-oom` ranks ways to save memory" in err


@pytest.mark.parametrize(
    ("target", "more"), [("slurm", ()), ("job", ("--image", "a:1")), ("skypilot", ("--gpu", "h200"))]
)
def test_what_a_strategy_needs_and_cannot_do_is_said(
    target: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text('schema = "hotloop.strategy/1"\n[techniques.fsdp2]\n[techniques.fused-optimizer]\n')
    words = ("--target", target, *SHAPE, *more, "--strategy", str(path), "--save-s", "1", "--cpus", "8", *COMMAND)
    code, _, err = launch(capsys, *words)
    notes = [
        f"every node, or its container image, needs hotloop and the file {path}",
        f"strategy {path}: fsdp2: by hotloop's Trainer or apply_strategy, not on an unmodified script",
    ]

    assert code == 0
    assert err.splitlines() == [f"hotloop: warning: {note}" for note in notes]
    path.write_text('schema = "hotloop.strategy/1"\n[techniques.fused-optimizer]\n')
    assert "unmodified" not in launch(capsys, *words)[1]


def test_submit_starts_the_program_and_answers_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\necho "$@" > called\nexit 3\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:/usr/bin:/bin")
    code, _, err = launch(capsys, "--target", "slurm", *SHAPE, "--submit", *COMMAND)

    assert code == 3
    assert (tmp_path / "called").read_text() == "train.sbatch\n"
    assert "#SBATCH --nodes=2" in (tmp_path / "train.sbatch").read_text()
    assert "running sbatch train.sbatch" in err
    (tmp_path / "train.sbatch").write_text("mine")
    assert (
        "train.sbatch exists and holds something else"
        in launch(capsys, "--target", "slurm", *SHAPE, "--submit", *COMMAND)[2]
    )


BASE = {
    "job": ("--image", "a:1"),
    "jobset": ("--image", "a:1"),
    "skypilot": ("--gpu", "h200"),
    "dstack": ("--gpu", "h200"),
}
OPTIONS = {
    "gpu": "h100-80g-sxm",
    "cpus": "4",
    "save_s": "7",
    "spot": "gcp",
    "time": "2-0",
    "slurm_option": "partition=gpu",
    "image": "b:1",
    "volume": "runs:/storage",
    "shm": "8Gi",
    "interface": "eth1",
    "rdma": "rdma/ib",
    "queue": "team",
    "runtime": "own",
    "name": "other",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_an_option_changes_the_manifest_or_is_refused(
    target: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--target", target, *SHAPE, *BASE.get(target, ()))
    given = (f"--{option.replace('_', '-')}", OPTIONS[option])
    _, plain, _ = launch(capsys, *words, *COMMAND)
    code, out, err = launch(capsys, *words, *given, *COMMAND)

    if option in TARGETS[target].takes:
        assert "does not use" not in err
        assert code == 0
        assert out != plain
        return
    assert (code, out) == (2, "")
    users = ", ".join(one.id for one in TARGETS.values() if option in one.takes)
    assert err == (f"hotloop: --target {target} does not use {given[0]}: leave it out, or use one of: {users}\n")


SAVING = """
import time
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Slow:
    def __reduce__(self):
        time.sleep(0.3)
        return (int, ())


for step in range(24):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        torch.save({"model": model.state_dict(), "slow": Slow()}, "checkpoint.pt")
"""


def test_a_recorded_run_tells_how_long_a_save_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SAVING)
    run = [sys.executable, "-m", "hotloop", "run", "--no-probe", "--no-deep", "-q", "--", sys.executable, "train.py"]
    subprocess.run(run, check=True, timeout=400)
    shape = ("--target", "slurm", "--nodes", "2", "--gpus-per-node", "0")
    _, out, err = launch(capsys, *shape, "--run", "last", "--", "t.py")

    save_s = re.search(r"a save of (\d\.\d+) s \+ a step of", out)
    assert save_s is not None, out
    assert 0.3 <= float(save_s[1]) < 30
    assert "the save time is unknown" not in err
