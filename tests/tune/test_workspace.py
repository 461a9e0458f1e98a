"""The working copy: what is copied, linked and left out, and that the user's files stay as they are."""

import errno
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.change.tune import workspace
from hotloop.change.tune.trials import write_files
from hotloop.change.tune.workspace import (
    WorkspaceError,
    changed_code,
    changed_files,
    code_outside,
    make_workspace,
    plan_workspace,
    remove_workspace,
    written_outside,
)


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


def test_what_a_trial_wrote_through_a_link_is_named(tmp_path: Path) -> None:
    source = build(tmp_path)
    plan = plan_workspace(source)
    since_s = time.time() + 5
    assert written_outside(plan, since_s) == ()
    os.utime(source / "data/large.bin", (since_s + 1, since_s + 1))
    assert written_outside(plan, since_s) == ("data/large.bin",)


def test_a_file_that_takes_our_own_output_is_not_called_overwritten(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from hotloop.change.tune.workspace import plan_workspace, written_outside\n"
        "plan, since_s = plan_workspace(Path.cwd()), time.time() - 1\n"
        "Path('other.txt').write_text('new'); print('a line', flush=True)\n"
        "print(*written_outside(plan, since_s), file=sys.stderr)"
    )
    (tmp_path / "other.txt").write_text("old")
    with (tmp_path / "out.txt").open("w") as out:
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.split() == ["other.txt"]


def test_a_path_beside_the_folder_leads_where_it_did(tmp_path: Path) -> None:
    source = build(tmp_path)
    (tmp_path / "shared.txt").write_text("beside")
    copy = make_workspace(plan_workspace(source), tmp_path / "elsewhere" / "work")
    assert copy.name == source.name
    assert (copy / ".." / "shared.txt").read_text() == "beside"
    remove_workspace(copy)
    assert not (tmp_path / "elsewhere" / "work").exists()
    assert (tmp_path / "shared.txt").read_text() == "beside"


def acts_of(source: Path) -> dict[str, str]:
    return {entry.path: entry.act for entry in plan_workspace(source).entries}


def test_nothing_is_written_through_a_linked_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    (source / "src/mypkg").mkdir(parents=True)
    (source / "src/mypkg/train.py").write_text("before")
    (source / "src/mypkg/model.py").write_text("beside")
    monkeypatch.setattr(workspace, "MOST_LISTED", 0)
    copy = make_workspace(plan_workspace(source), tmp_path / "work")
    assert (copy / "src").is_symlink()
    write_files(copy, {"src/mypkg/train.py": b"after"})
    assert (source / "src/mypkg/train.py").read_text() == "before"
    assert (copy / "src/mypkg/train.py").read_text() == "after"
    assert (copy / "src/mypkg/model.py").read_text() == "beside"
    write_files(copy, {"src/mypkg/model.py": b"after"})
    assert (source / "src/mypkg/model.py").read_text() == "beside"
    assert sorted(path.name for path in (source / "src/mypkg").iterdir()) == ["model.py", "train.py"]


def test_source_comes_before_data_however_much_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    for name in ("data", "src/mypkg", "wandb"):
        (source / name).mkdir(parents=True)
    (source / "src/mypkg/train.py").write_text("code")
    for number in range(9):
        for name in ("data/a", "data/b", "wandb/run"):
            (source / name).mkdir(exist_ok=True)
            (source / name / f"{number}.bin").write_bytes(b"data")
    monkeypatch.setattr(workspace, "MOST_SEEN", 8)
    monkeypatch.setattr(workspace, "MOST_COPIED_FILES", 4)
    plan = plan_workspace(source)
    acts = {entry.path: entry.act for entry in plan.entries}
    assert acts["src/mypkg/train.py"] == "copy"
    assert acts["wandb/run"] == "link"
    assert any("wandb/run" in warning for warning in plan.warnings)


