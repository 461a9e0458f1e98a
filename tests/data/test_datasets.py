"""Samples over token files."""

import json
import pickle
from array import array
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import hotloop
from hotloop.ahead.data.shard_writer import ShardWriter
from hotloop.ahead.data.token_folder import write_manifest
from hotloop.core.errors import UsageError


def save_tokens(folder: Path, count: int, token_type: str = "uint16", most_tokens: int = 100) -> list[int]:
    """A folder whose tokens count up by 7, in documents of 10; the tokens."""
    folder.mkdir()
    values = [at * 7 % 65_536 for at in range(count)]
    writer = ShardWriter(folder, token_type, most_tokens)
    for at in range(0, count, 10):
        part = values[at : at + 10]
        writer.add(array("H" if token_type == "uint16" else "i", part).tobytes(), array("i", [len(part)]))
    writer.finish()
    write_manifest(folder, {"token_type": token_type, "shards": [asdict(shard) for shard in writer.shards]})
    return values


@pytest.mark.parametrize("token_type", ["uint16", "int32"])
def test_samples_are_consecutive_parts_of_all_shards(token_type: str, tmp_path: Path) -> None:
    tokens = save_tokens(tmp_path / "t", 10_007, token_type, most_tokens=95)
    dataset = hotloop.TokenDataset(tmp_path / "t", 33, verify=True)
    assert len(dataset) == 10_006 // 33
    for index in (0, 1, 5, 100, len(dataset) - 1):
        assert dataset[index].tolist() == tokens[index * 33 : index * 33 + 34]
        assert dataset[index].dtype == torch.int64
    assert dataset[-1].tolist() == dataset[len(dataset) - 1].tolist()
    assert dataset.read_tokens(0, 10_007).tolist() == tokens
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    assert pickle.loads(pickle.dumps(dataset))[3].tolist() == dataset[3].tolist()


def test_damaged_and_unfinished_folders_are_refused(tmp_path: Path) -> None:
    save_tokens(tmp_path / "t", 500)
    with pytest.raises(UsageError, match="500 tokens, fewer than one sample of 500"):
        hotloop.TokenDataset(tmp_path / "t", 500)
    file = tmp_path / "t" / "tokens-00001.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-2] + b"xx")
    hotloop.TokenDataset(tmp_path / "t", 8)
    with pytest.raises(UsageError, match=r"tokens-00001\.bin is damaged: its SHA-256 differs"):
        hotloop.TokenDataset(tmp_path / "t", 8, verify=True)
    file.write_bytes(content[:-2])
    with pytest.raises(UsageError, match="has 198 bytes instead of 200"):
        hotloop.TokenDataset(tmp_path / "t", 8)
    manifest = tmp_path / "t" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("uint16", "int32"))
    with pytest.raises(UsageError, match="is damaged: its checksum differs"):
        hotloop.TokenDataset(tmp_path / "t", 8)
    manifest.write_text(json.dumps({"schema": "other"}))
    with pytest.raises(UsageError, match="its schema is 'other'"):
        hotloop.TokenDataset(tmp_path / "t", 8)
    manifest.unlink()
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        hotloop.TokenDataset(tmp_path / "t", 8)


def test_a_trainer_trains_on_it_and_resumes_to_the_bit(tmp_path: Path) -> None:
    save_tokens(tmp_path / "t", 1609)
    dataset = hotloop.TokenDataset(tmp_path / "t", 8)

    def train(steps: int, checkpoint: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(512, 4), torch.nn.Linear(4, 512))

        def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
            batch = batch % 512
            return torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(dataset, batch_size=4, shuffle=True)
        hotloop.Trainer(model, optimizer, step, checkpoint=checkpoint).fit(loader, max_steps=steps)
        return [parameter.detach().clone() for parameter in model.parameters()]

    whole = train(12, None)
    train(5, tmp_path / "kept")
    assert all(torch.equal(a, b) for a, b in zip(train(12, tmp_path / "kept"), whole, strict=True))
