"""How long before the end a training is told, and what is said beforehand."""

from pathlib import Path

from hotloop.judge.lint import lint_paths

from .build_request import make_request


def test_the_notice_follows_from_the_measured_save_and_step() -> None:
    assert make_request(save_s=4.0).notice_s == 18
    assert make_request(save_s=4.0, step_s=1.2).notice_s == 21
    assert "2 x (a save of 4 s + a step of 1.2 s) + 10 s" in make_request(save_s=4.0, step_s=1.2).notice_reason


def test_lint_advises_what_launch_sets(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --signal=TERM@30\nsrun python train.py\n")
    report, _ = lint_paths([str(tmp_path)], "0", save_s=120.0)
    found = next(one for one in report.findings if one.rule == "late-signal")

    assert found.advice == f"--signal=TERM@{make_request(save_s=120.0).notice_s}" == "--signal=TERM@250"
