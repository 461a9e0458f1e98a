"""Every rule finds its fault, and is silent where it is near."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.core.lint import LintFinding
from hotloop.judge.lint import LINT_RULES, lint_paths
from hotloop.judge.lint.files import LINT_FORMATS

from .cases import BESIDE, CASES, FILES, SAVE_S
from .cases.texts import BATCH, BRANCHED, KEPT, LOOP, SAVED, WARNED, change, pod

HEADINGS = ("What it does", "Why it costs", "How to recognize it", "What to do", "When it is wrong")


def lint_text(text: str, kind: str, folder: Path, save_s: float | None = None) -> list[LintFinding]:
    path = folder / FILES[kind]
    path.write_text(text)
    report, _ = lint_paths([str(folder)], "0", save_s=save_s)
    assert report.unread == ()
    found = [one for one in report.findings if one.file == str(path)]
    assert all(1 <= one.line <= text.count("\n") + 1 for one in found)
    return found


@pytest.mark.parametrize("rule_id", list(LINT_RULES))
def test_the_rule_finds_its_fault_and_nothing_near(rule_id: str, tmp_path: Path) -> None:
    faulty, near = CASES[rule_id]
    kind, save_s = LINT_RULES[rule_id].reads.split()[0], SAVE_S.get(rule_id)
    for name, text in BESIDE.get(rule_id, {}).items():
        (tmp_path / name).write_text(text)
    assert rule_id in {one.rule for one in lint_text(faulty, kind, tmp_path, save_s)}
    assert rule_id not in {one.rule for one in lint_text(near, kind, tmp_path, save_s)}


def test_a_clean_training_has_no_finding(tmp_path: Path) -> None:
    assert lint_text(LOOP, "python", tmp_path) == []


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("--ntask=1", "high"),  # of several options
        ("--ntasks_per_node=2", "high"),
        ("-gres=gpu:1", "high"),
        ("-output=a.log", "high"),
        ("-l nodes=1", "high"),
        ("--mem=8G 8 gigabytes", "high"),
        ("--kill-on-bad-exit=1", "high"),  # of srun
        ("--workdir=/tmp", "medium"),
        ("--stoptime=3", "low"),
        ("--output=$LOG --ntask=1", "high"),
        ("{extra}", None),
        ("--mem=$MEMORY", None),
        ("--exclusive -x a,b --get-user-env", None),
    ],
)
def test_what_sbatch_refuses(line: str, severity: str | None, tmp_path: Path) -> None:
    found = lint_text(f"#!/bin/bash\n#SBATCH {line}\nhostname\n", "sbatch", tmp_path)
    assert {one.severity.value for one in found if one.rule == "refused-option"} == ({severity} if severity else set())


def test_only_the_script_that_a_job_starts_is_warned(tmp_path: Path) -> None:
    for name in ("a/train.py", "b/train.py", "b/other.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SAVED)

    def judge(job: str, text: str) -> list[tuple[str, str]]:
        path = tmp_path / job
        path.write_text(text)
        report, _ = lint_paths([str(tmp_path)], "0")
        path.unlink()
        found = [one for one in report.findings if one.rule == "unhandled-signal"]
        return [(str(Path(one.file).relative_to(tmp_path)), one.severity.value) for one in found]

    assert judge("b/job.sbatch", WARNED) == [("b/train.py", "medium")]
    assert judge("job.sbatch", WARNED) == []  # either of two
    assert judge("job.sbatch", change(WARNED, "train.py", "other.py")) == [("b/other.py", "medium")]
    assert judge("job.sbatch", change(WARNED, "srun python train.py", "srun python -m b.other")) == [
        ("b/other.py", "medium")
    ]
    assert judge("job.sbatch", change(WARNED, "=USR1", "=B:USR1")) == []
    command = "command: [python, /app/b/other.py]"
    assert judge("job.yaml", pod(container=command, spec="terminationGracePeriodSeconds: 300")) == [
        ("b/other.py", "low")
    ]
    assert judge("job.yaml", pod(container=command, spec="nodeSelector: {cloud.google.com/gke-spot: 'true'}")) == [
        ("b/other.py", "low")
    ]
    assert judge("job.yaml", pod(container=command, spec="terminationGracePeriodSeconds: 30")) == []
    assert judge("job.yaml", pod(container=command)) == []
    (tmp_path / "stop.py").write_text("import signal\nsignal.signal(signal.SIGUSR1, print)\n")
    assert judge("b/job.sbatch", WARNED) == []


def test_the_same_torch_for_another_cuda_is_a_second_one(tmp_path: Path) -> None:
    def judge(pinned: str) -> set[str]:
        text = f"FROM pytorch/pytorch:1.13.0-cuda11.6-cudnn8-devel\nRUN pip install torch=={pinned}\n"
        return {one.rule for one in lint_text(text, "dockerfile", tmp_path)}

    assert "torch-twice" in judge("1.13.0+cu117")
    assert not {"torch-twice"} & (judge("1.13.0+cu116") | judge("1.13.0"))


def test_a_wait_in_the_function_that_a_trap_calls_is_not_one_for_the_training(tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --signal=B:TERM@120\nwatch.sh &\nstop() {\n  kill $!\n  wait $!\n}\ntrap stop TERM\n"
        "srun python train.py"
    )
    assert "trap-behind-foreground" in {one.rule for one in lint_text(f"{text}\n", "sbatch", tmp_path)}
    assert "trap-behind-foreground" not in {one.rule for one in lint_text(f"{text} &\nwait $!\n", "sbatch", tmp_path)}


def test_branches_that_exclude_each_other_are_not_mixed(tmp_path: Path) -> None:
    assert "clipped-scaled-gradients" not in {one.rule for one in lint_text(BRANCHED, "python", tmp_path)}


def test_a_loss_that_is_another_one_by_then_is_not_kept(tmp_path: Path) -> None:
    text = change(KEPT, "        total", "        loss = plain(loss)\n        total")
    assert "kept-graph" not in {one.rule for one in lint_text(text, "python", tmp_path)}


@pytest.mark.parametrize("rule_id", list(LINT_RULES))
def test_every_rule_has_a_manual_with_its_five_headings(rule_id: str) -> None:
    rule = LINT_RULES[rule_id]
    sections = [part.partition("\n") for part in rule.manual.split("## ")[1:]]
    assert tuple(title.strip() for title, _, _ in sections) == HEADINGS
    assert all(len(text.split()) >= 5 for _, _, text in sections)
    assert set(rule.reads.split()) <= set(LINT_FORMATS)
    assert not rule.summary.endswith(".")


@pytest.mark.parametrize(
    ("signal", "start", "is_told"),
    [
        ("USR2@600", "srun torchrun train.py", True),
        ("USR1@600", "srun -c 8 \\\n  accelerate launch train.py", True),
        ("TERM@600", "srun torchrun train.py", False),
        ("USR2@600", "srun python train.py", False),
        ("B:USR2@600", "trap 'touch stop' USR2\nsrun torchrun train.py &\nwait", False),
        ("USR2@600", "export TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGUSR2\nsrun torchrun train.py", False),
    ],
)
def test_a_launcher_that_passes_no_such_signal_on(signal: str, start: str, is_told: bool, tmp_path: Path) -> None:
    text = BATCH.format(nodes=1, more=f"#SBATCH --signal={signal}\n{start}")
    told = {one.rule for one in lint_text(text, "sbatch", tmp_path)}
    assert ("undelivered-signal" in told) is is_told
