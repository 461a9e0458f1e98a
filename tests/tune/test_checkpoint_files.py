"""Which files of a checkpoint are torn: by their form, without running anything in them."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from hotloop.change.tune.checkpoint_files import find_damage, list_checkpoint_files, name_kind, split_torn


def write_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/0", b"x" * 10_000)


def write_tensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"123456789")


WRITERS = {
    "a.pt": write_archive,
    "a.safetensors": write_tensors,
    "model.pkl": lambda path: path.write_bytes(pickle.dumps(list(range(1000)))),
    "state.json": lambda path: path.write_text('{"step": 4, "rest": []}'),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_is_cut_off_is_torn(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    assert find_damage(path) == ""
    os.truncate(path, path.stat().st_size - 5)
    assert find_damage(path)
    os.truncate(path, 0)
    assert find_damage(path) == "empty"


def test_damage_inside_an_archive_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_archive(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"xxxx", b"yyyy", 1))
    assert "damaged" in find_damage(path)


def test_what_no_undisturbed_run_keeps_is_left_over(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "checkpoint-40"
    folder.mkdir(parents=True)
    write_archive(folder / "model.pt")
    (folder / "model.pt.tmp").write_bytes(b"PK")
    (folder / "state.json").write_text("{")
    (tmp_path / "settings.json").write_text("{")
    files = list_checkpoint_files(tmp_path)
    assert len(files) == 3
    kept = {name_kind(f"out/checkpoint-10/{name}") for name in ("model.pt", "state.json")}
    torn, left_over = split_torn(tmp_path, files, kept)
    assert torn == ["out/checkpoint-40/state.json"]
    assert left_over == ["out/checkpoint-40/model.pt.tmp"]
