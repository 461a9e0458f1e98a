"""Folders like those of /proc -> why a Python is not attached."""

import os
from pathlib import Path

import pytest

from hotloop.attach.child import ATTACH_VARIABLE, SITE
from hotloop.attach.unattached import UnattachedWatch, why_unattached


def process(
    folder: Path, command: tuple[str, ...], exe: str = "/usr/bin/python3.11", pid: int = 7, **variables: str
) -> Path:
    made = folder / str(pid)
    (made / "task" / str(pid)).mkdir(parents=True)
    (made / "exe").symlink_to(exe)
    (made / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
    (made / "environ").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in variables.items()))
    (made / "task" / str(pid) / "children").write_text("")
    return made


ATTACHED = {ATTACH_VARIABLE: "{}", "PYTHONPATH": f"{SITE}{os.pathsep}/mine"}


def test_a_python_with_the_attach_folder_is_attached(tmp_path: Path) -> None:
    assert why_unattached(process(tmp_path, ("python", "train.py"), **ATTACHED)) is None


def test_a_replaced_pythonpath_is_told_with_the_script_and_the_way_out(tmp_path: Path) -> None:
    command = ("/opt/python", "-u", "src/train.py", "--api-key", "s3cret")
    reason = why_unattached(process(tmp_path, command, HOME="/x", **ATTACHED | {"PYTHONPATH": "/mine"}))
    assert reason is not None
    assert "train.py was started with a PYTHONPATH that was replaced" in reason
    assert "hotloop.watch()" in reason
    assert "s3cret" not in reason
    assert "\n" not in reason


def test_an_emptied_environment_is_told(tmp_path: Path) -> None:
    reason = why_unattached(process(tmp_path, ("python3", "-m", "pkg.train"), PATH="/bin"))
    assert reason is not None
    assert "pkg.train was started without this environment (env -i, sudo" in reason


def test_a_python_with_hotloop_installed_needs_no_pythonpath(tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (site / "hotloop_attach.pth").write_text("")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text("")
    python.chmod(0o755)
    replaced = ATTACHED | {"PYTHONPATH": "/mine", "PATH": str(python.parent)}
    assert why_unattached(process(tmp_path, ("python", "train.py"), **replaced)) is None


@pytest.mark.parametrize("exe", ["/bin/bash", "/usr/bin/make"])
def test_other_programs_say_nothing(tmp_path: Path, exe: str) -> None:
    assert why_unattached(process(tmp_path, ("bash", "run.sh"), exe, PATH="/bin")) is None


def test_a_process_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert why_unattached(tmp_path / "8") is None
    assert why_unattached(process(tmp_path, ("python", "train.py"))) is None  # it is ending: no environment is left


def test_nothing_is_said_once_a_process_records(tmp_path: Path) -> None:
    parent = process(tmp_path / "proc", ("hotloop",), pid=os.getpid(), **ATTACHED)
    (parent / "task" / str(os.getpid()) / "children").write_text("7 ")
    process(tmp_path / "proc", ("python", "train.py"), PATH="/bin")
    folder = tmp_path / "processes"
    folder.mkdir()
    watch = UnattachedWatch(folder, tmp_path / "proc")
    assert watch.reason is None
    watch.tick()
    assert watch.reason is not None
    (folder / "one.hlr").write_text("")
    assert watch.reason is None
