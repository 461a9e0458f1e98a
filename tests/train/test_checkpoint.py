"""Checkpoints: whole or not there, damaged ones named and passed over, hostile ones refused, a full disk survived."""

import json
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.core.errors import UsageError
from hotloop.train.checkpoint import (
    CheckpointError,
    CheckpointWriter,
    check_files,
    join_tree,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    model_state,
    open_checkpoint,
    restore_own,
    split_tree,
)
from hotloop.train.processes import Ranks

RANKS = Ranks(rank=0, world_size=1, device=torch.device("cpu"))


def build(width: int = 4) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, width)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, *steps: int, keep: int | None = None, asynchronous: bool = False, width: int = 4) -> Any:
    model, optimizer = build(width)
    writer = CheckpointWriter(folder, ranks=RANKS, keep=keep, asynchronous=asynchronous)
    for step in steps:
        trees = {"model": model_state(model), "optimizer": optimizer.state_dict()}
        writer.save(
            step=step, trees=trees, state={"optimizer_kind": "Adam", "optimizer_counts": [2]}, private={}, own_trees={}
        )
    writer.wait()
    return model


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_saved_state_comes_back_with_the_same_bits(tmp_path: Path, asynchronous: bool) -> None:
    saved = save(tmp_path, 3, asynchronous=asynchronous)
    model, optimizer = build()
    load_checkpoint(tmp_path / "step-00000003", model=model, optimizer=optimizer)
    assert torch.equal(model.weight, saved.weight)  # type: ignore[arg-type]
    assert optimizer.state_dict()["state"][0]["step"] == 1


