"""A checked patch, kept in a folder and applied from there: whole, exact, or not at all."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.tune.patch import (
    FileChange,
    Patch,
    _diff,
    about_text,
    diff_text,
    load_patch,
)
from hotloop.cli import main
from hotloop.core.tuning import PatchCheck

BEFORE = (
    "import torch\r\nopt = torch.optim.AdamW(\r\n    p,\r\n)\r\n"
    + "".join(f"a{i} = {i}\r\n" for i in range(40))
    + "end"
)
AFTER = BEFORE.replace("    p,\r\n", "    p,\r\n    fused=True,\r\n").replace("end", "end = 1")
OTHER_BEFORE, OTHER_AFTER = "x = 1\ny = 2\n", "x = 1\nz = 3\ny = 2\n"
CHECK = PatchCheck(
    status="reproduced", reason="1.300x", techniques=("fused-optimizer",), files=("train.py",), n=4, speedup_ratio=1.3
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two files, and the folder of a tuning that changed both."""
    root = tmp_path / "project"
    (root / "lib").mkdir(parents=True)
    changes = []
    for name, before, after in (("lib/with space.py", OTHER_BEFORE, OTHER_AFTER), ("train.py", BEFORE, AFTER)):
        (root / name).write_bytes(before.encode())
        changes.append(
            FileChange(path=root / name, before=before.encode(), after=after.encode(), techniques=("fused-optimizer",))
        )
    (root / "train.py").chmod(0o755)
    (root / "notes.txt").write_text("mine")
    diff = "".join(_diff(c.path.relative_to(root).as_posix(), c.before.decode(), c.after.decode()) for c in changes)
    folder = root / ".hotloop" / "tune-1"
    folder.mkdir(parents=True)
    keep(folder, Patch(diff=diff, files=tuple(changes), left_out=()), CHECK)
    monkeypatch.chdir(root)
    return folder


def keep(folder: Path, patch: Patch, check: PatchCheck) -> None:
    (folder / "patch.diff").write_bytes(diff_text(patch, check).encode())
    (folder / "patch.json").write_text(about_text(patch, folder.parents[1], check))


def state(folder: Path) -> dict[str, bytes]:
    root = folder.parents[1]
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["last", "tune-1", ".hotloop/tune-1"])
def test_it_is_written_with_line_ends_and_permissions(
    kept: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(kept)
    assert main(["tune", "--apply", name]) == 0
    after = state(kept)
    assert after.pop("train.py") == AFTER.encode()
    assert after.pop("lib/with space.py") == OTHER_AFTER.encode()
    assert after == {key: value for key, value in before.items() if key in after}
    assert (kept.parents[1] / "train.py").stat().st_mode & 0o777 == 0o755
    error = capsys.readouterr().err
    assert "changed train.py: fused-optimizer" in error
    assert main(["tune", "--apply", name]) == 0


def test_what_the_command_says_takes_it_back(kept: Path) -> None:
    before = state(kept)
    assert main(["tune", "--apply", "last", "-q"]) == 0
    subprocess.run(["patch", "-R", "-s", "-p1", "--binary", "-i", ".hotloop/tune-1/patch.diff"], check=True)
    assert state(kept) == before


@pytest.mark.parametrize("tool", [["patch", "-s", "-p1", "--binary", "-i"], ["git", "apply"]])
def test_the_line_above_the_diff_is_none_of_it(kept: Path, tool: list[str]) -> None:
    subprocess.run([*tool, ".hotloop/tune-1/patch.diff"], check=True)
    assert (kept.parents[1] / "train.py").read_bytes() == AFTER.encode()
    assert (kept / "patch.diff").read_text().startswith("hotloop: reproduced: 1.300x\n--- a/lib/with space.py\t\n")


def change_about(**changes: Any) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        about = json.loads((folder / "patch.json").read_text())
        (folder / "patch.json").write_text(json.dumps({**about, **changes}))

    return act


def change_file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder.parents[1] / name
        path.write_bytes(change(path.read_bytes()))

    return act


def apply_one(folder: Path) -> None:
    (folder.parents[1] / "train.py").write_bytes(AFTER.encode())


def link(folder: Path) -> None:
    root = folder.parents[1]
    (root / "train.py").rename(root.parent / "elsewhere.py")
    (root / "train.py").symlink_to(root.parent / "elsewhere.py")


def climb(folder: Path) -> None:
    """A file outside, with the content that would fit."""
    about = json.loads((folder / "patch.json").read_text())
    about["files"][1]["path"] = "../elsewhere.py"
    change_about(files=about["files"])(folder)
    (folder.parents[2] / "elsewhere.py").write_bytes(BEFORE.encode())


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (change_file("train.py", lambda x: x + b"\n# more\n"), "train.py was changed since the patch was made"),
        (change_file("lib/with space.py", lambda x: x.replace(b"\n", b"\r\n")), "with space.py was changed since"),
        (change_file(".hotloop/tune-1/patch.diff", lambda x: x.replace(b"fused", b"fuzed")), "since it was checked"),
        (apply_one, "already applied to some of its files"),
        (link, "not a plain file below"),
        (climb, "not a plain file below"),
        (change_about(root="/elsewhere"), "was made in /elsewhere; change to that folder"),
        (change_about(check={"status": "not reproduced", "reason": "0.99x"}), "not reproduced: 0.99x"),
        (change_about(check={"status": "not checked", "reason": "the budget"}), "not checked: the budget"),
        (change_about(schema="hotloop.patch/9"), "not written by hotloop tune"),
        (change_about(files=[{"path": 3}]), "not written by hotloop tune"),
        (change_about(files=[]), "not written by hotloop tune"),
        (lambda folder: (folder / "patch.json").unlink(), "contains no patch.json"),
        (lambda folder: (folder / "patch.json").write_text("[" * 100_000), "not written by hotloop tune"),
    ],
)
def test_anything_that_does_not_fit_writes_nothing(
    kept: Path, act: Callable[[Path], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    act(kept)
    before = state(kept)
    assert main(["tune", "--apply", "last"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert state(kept) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such folder"),
        (["last", "--", "python", "train.py"], "takes no command"),
        ([], "no command to tune"),
    ],
)
def test_wrong_words(kept: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--apply", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_unchecked_patch_says_so_above_its_diff(kept: Path) -> None:
    patch = load_patch(kept, kept.parents[1]).patch
    text = diff_text(patch, replace(CHECK, status="not checked", reason="the budget\nwas used up"))
    assert text.splitlines()[0] == "hotloop: not checked: the budget was used up"
    assert diff_text(Patch(diff="", files=(), left_out=()), None) == ""
