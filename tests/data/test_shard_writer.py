"""Shards: where they end, what their index says, and that they go on from any state."""

import random
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.ahead.data.shard_writer import ShardWriter

from .small import read_folder, read_pair


def fill(folder: Path, lengths: list[int], most_tokens: int, group: int) -> ShardWriter:
    """Documents of these lengths, their tokens counted up, ``group`` of them at a time."""
    writer, token = ShardWriter(folder, "int32", most_tokens), 0
    for first in range(0, len(lengths), group):
        part = array("i", lengths[first : first + group])
        writer.add(array("i", range(token, token + sum(part))).tobytes(), part)
        token += sum(part)
    writer.finish()
    return writer


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=30),
    most_tokens=st.integers(1, 40),
    group=st.integers(1, 30),
)
def test_shards_end_between_documents_whatever_the_groups(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], most_tokens: int, group: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    writer = fill(folder, lengths, most_tokens, group)
    documents = read_folder(folder)
    assert [len(one) for one in documents] == lengths
    assert [token for one in documents for token in one] == list(range(sum(lengths)))
    full = 0
    for shard in writer.shards:
        inner = [len(one) for one in read_pair(folder / shard.name)]
        assert (shard.documents_count, shard.tokens_count) == (len(inner), sum(inner))
        assert sum(inner) <= most_tokens or len(inner) == 1
        assert full == 0 or full + inner[0] > most_tokens
        full = sum(inner)
    assert not list(folder.glob("*.lengths"))


def test_a_writer_goes_on_from_every_state(tmp_path: Path) -> None:
    random.seed(0)
    lengths = [random.randint(1, 9) for _ in range(40)]
    whole = tmp_path / "whole"
    whole.mkdir()
    fill(whole, lengths, 25, 1)
    for stop in range(0, 40, 3):
        folder = tmp_path / f"stop{stop}"
        folder.mkdir()
        first = ShardWriter(folder, "int32", 25)
        states, token = [], 0
        for length in lengths[: stop + 5]:  # five more documents than the state knows
            states.append((first.sync(), token))
            first.add(array("i", range(token, token + length)).tobytes(), array("i", [length]))
            token += length
        first.close()
        state, token = states[stop] if stop < len(states) else states[-1]
        second = ShardWriter(folder, "int32", 25)
        second.resume(state)
        for length in lengths[stop:]:
            second.add(array("i", range(token, token + length)).tobytes(), array("i", [length]))
            token += length
        second.finish()
        assert {one.name: one.read_bytes() for one in folder.iterdir()} == {
            one.name: one.read_bytes() for one in whole.iterdir()
        }
