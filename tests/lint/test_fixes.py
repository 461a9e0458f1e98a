"""Fixes repair their finding and change nothing else; a file that changed meanwhile is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotloop.core.errors import UsageError
from hotloop.judge.lint import LINT_RULES, lint_paths
from hotloop.judge.lint.fixes import Repair, make_repairs, write_repairs

from .cases import CASES, FILES
from .cases.texts import LOOP

FIXED = ("missing-zero-grad", "sampler-without-set-epoch", "kept-graph", "defeated-cache-mount")


def repair(path: Path) -> list[Repair]:
    report, read = lint_paths([str(path)], "0")
    return make_repairs(report.findings, read)


def find_rules(path: Path) -> set[str]:
    return {one.rule for one in lint_paths([str(path)], "0")[0].findings}


@pytest.mark.parametrize("rule_id", FIXED)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_fix_removes_its_finding_and_keeps_every_other_line(rule_id: str, newline: str, tmp_path: Path) -> None:
    text = CASES[rule_id][0].replace("\n", newline)
    path = tmp_path / FILES[LINT_RULES[rule_id].reads.split()[0]]
    path.write_bytes(text.encode())
    path.chmod(0o750)
    (made,) = repair(path)
    write_repairs([made])
    assert rule_id not in find_rules(path)
    assert repair(path) == []
    assert path.stat().st_mode & 0o777 == 0o750
    after = path.read_bytes().decode()
    assert after.count("\n") == after.count(newline)
    changed = set(text.split(newline)) - set(after.split(newline))
    assert len(changed) <= 1
    assert os.listdir(tmp_path) == [path.name]


def test_a_line_behind_the_last_one_gets_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("\ufeff" + LOOP.replace("        optimizer.zero_grad()\n", "").rstrip())
    write_repairs(repair(path))
    assert path.read_text().endswith("        optimizer.step()\n        optimizer.zero_grad()")
    assert path.read_text().startswith("\ufeff")


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CASES["kept-graph"][0])
    made = repair(path)
    path.write_text("mine = 1\n")
    with pytest.raises(UsageError, match="changed during the check"):
        write_repairs(made)
    assert path.read_text() == "mine = 1\n"
    assert os.listdir(tmp_path) == ["train.py"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text(CASES["kept-graph"][0])
    link = tmp_path / "link.py"
    link.symlink_to("real.py")
    write_repairs(repair(link))
    assert link.is_symlink()
    assert "loss.detach()" in (tmp_path / "real.py").read_text()


def test_the_diff_shows_what_would_be_written(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(CASES["defeated-cache-mount"][0])
    (made,) = repair(path)
    assert "-RUN --mount=type=cache,target=/root/.cache/pip pip install --no-cache-dir torch\n" in made.diff()
    assert "+RUN --mount=type=cache,target=/root/.cache/pip pip install torch\n" in made.diff()


def test_no_line_is_added_where_it_is_not_certain(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        LOOP.replace("        optimizer.step()\n        optimizer.zero_grad()\n", "        if i: optimizer.step()\n")
    )
    report, read = lint_paths([str(path)], "0")
    assert {one.rule for one in report.findings} == {"missing-zero-grad"}
    assert make_repairs(report.findings, read) == []
