"""Padding, counted by hand beside what a copy says."""

from __future__ import annotations

from array import array

import pytest

from hotloop.agent.replay.counting import count_padding
from hotloop.core.events import COPIED_FRAMES, COPIED_IDS, COPIED_KEY_MASK, COPIED_MASK


def test_an_attention_mask_counts_its_ones() -> None:
    mask = array("q", [1, 1, 1, 0, 1, 1, 0, 0])
    assert count_padding(mask.tobytes(), COPIED_MASK, 2, 4, 8) == (5, 3, 6)


def test_a_key_mask_is_true_where_padded() -> None:
    assert count_padding(bytes([0, 0, 0, 1, 0, 0, 1, 1]), COPIED_KEY_MASK, 2, 4, 1) == (5, 3, 6)


def test_equal_values_at_the_ends_of_rows_are_padding_unless_they_stand_elsewhere() -> None:
    padded = array("q", [5, 6, 7, 0, 5, 6, 0, 0, 9, 8, 7, 6])
    assert count_padding(padded.tobytes(), COPIED_IDS, 3, 4, 8) == (9, 3, 12)
    text = array("q", [0, 6, 7, 0, 5, 6, 0, 0, 9, 0, 7, 6])
    assert count_padding(text.tobytes(), COPIED_IDS, 3, 4, 8) == (12, 0, 12)


def test_one_value_at_the_end_of_a_small_batch_is_a_token() -> None:
    ids = array("i", range(1, 33))
    ids[7] = 0
    assert count_padding(ids.tobytes(), COPIED_IDS, 4, 8, 4) == (32, 0, 32)
    ids[6] = 0
    assert count_padding(ids.tobytes(), COPIED_IDS, 4, 8, 4) == (30, 2, 32)


def test_frames_that_are_hardly_padded_are_no_sequences() -> None:
    assert count_padding(array("f", [1.0] * 12).tobytes(), COPIED_FRAMES, 2, 3, 8) is None


def test_time_first_is_read_the_other_way_round() -> None:
    columns = array("q", [5, 5, 6, 6, 7, 0, 0, 0])  # four steps of two samples
    assert count_padding(columns.tobytes(), COPIED_IDS, 4, 2, 8, sample_dim=1) == (5, 3, 6)


def test_frames_of_zeros_at_the_end_are_padding() -> None:
    frames = array("f", [1, 2, 3, 4, 0, 0, 1, 1, 0, 0, 0, 0])  # two samples, three frames of two features
    assert count_padding(frames.tobytes(), COPIED_FRAMES, 2, 3, 8) == (3, 3, 4)


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (2, 4, 0), (3, 4, 8), (-1, 4, 8)])
def test_a_shape_that_is_not_the_copys_counts_nothing(shape: tuple[int, int, int]) -> None:
    assert count_padding(bytes(64), COPIED_IDS, *shape) is None
