"""A batch -> how many samples, tokens and padding it holds, without ever waiting for a device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from hotloop.core.recording import UNKNOWN

MAX_DEPTH = 3
MASK_KEYS = ("attention_mask", "mask", "padding_mask", "src_key_padding_mask")
TOKEN_KEYS = ("input_ids", "tokens", "ids", "src", "x")
MAX_INSPECTED_ELEMENTS = 1 << 20


def first_tensor(batch: Any, depth: int = 0) -> torch.Tensor | None:
    """The first tensor with at least one dimension, looking into lists, tuples, dicts and plain objects' dicts."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() else None
    if depth >= MAX_DEPTH:
        return None
    if isinstance(batch, dict) or hasattr(batch, "items"):
        values: Any = batch.values()
    elif isinstance(batch, (list, tuple)):
        values = batch[:8]
    else:
        return None
    for value in values:
        found = first_tensor(value, depth + 1)
        if found is not None:
            return found
    return None


def leading_size(batch: Any) -> int | None:
    """Length of the leading dimension of a batch that is a tensor or begins with one, as nearly every batch; else None.

    Never raises. A nested tensor has no ``shape``, but it has this length.
    """
    kind = type(batch)
    first = batch[0] if (kind is list or kind is tuple) and batch else batch
    if type(first) is not torch.Tensor:
        return None
    try:
        return first.size(0)
    except (IndexError, RuntimeError):  # a scalar
        return None


def first_shape(batch: Any) -> torch.Size | tuple[int, ...] | None:
    """Shape of a batch that is a tensor or begins with one, and None for every other. Never raises.

    A nested tensor has none, and a scalar none that says anything.
    """
    kind = type(batch)
    first = batch[0] if (kind is list or kind is tuple) and batch else batch
    if type(first) is not torch.Tensor:
        return None
    try:
        return first.shape or None
    except RuntimeError:
        return None


def count_samples(batch: Any) -> int:
    """Length of the leading dimension of the batch's first tensor, or what the batch tells itself; 0 for neither."""
    size = leading_size(batch)
    if size is not None:
        return size
    declared = count_declared(batch)
    if declared:
        return declared
    tensor = first_tensor(batch)
    return 0 if tensor is None else tensor.size(0)


def count_declared(batch: Any) -> int:
    """Samples that a batch object tells itself: a batch of graphs in one (``num_graphs``); 0 where it does not.

    Its first tensor holds the nodes of all of them.
    """
    if isinstance(batch, (torch.Tensor, dict, list, tuple)):
        return 0
    count = getattr(batch, "num_graphs", None)
    return count if type(count) is int and count > 0 else 0


GRAPHS_UNKNOWN = -1
NO_GRAPHS = 0


def count_graphs(values: Sequence[Any]) -> int:
    """Graphs in the inputs of a model that takes many at once: their nodes, and for each node which graph it is of.

    NO_GRAPHS where nothing points to graphs; GRAPHS_UNKNOWN where something does, but how many is not sure. Reads host
    tensors only. The numbers of the graphs go up by ones from 0, node by node; labels of samples do not, or not often:
    so their count must stand among the inputs too, or the edges between the nodes.
    """
    nodes = next((v for v in values if isinstance(v, torch.Tensor) and v.dim()), None)
    if nodes is None or nodes.shape[0] < 2:
        return NO_GRAPHS
    numbers = [v for v in values if _is_integers(v)]
    edges = any(v.dim() == 2 and v.shape[0] == 2 and v.shape[1] > 2 for v in numbers if v is not nodes)
    for vector in (v for v in numbers if v.dim() == 1 and v.shape[0] == nodes.shape[0] and v is not nodes):
        if not _readable(vector):
            if edges:
                return GRAPHS_UNKNOWN
            continue
        steps = vector[1:] - vector[:-1]
        if int(vector[0]) == 0 and bool(((steps == 0) | (steps == 1)).all()) and int(vector[-1]) + 1 < len(vector):
            count = int(vector[-1]) + 1
            return count if edges or any(type(v) is int and v == count for v in values) else GRAPHS_UNKNOWN
    return GRAPHS_UNKNOWN if edges else NO_GRAPHS


