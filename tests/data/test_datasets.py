"""Samples over token files, and an order of batches that the number of ranks does not change."""

import json
import pickle
from array import array
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import hotloop
from hotloop.ahead.data.datasets import permute_index
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


@settings(max_examples=40)
@given(count=st.integers(1, 400), key=st.integers(0, 1 << 70))
def test_a_permutation_holds_every_index_once(count: int, key: int) -> None:
    assert sorted(permute_index(at, count, key) for at in range(count)) == list(range(count))


def loaders(dataset: Any, world_size: int, state: dict[str, Any] | None, **more: Any) -> list[Any]:
    made = [hotloop.ElasticLoader(dataset, rank=rank, world_size=world_size, **more) for rank in range(world_size)]
    for one in made:
        if state is not None:
            one.load_state_dict(state)
    return made


def samples_of(batches: list[Any], tokens: list[int], seq_length: int) -> list[int]:
    """Which samples the batches hold, found again by their first token."""
    place = {token: at for at, token in enumerate(tokens)}
    return [place[int(row[0])] // seq_length for batch in batches for row in batch]


@pytest.mark.parametrize("shuffle", [True, False])
def test_two_then_four_then_three_ranks_see_each_sample_once_in_one_order(shuffle: bool, tmp_path: Path) -> None:
    tokens = save_tokens(tmp_path / "t", 1609)
    dataset = hotloop.TokenDataset(tmp_path / "t", 8)
    chosen = {"batch_size": 3, "shuffle": shuffle, "seed": 5, "epochs": 2}
    state, seen = None, []
    for world_size, steps in ((2, 7), (4, 9), (3, None)):
        ranks = loaders(dataset, world_size, state, **chosen)
        parts = [list(islice(iter(one), steps)) for one in ranks]
        for step in zip(*parts, strict=True):
            seen += samples_of(list(step), tokens, 8)
        states = [one.state_dict() for one in ranks]
        assert all(one == states[0] for one in states)
        state = states[0]
    (alone,) = loaders(dataset, 1, None, batch_size=1, shuffle=shuffle, seed=5, epochs=2)
    assert seen == samples_of(list(alone), tokens, 8)
    first, second = seen[: len(dataset)], seen[len(dataset) :]
    assert sorted(first) == sorted(second) == list(range(201))
    assert (first == list(range(201))) is not shuffle
    assert (first == second) is not shuffle


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cursor_counts_what_was_given_not_what_waits(workers: int, tmp_path: Path) -> None:
    save_tokens(tmp_path / "t", 1609)
    dataset = hotloop.TokenDataset(tmp_path / "t", 8)
    whole = [batch.tolist() for batch in hotloop.ElasticLoader(dataset, 4, epochs=1)]
    first = hotloop.ElasticLoader(dataset, 4, epochs=1, num_workers=workers)
    taken = [batch.tolist() for batch in islice(iter(first), 5)]
    assert first.state_dict()["cursor"] == 20
    second = hotloop.ElasticLoader(dataset, 4, epochs=1, num_workers=workers)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert len(second) == len(whole) - 5
    assert taken + [batch.tolist() for batch in second] == whole


def test_a_window_shuffles_neighbours_alone(tmp_path: Path) -> None:
    save_tokens(tmp_path / "t", 1609)
    loader = hotloop.ElasticLoader(hotloop.TokenDataset(tmp_path / "t", 8), 4, shuffle_window=20)
    order = [loader.sample_at(position) for position in range(402)]
    for epoch in (order[:201], order[201:]):
        assert sorted(epoch) == list(range(201))
        assert all(at // 20 == index // 20 for at, index in enumerate(epoch))
        assert len({tuple(index % 20 for index in epoch[at : at + 20]) for at in range(0, 200, 20)}) == 10
    assert order[:201] != order[201:]


def test_a_state_of_another_order_is_refused(tmp_path: Path) -> None:
    save_tokens(tmp_path / "t", 1609)
    dataset = hotloop.TokenDataset(tmp_path / "t", 8)
    state = hotloop.ElasticLoader(dataset, 4, seed=1).state_dict()
    with pytest.raises(UsageError, match="the state has seed=1, this loader 2"):
        hotloop.ElasticLoader(dataset, 4, seed=2).load_state_dict(state)
    with pytest.raises(UsageError, match="samples_count=201, this loader 100"):
        hotloop.ElasticLoader(hotloop.TokenDataset(tmp_path / "t", 16), 4, seed=1).load_state_dict(state)
    with pytest.raises(UsageError, match="cursor is -1"):
        hotloop.ElasticLoader(dataset, 4, seed=1).load_state_dict({**state, "cursor": -1})
    for wrong, words in (
        ({"rank": 2, "world_size": 2}, "give a rank below world_size"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"drop_last": True}, "drop_last: ElasticLoader itself defines the order"),
    ):
        with pytest.raises(UsageError, match=words):
            hotloop.ElasticLoader(dataset, **{"batch_size": 4, **wrong})  # type: ignore[arg-type]


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
