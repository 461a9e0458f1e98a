"""Token sequences of any lengths -> rows of one length with several each, and the data that separates them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotloop.core.errors import UsageError

IGNORED = -100
"""The label that torch's cross entropy, and so Transformers' models, ignore."""
ADDITIVE_KINDS = (None, "eager", "sdpa")
"""Attention of a Transformers model that takes a four-dimensional mask as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Rows of packed sequences; B rows of T positions. Everything else is padding, at a row's end."""

    input_ids: torch.Tensor
    """(B, T) int64."""
    labels: torch.Tensor
    """(B, T) int64: the tokens again, for a loss that shifts them by one as Transformers' models do; -100 at padding
    and at the first token of each sequence, which would be predicted from another sequence's last."""
    position_ids: torch.Tensor
    """(B, T) int64: from 0 in each sequence, and in the padding."""
    sequence_ids: torch.Tensor
    """(B, T) int64: place in the given order of the sequence that a token belongs to, -1 at padding."""

    @property
    def padding_ratio(self) -> float:
        """Share of the positions that is padding, 0..1."""
        return float((self.sequence_ids < 0).double().mean())

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """int32: where each sequence, and each row's padding, begins among the flattened B x T positions, and the end.

        For attention of variable lengths over the flattened batch (flash-attn's ``cu_seqlens``).
        """
        first = (self.position_ids == 0).flatten().nonzero().flatten()
        end = torch.tensor([self.position_ids.numel()], device=first.device)
        return torch.cat([first, end]).to(torch.int32)

    def allowed(self) -> torch.Tensor:
        """(B, 1, T, T) bool: which positions (last) one (second last) may attend to: its sequence's, up to it."""
        same = self.sequence_ids[:, None, :, None] == self.sequence_ids[:, None, None, :]
        return same & torch.ones_like(same[0, 0]).tril()

    def inputs_for(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The model's keyword arguments: input_ids, labels, position_ids and attention_mask, on the model's device.

        The mask is ``allowed()`` as a term added to the attention scores: 0, or the smallest number of the model's
        floating type. Without both of the last two, tokens would attend to other sequences. Raises UsageError where the
        model's ``forward`` does not take them by name, or its attention is known to read the mask differently.
        """
        wanted = inspect.signature(model.forward).parameters
        missing = [name for name in ("position_ids", "attention_mask") if name not in wanted]
        if missing:
            raise UsageError(
                f"{type(model).__name__}.forward takes no {' and no '.join(missing)}: packed sequences would see each "
                "other; pass position_ids, and allowed() or cu_seqlens, to its attention by hand, or group samples by "
                "length instead (hotloop.LengthGroupedSampler)"
            )
        kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
        if kind not in ADDITIVE_KINDS:
            raise UsageError(
                f"{type(model).__name__} uses {kind!r} attention, which takes no four-dimensional mask: load it "
                "with attn_implementation='sdpa', or pass cu_seqlens to it by hand"
            )
        weight = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
        scores = torch.zeros(self.allowed().shape, dtype=weight.dtype)
        inputs = {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "attention_mask": scores.masked_fill(~self.allowed().cpu(), torch.finfo(weight.dtype).min),
        }
        if "labels" in wanted:
            inputs["labels"] = self.labels
        return {name: value.to(weight.device) for name, value in inputs.items()}


def pack_sequences(sequences: Iterable[Sequence[int] | torch.Tensor], length: int, *, pad_id: int = 0) -> PackedBatch:
    """Pack the token ids of several samples into as few rows of ``length`` as first-fit-decreasing needs.

    >>> packed = pack_sequences([[1, 2, 3], [4, 5], [6]], 4)
    >>> packed.input_ids.tolist(), packed.position_ids.tolist()
    ([[1, 2, 3, 6], [4, 5, 0, 0]], [[0, 1, 2, 0], [0, 1, 0, 1]])

    As ``collate_fn``: ``lambda samples: pack_sequences([one["input_ids"] for one in samples], 512)``, and in the loop
    ``model(**packed.inputs_for(model))``. For a causal language model, each token's loss is what it would be unpacked;
    the mean over all labels is that of the unpacked batch. It uses at most 11/9 of the fewest possible rows, plus one
    (Dosa 2007). Raises UsageError for a sequence that is empty, longer than ``length``, or not of integers.
    """
    rows_ids = [_to_ids(one, place, length) for place, one in enumerate(sequences)]
    if not rows_ids:
        raise UsageError("pack_sequences: there is no sequence; give at least one")
    rows: list[list[int]] = []
    free: list[int] = []
    for place in sorted(range(len(rows_ids)), key=lambda one: -len(rows_ids[one])):
        size = len(rows_ids[place])
        row = next((at for at, left in enumerate(free) if left >= size), len(rows))
        if row == len(rows):
            rows.append([])
            free.append(length)
        rows[row].append(place)
        free[row] -= size
    input_ids = torch.full((len(rows), length), pad_id)
    labels = torch.full((len(rows), length), IGNORED)
    position_ids = torch.zeros(len(rows), length, dtype=torch.int64)
    sequence_ids = torch.full((len(rows), length), -1)
    for row, places in enumerate(rows):
        begin = 0
        for place in places:
            ids = rows_ids[place]
            at = slice(begin, begin + len(ids))
            input_ids[row, at] = labels[row, at] = ids
            labels[row, begin] = IGNORED
            position_ids[row, at] = torch.arange(len(ids))
            sequence_ids[row, at] = place
            begin += len(ids)
        position_ids[row, begin:] = torch.arange(length - begin)
    return PackedBatch(input_ids=input_ids, labels=labels, position_ids=position_ids, sequence_ids=sequence_ids)


def _to_ids(sequence: Any, place: int, length: int) -> torch.Tensor:
    ids = torch.as_tensor(sequence)
    if not 1 <= ids.numel() <= length and ids.dim() == 1:
        raise UsageError(
            f"pack_sequences: sequence {place} has {len(ids)} tokens; give 1 to {length}, or another length"
        )
    if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UsageError(
            f"pack_sequences: sequence {place} has shape {tuple(ids.shape)} and type {ids.dtype}; give ids in one "
            "dimension, not padded"
        )
    return ids.to(device="cpu", dtype=torch.int64)