class Part:
    """An object with a state of its own."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "unsent" not in state:
            raise ValueError("it was kept by another hook")
        self.state = state


def test_what_one_rank_keeps_for_itself_comes_back_or_the_error_names_it(tmp_path: Path) -> None:
    model, optimizer = build()
    writer = CheckpointWriter(tmp_path, ranks=RANKS, keep=None, asynchronous=False)
    kept = {"unsent": {"layer.weight": torch.tensor([0.25, -3.0])}, "step": 7}
    writer.save(
        step=1,
        trees={"model": model_state(model), "optimizer": optimizer.state_dict()},
        state={"optimizer_kind": "Adam", "optimizer_counts": [2]},
        private={},
        own_trees={"compression-0": kept, "other": {"count": 1}},
    )
    checkpoint = open_checkpoint(tmp_path / "step-00000001")
    part = Part({})
    restore_own(checkpoint, {"compression-0": part})
    assert part.state["step"] == 7
    assert part.state["unsent"]["layer.weight"].tolist() == [0.25, -3.0]
    with pytest.raises(CheckpointError, match="contains no compression-1 for this rank"):
        restore_own(checkpoint, {"compression-1": part})
    with pytest.raises(CheckpointError, match="its other does not fit: it was kept by another hook"):
        restore_own(checkpoint, {"other": part})


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    model, optimizer = build()
    writer = CheckpointWriter(tmp_path, ranks=RANKS, keep=None, asynchronous=True)
    kept = model.weight.detach().clone()  # type: ignore[operator]
    trees = {"model": model_state(model), "optimizer": optimizer.state_dict()}
    writer.save(
        step=1, trees=trees, state={"optimizer_kind": "Adam", "optimizer_counts": [2]}, private={}, own_trees={}
    )
    with torch.no_grad():
        model.weight.zero_()  # type: ignore[operator]
    writer.wait()
    other, _ = build()
    load_checkpoint(tmp_path / "step-00000001", model=other)
    assert torch.equal(other.weight, kept)  # type: ignore[arg-type]


def test_only_the_newest_are_kept_and_leftovers_are_never_chosen(tmp_path: Path) -> None:
    torn = tmp_path / ".step-00000099.tmp"
    torn.mkdir()
    save(tmp_path, 1, 2, 10, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002", "step-00000010"]
    assert not torn.exists()
    (tmp_path / "step-00000020").mkdir()
    with pytest.warns(UserWarning, match=r"step-00000020/manifest\.json"):
        assert latest_checkpoint(tmp_path) == tmp_path / "step-00000010"
    assert latest_checkpoint(tmp_path / "nowhere") is None


def every_file(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_any_damaged_file_is_found_and_named(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    newest = tmp_path / "step-00000002"
    names = every_file(newest)
    assert len(names) == 5
    for name in names:
        file = newest / name
        content = file.read_bytes()
        middle = len(content) // 2
        for damaged in (
            content[:middle],
            content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            None,
        ):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(CheckpointError) as raised:
                check_files(newest)
            assert name in str(raised.value)
            with pytest.warns(UserWarning, match="skipped: "):
                assert latest_checkpoint(tmp_path) == tmp_path / "step-00000001"
            file.write_bytes(content)
    assert latest_checkpoint(tmp_path) == newest


def test_a_checkpoint_of_the_same_step_stays_and_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    save(tmp_path, 1)
    kept = (tmp_path / "step-00000001" / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="another training run already wrote this step there"):
        save(tmp_path, 1)
    assert (tmp_path / "step-00000001" / "manifest.json").read_bytes() == kept
    (tmp_path / "step-00000001" / "state.json").write_text("{")
    save(tmp_path, 1)
    assert (tmp_path / "damaged-1-step-00000001" / "state.json").read_text() == "{"
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000001"


def test_another_model_or_optimizer_is_refused_before_anything_changes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = tmp_path / "step-00000001"
    model, optimizer = build(5)
    kept = model.weight.detach().clone()  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=r"weight has shape \[4, 3\] and torch.float32 there, \[5, 3\]"):
        load_checkpoint(path, model=model, optimizer=optimizer)
    assert torch.equal(model.weight, kept)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="it contains bias, which this model does not have"):
        load_checkpoint(path, model=torch.nn.Linear(3, 4, bias=False))
    with pytest.raises(CheckpointError, match=r"this model has 0\.|it contains bias"):
        load_checkpoint(path, model=torch.nn.Sequential(torch.nn.Linear(3, 4)))
    same, _ = build()
    with pytest.raises(CheckpointError, match=r"Adam with \[2\] parameters in its groups there, SGD"):
        load_checkpoint(path, model=same, optimizer=torch.optim.SGD(same.parameters()))
    with pytest.raises(CheckpointError, match="contains no scheduler"):
        load_checkpoint(path, model=same, scheduler=object())


class Hostile:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("hostile-was-here",))


def rewrite(path: Path, name: str, content: bytes) -> None:
    """A file with other content, and a manifest that agrees: what an attacker would write."""
    from hotloop.train import checkpoint as module

    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("checksum")
    manifest["files"] |= module._describe(path, [path / name])
    manifest["checksum"] = module._sha256_of(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    check_files(path)


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, _ = build()
    save(tmp_path, 1)
    path = tmp_path / "step-00000001"
    index = pickle.loads((path / "tensors" / ".metadata").read_bytes())
    rewrite(path, "tensors/.metadata", pickle.dumps(Hostile()))
    with pytest.raises(CheckpointError, match=r"posix\.mkdir, which checkpoints do not need"):
        load_checkpoint(path, model=model)
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    for place in index.storage_data.values():
        place.relative_path = "../../elsewhere"
    rewrite(path, "tensors/.metadata", pickle.dumps(index))
    with pytest.raises(CheckpointError, match="elsewhere"):
        load_checkpoint(path, model=model)
    index.state_dict_metadata["model/weight"] = BytesStorageMetadata()  # DCP would unpickle what that names
    rewrite(path, "tensors/.metadata", pickle.dumps(index))
    with pytest.raises(CheckpointError, match="BytesStorageMetadata"):
        load_checkpoint(path, model=model)
    assert not (tmp_path / "hostile-was-here").exists()


@contextmanager
def most_bytes_of_a_file(size: int) -> Iterator[None]:
    """Writing more fails as on a full disk, with another number of the error."""
    kept, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_failed_write_is_one_error_and_older_checkpoints_stay(tmp_path: Path, asynchronous: bool) -> None:
    save(tmp_path, 1, width=400)
    with most_bytes_of_a_file(3000), pytest.raises(CheckpointError) as raised:
        save(tmp_path, 2, width=400, asynchronous=asynchronous)
    assert "step-00000002 could not be written" in str(raised.value)
    assert "File too large" in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000001"


def test_trees_come_back_and_what_cannot_be_kept_is_named() -> None:
    tree = {"a": [1, 2.5, float("inf"), None, True], "b": (torch.ones(2), {3: "x"}), "c": {1, 2}, "d": b"\x00\xff"}
    tensors: dict[str, torch.Tensor] = {}
    shape = json.loads(json.dumps(split_tree(tree, "t", tensors)))
    back = join_tree(shape, tensors)
    assert str(back) == str(tree)
    assert join_tree(split_tree({"$tensor": "x"}, "t", tensors), tensors) == {"$tensor": "x"}
    with pytest.raises(UsageError, match=r"t/f is a builtins\.function"):
        split_tree({"f": lambda: 0}, "t", tensors)