def test_a_trial_runs_the_code_that_was_read_first(tmp_path: Path) -> None:
    source = build(tmp_path)
    (source / "train.py").chmod(0o750)
    os.utime(source / "train.py", (1_000_000, 1_000_000))
    plan = plan_workspace(source)
    (source / "train.py").write_text("print(2)")
    copy = make_workspace(plan, tmp_path / "work")
    assert (copy / "train.py").read_text() == "print(1)"
    assert (copy / "train.py").stat().st_mode & 0o777 == 0o750
    assert (copy / "train.py").stat().st_mtime == 1_000_000
    assert changed_code(plan) == ()
    assert changed_files(plan, ["train.py"]) == ("train.py",)


def test_code_that_is_linked_is_hashed_and_looked_at_again(tmp_path: Path) -> None:
    source = build(tmp_path)
    large = source / "large.py"
    large.write_bytes(b"#" * (workspace.SMALL_BYTES + 1))
    (tmp_path / "shared.py").write_text("shared")
    (source / "shared.py").symlink_to(tmp_path / "shared.py")
    plan = plan_workspace(source)
    assert {one.path.name for one in plan.watched} == {"large.py", "shared.py"}
    os.utime(large, (1_000_000, 1_000_000))
    assert changed_code(plan) == (), "only the time of the change is another one"
    (tmp_path / "shared.py").write_text("other")
    assert [one.path.name for one in changed_code(plan)] == ["shared.py"]


def test_code_outside_that_the_command_names_is_found(tmp_path: Path) -> None:
    source = build(tmp_path)
    for name in ("train.py", "layers.py", "large.yaml", "corpus.bin"):
        (tmp_path / name).write_text(name)
    command = ("python", "../train.py", "--config=../large.yaml", "../corpus.bin", "train.py", str(tmp_path), "")
    found = code_outside(command, source)
    assert {path.name for path in found} == {"train.py", "layers.py", "large.yaml"}
    assert all(path.parent == tmp_path for path in found)
    plan = plan_workspace(source, outside=found)
    (tmp_path / "layers.py").write_text("other")
    assert [file.path.name for file in changed_code(plan)] == ["layers.py"]


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("checkpoint.pth.tar", "copy"),
        ("model_best.pth.tar", "copy"),
        ("__0_0.distcp", "copy"),
        ("pytorch_model-00001-of-00002.bin", "copy"),
        ("optimizer.bin", "copy"),
        ("model_0.pkl", "copy"),
        ("train.bin", "link"),
        ("val.bin", "link"),
        ("images.pkl", "link"),
        ("out.log", "copy"),
        ("metrics.csv", "copy"),
        ("history.jsonl", "copy"),
        ("log.txt", "copy"),
    ],
)
def test_what_a_script_writes_over_is_copied(tmp_path: Path, name: str, act: str) -> None:
    (tmp_path / name).write_bytes(bytes(workspace.SMALL_BYTES + 1))
    assert acts_of(tmp_path)[name] == act


def test_logs_and_checkpoints_count_only_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MOST_CHECKPOINT_BYTES", 10)
    monkeypatch.setattr(workspace, "MOST_LOG_BYTES", 10)
    monkeypatch.setattr(workspace, "SMALL_BYTES", 1)
    for name, count in (("a.pt", 20), ("b.pt", 8), ("a.log", 20), ("b.log", 8)):
        (tmp_path / name).write_bytes(bytes(count))
    assert acts_of(tmp_path) == {"a.pt": "leave out", "b.pt": "copy", "a.log": "link", "b.log": "copy"}


def test_files_that_cannot_be_read_are_linked_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build(tmp_path)
    (source / "theirs.py").write_text("x")
    (source / "theirs.dat").write_text("x")
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "theirs" not in str(path) and real(path, mode))
    plan = plan_workspace(source)
    copy = make_workspace(plan, tmp_path / "work")
    assert (copy / "theirs.py").is_symlink()
    assert (copy / "theirs.dat").is_symlink()


def test_a_file_that_cannot_be_copied_is_passed_over_and_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = build(tmp_path)
    (source / "note.md").write_text("x")
    number = errno.EACCES

    def fail(*paths: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copy2", fail)
    copy = make_workspace(plan_workspace(source), tmp_path / "work")
    assert not (copy / "note.md").exists()
    assert (copy / "train.py").exists()
    number = errno.ENOSPC
    with pytest.raises(WorkspaceError, match="no space left"):
        make_workspace(plan_workspace(source), tmp_path / "other")