def _is_integers(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)


def lists_samples(value: Any) -> bool:
    """Whether a model's input lists samples one by one, such as pictures of different sizes for a detector."""
    if not isinstance(value, (list, tuple)) or len(value) < 2 or not all(isinstance(v, torch.Tensor) for v in value):
        return False
    return all(v.dim() == 3 and v.shape[0] in (1, 3, 4) and v.is_floating_point() for v in value)


def leading_shape(batch: Any) -> tuple[int, int]:
    """Lengths of the first two dimensions of the batch's first tensor; 0 for what is not there."""
    tensor = first_tensor(batch)
    if tensor is None:
        return 0, 0
    is_even = tensor.dim() > 1 and not tensor.is_nested
    return tensor.size(0), tensor.size(1) if is_even else 0


def find_sample_dim(shape: Sequence[int], batch_sizes: Collection[int]) -> int | None:
    """Which of the two dimensions counts samples, 0 or 1: the one that is as long as a batch is known to be.

    None when neither is, or when each of them is another known length. A second dimension of length one says nothing.
    """
    is_leading, is_second = shape[0] in batch_sizes, shape[1] > 1 and shape[1] in batch_sizes
    if is_leading and is_second and shape[0] != shape[1] and len(batch_sizes) > 1:
        return None
    return 0 if is_leading else 1 if is_second else None


def count_listed(batch: Any) -> int:
    """Samples of a batch that lists them one by one, as ``tuple(zip(*samples))`` or the samples' own list; else 0.

    Samples of different sizes (pictures for a detector, graphs) cannot be stacked: no dimension counts them. All the
    lists in a batch must be of one length.
    """
    if not isinstance(batch, (list, tuple)) or not batch:
        return 0
    lists = [part for part in batch[:8] if isinstance(part, (list, tuple))]
    if not lists:
        return len(batch)
    return len(lists[0]) if all(len(part) == len(lists[0]) for part in lists) else 0


def inner_batch_size(args: Sequence[Any]) -> int | None:
    """Samples in the input of a torch module whose ``batch_first`` is False; None when it is not a batch of sequences.

    Such a module takes (time, sample, feature), or sequences that are packed.
    """
    value = args[0] if args else None
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return int(value.batch_sizes[0])  # always on the host
    if isinstance(value, torch.Tensor) and value.dim() == 3:
        return int(value.shape[1])
    return None


def sequence_key(batch: Any) -> str:
    """The name under which a batch that holds sequences keeps them; empty where they are its first tensor."""
    named, masked = _find_named(batch, TOKEN_KEYS), _find_named(batch, MASK_KEYS)
    if masked is not None and _is_padding_mask(masked[1], first_tensor(batch) if named is None else named[1]):
        return masked[0]
    return "" if named is None else named[0]


def padded_size(batch: Any, key: str) -> int:
    """Elements of the sequences in a batch, padding included, from their shape on any device; UNKNOWN without them."""
    named = _find_named(batch, (key,)) if key else None
    tensor = first_tensor(batch) if named is None else named[1]
    if tensor is None or tensor.is_nested or tensor.dim() < 2:
        return UNKNOWN
    shape = tensor.shape
    return shape[0] * shape[1]


