"""What a user names as an output keeps its kind: links, pipes, devices, modes."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.output_file import open_whole


def write(path: Path, text: str = "new") -> None:
    with open_whole(path) as file:
        file.write(text.encode())


def break_off(path: Path) -> None:
    with open_whole(path) as file:
        file.write(b"half")
        raise ValueError("half way")


def test_a_link_stays_and_its_file_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    write(link)
    assert (link.is_symlink(), real.read_text(), stat.S_IMODE(real.stat().st_mode)) == (True, "new", 0o600)


def test_what_raises_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    with pytest.raises(ValueError, match="half way"):
        break_off(tmp_path / "a")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]


def test_a_pipe_gets_what_the_command_writes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    (tmp_path / "train.py").write_text("import torch\n")
    assert main(["lint", str(tmp_path / "train.py"), "--json", str(pipe)]) == 0
    reader.join(30)
    assert read[0].startswith("{")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
