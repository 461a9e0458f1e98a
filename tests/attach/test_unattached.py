"""Folders like those of /proc -> why a Python is not attached."""

import os
from pathlib import Path

import pytest

from hotloop.agent.attach.child import ATTACH_VARIABLE, SITE, refuses_agent
from hotloop.agent.attach.unattached import UnattachedWatch, why_unattached


def process(
    folder: Path,
    command: tuple[str, ...],
    exe: str = "/usr/bin/python3.11",
    pid: int = 7,
    parent: int = 1,
    **variables: str,
) -> Path:
    made = folder / str(pid)
    made.mkdir(parents=True)
    (made / "exe").symlink_to(exe)
    (made / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in command))
    (made / "environ").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in variables.items()))
    (made / "stat").write_text(f"{pid} (a) name (x) S {parent} 1 1 0")
    return made


def install(root: Path, *, is_installed: bool = True) -> Path:
    """A Python of its own, with hotloop or without."""
    site, python = root / "lib" / "python3.11" / "site-packages", root / "bin" / "python"
    for folder in (site, python.parent):
        folder.mkdir(parents=True)
    if is_installed:
        (site / "hotloop_attach.pth").write_text("")
    python.touch(0o755)
    return python


ATTACHED = {ATTACH_VARIABLE: "{}", "PYTHONPATH": f"{SITE}{os.pathsep}/mine"}


def test_a_python_with_the_attach_folder_is_attached(tmp_path: Path) -> None:
    assert why_unattached(process(tmp_path, ("python", "train.py"), **ATTACHED)) is None


def test_a_replaced_pythonpath_is_told_with_the_script_and_the_way_out(tmp_path: Path) -> None:
    command = ("/opt/python", "-u", "src/train.py", "--api-key", "s3cret")
    reason = why_unattached(process(tmp_path, command, HOME="/x", **ATTACHED | {"PYTHONPATH": "/mine"}))
    assert reason is not None
    assert "because PYTHONPATH was replaced before train.py started" in reason
    assert "hotloop.watch()" in reason
    assert "s3cret" not in reason
    assert "\n" not in reason


def test_an_emptied_environment_is_told(tmp_path: Path) -> None:
    reason = why_unattached(process(tmp_path, ("python3", "-m", "pkg.train"), PATH="/bin"))
    assert reason is not None
    assert "pkg.train was started without this environment (env -i, sudo" in reason


def test_a_python_with_hotloop_installed_needs_no_pythonpath(tmp_path: Path) -> None:
    python = install(tmp_path / "venv")
    replaced = ATTACHED | {"PYTHONPATH": "/mine", "PATH": str(python.parent)}
    assert why_unattached(process(tmp_path, ("python", "train.py"), **replaced)) is None


def test_an_environment_that_holds_nothing_is_told(tmp_path: Path) -> None:
    assert why_unattached(process(tmp_path, ("python", "train.py"))) is not None


@pytest.mark.parametrize("exe", ["/bin/bash", "/usr/bin/make"])
def test_other_programs_say_nothing(tmp_path: Path, exe: str) -> None:
    assert why_unattached(process(tmp_path, ("bash", "run.sh"), exe, PATH="/bin")) is None


def test_a_process_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert why_unattached(tmp_path / "8") is None
    assert why_unattached(process(tmp_path, ())) is None  # it is ending: no command line is left


def test_nothing_is_said_once_a_process_records(tmp_path: Path) -> None:
    own = os.getpid()
    process(tmp_path / "proc", ("python", "hotloop"), pid=own)
    process(tmp_path / "proc", ("python", "hotloop"), pid=own + 1, parent=own, PATH="/bin")  # a fork of it
    process(tmp_path / "proc", ("bash", "start.sh"), "/bin/bash", pid=own + 2, parent=own, PATH="/bin")
    process(tmp_path / "proc", ("python", "other.py"), pid=own + 3, PATH="/bin")
    folder = tmp_path / "processes"
    folder.mkdir()
    watch = UnattachedWatch(folder, tmp_path / "proc")
    assert watch.reason is None
    watch.tick()
    assert watch.reason is None
    process(tmp_path / "proc", ("python", "train.py"), pid=own + 4, parent=own + 2, PATH="/bin")
    watch.tick()
    assert watch.reason is not None
    assert "train.py" in watch.reason
    apart = UnattachedWatch(folder, tmp_path / "proc")
    apart.apart = own + 4  # a process of hotloop's own
    apart.tick()
    assert apart.reason is None
    (folder / "one.hlr").write_text("")
    assert watch.reason is None


@pytest.mark.parametrize(
    ("words", "is_installed", "said"),
    [
        (["-u", "train.py"], False, None),
        (["train.py", "-I"], False, None),
        (["-m", "pkg", "-E"], False, None),
        (["-I", "train.py"], False, "started with -I, which ignores PYTHONPATH; remove the option, or install hotloop"),
        (["-uE", "train.py"], False, "started with -E, which ignores PYTHONPATH"),
        (["-I", "train.py"], True, None),
        (["-S", "train.py"], True, "started with -S, which keeps hotloop out of it; remove the option"),
    ],
)
def test_a_python_that_ignores_pythonpath_needs_hotloop_installed(
    words: list[str], is_installed: bool, said: str | None, tmp_path: Path
) -> None:
    python = install(tmp_path, is_installed=is_installed)
    reason = refuses_agent([str(python), *words], "")
    assert (reason is None) if said is None else said in (reason or "")