def count_tokens(batch: Any, sample_dim: int = 0, *, holds_sequences: bool = False) -> tuple[int, int, int] | None:
    """(tokens, padding, elements if padded only to the longest sample) of a batch, or None when it holds no sequences.

    ``sample_dim`` says which dimension of a batch without a mask counts samples; the other one is time. Padding is read
    from an attention mask where the batch has one, else from equal trailing values of integer rows (or all-zero
    trailing frames of float sequences, once some were seen or where ``holds_sequences`` says so). Only host tensors are
    read.
    """
    named = _find_named(batch, TOKEN_KEYS)
    tokens = first_tensor(batch) if named is None else named[1]
    masked = _find_named(batch, MASK_KEYS)
    if masked is not None and _is_padding_mask(masked[1], tokens):
        return _count_mask(*masked)
    if sample_dim == 1 and tokens is not None and tokens.dim() >= 2:
        tokens = tokens.transpose(0, 1)
    if tokens is None or not _readable(tokens) or tokens.dim() < 2 or tokens.shape[1] < 2:
        return None
    if tokens.dim() == 2 and not tokens.is_floating_point() and tokens.dtype not in (torch.bool, torch.uint8):
        values, counts = torch.unique(tokens[:, -1], return_counts=True)
        pad = values[counts.argmax()]
        if int(counts.max()) * 4 < tokens.shape[0]:
            return tokens.numel(), 0, tokens.numel()
        padded = (tokens == pad).flip(1).cumprod(1).flip(1).bool()
        # A pad id is reserved: in categories or plain text the same value also stands elsewhere.
        reserved = int((tokens == pad).sum() - padded.sum()) * 1000 <= tokens.numel()
        # One value at the end of one row of a small batch is a token like any other.
        padded_count = int(padded.sum())
        if not reserved or padded_count < 2 or padded_count * 100 < tokens.numel() * 2:
            return tokens.numel(), 0, tokens.numel()
        return _count(~padded)
    if tokens.dim() == 3 and tokens.is_floating_point():
        filled = tokens.ne(0).any(2)
        padded = (~filled).flip(1).cumprod(1).flip(1).bool()
        if not holds_sequences and int(padded.sum()) * 100 < padded.numel() * 2:
            return None
        return _count(~padded)
    return None


def _is_padding_mask(mask: torch.Tensor, tokens: torch.Tensor | None) -> bool:
    """Whether a mask has an entry for every token of every sample: one of (time, time) says who may see whom."""
    if mask.dim() != 2 or not _readable(mask):
        return False
    return tokens is None or tokens.is_nested or tokens.dim() < 2 or tokens.shape[:2] == mask.shape


def _count_mask(name: str, mask: torch.Tensor) -> tuple[int, int, int]:
    """``count_tokens`` of a mask, in as few operations as it takes: it is asked for in many rows."""
    ones = int(torch.count_nonzero(mask))
    if name != "attention_mask" and mask.dtype == torch.bool and not bool(mask[:, 0].all()):
        return _count(~mask)  # key padding masks are True where padded
    if bool(mask[:, -1].any()):  # the longest sample fills it
        return ones, mask.numel() - ones, mask.numel()
    return _count(mask != 0)


def _count(kept: torch.Tensor) -> tuple[int, int, int]:
    lengths = kept.shape[1] - kept.flip(1).int().argmax(1)
    lengths = torch.where(kept.any(1), lengths, torch.zeros_like(lengths))
    tokens = int(kept.sum())
    return tokens, kept.numel() - tokens, int(lengths.max()) * kept.shape[0]


def _readable(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and type(tensor) is torch.Tensor
        and not tensor.is_nested
        and 0 < tensor.numel() <= MAX_INSPECTED_ELEMENTS
    )


def _find_named(batch: Any, names: tuple[str, ...]) -> tuple[str, torch.Tensor] | None:
    """The first of ``names`` under which a batch, or a dict in it, has a tensor, and that tensor."""
    if not (isinstance(batch, dict) or hasattr(batch, "items")):
        if isinstance(batch, (list, tuple)):
            for part in batch[:4]:
                if isinstance(part, dict):
                    return _find_named(part, names)
        return None
    for name in names:
        value = batch.get(name) if hasattr(batch, "get") else None
        if isinstance(value, torch.Tensor):
            return name, value
    return None
