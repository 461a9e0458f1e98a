"""The working copy: what is copied, linked and left out, and that the user's files stay as they are."""

import os
import time
from pathlib import Path

import pytest

from hotloop.tune import workspace
from hotloop.tune.workspace import make_workspace, plan_workspace, remove_workspace, written_outside


def build(folder: Path) -> Path:
    source = folder / "source"
    (source / "data").mkdir(parents=True)
    (source / "train.py").write_text("print(1)")
    (source / "data/large.bin").write_bytes(bytes(workspace.SMALL_BYTES + 1))
    (source / "model.pt").write_bytes(bytes(workspace.SMALL_BYTES + 1))
    (source / ".hotloop").mkdir()
    (source / ".venv").mkdir()
    (source / ".venv/pyvenv.cfg").write_text("")
    return source


def test_small_files_are_copies_large_ones_links_and_checkpoints_copies(tmp_path: Path) -> None:
    source = build(tmp_path)
    copy = make_workspace(plan_workspace(source), tmp_path / "work")
    assert not (copy / "train.py").is_symlink()
    assert (copy / "data/large.bin").is_symlink()
    assert not (copy / "model.pt").is_symlink()
    assert (copy / ".venv").is_symlink()
    assert not (copy / ".hotloop").exists()
    (copy / "model.pt").write_bytes(b"new")
    remove_workspace(copy)
    assert (source / "model.pt").stat().st_size == workspace.SMALL_BYTES + 1
    assert (source / "data/large.bin").exists()


def test_checkpoints_that_are_too_large_are_left_out_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MOST_CHECKPOINT_BYTES", 10)
    plan = plan_workspace(build(tmp_path))
    assert any("model.pt" in warning for warning in plan.warnings)
    assert not (make_workspace(plan, tmp_path / "work") / "model.pt").exists()


def test_the_hash_follows_the_code_and_nothing_else(tmp_path: Path) -> None:
    source = build(tmp_path)
    before = plan_workspace(source).code_hash
    (source / "log.txt").write_text("a line")
    assert plan_workspace(source).code_hash == before
    (source / "train.py").write_text("print(2)")
    assert plan_workspace(source).code_hash != before


def test_what_a_trial_wrote_through_a_link_is_named(tmp_path: Path) -> None:
    source = build(tmp_path)
    plan = plan_workspace(source)
    since_s = time.time() + 5
    assert written_outside(plan, since_s) == ()
    os.utime(source / "data/large.bin", (since_s + 1, since_s + 1))
    assert written_outside(plan, since_s) == ("data/large.bin",)


def test_our_own_folder_inside_is_left_out(tmp_path: Path) -> None:
    source = build(tmp_path)
    (source / "out").mkdir()
    plan = plan_workspace(source, without=[source / "out"])
    assert "out" not in {entry.path for entry in plan.entries}


def test_a_path_beside_the_folder_leads_where_it_did(tmp_path: Path) -> None:
    source = build(tmp_path)
    (tmp_path / "shared.txt").write_text("beside")
    copy = make_workspace(plan_workspace(source), tmp_path / "elsewhere" / "work")
    assert copy.name == source.name
    assert (copy / ".." / "shared.txt").read_text() == "beside"
    remove_workspace(copy)
    assert not (tmp_path / "elsewhere" / "work").exists()
    assert (tmp_path / "shared.txt").read_text() == "beside"
