"""A batch or a module's inputs -> identities and sizes, read of exact tensors in exact containers alone.

Nothing of a person's object is called, compared, iterated or kept. A subclass of tuple, list or dict is read through
the base's own functions, which its class cannot replace.
"""

from __future__ import annotations

import random
import time
from ctypes import c_ubyte
from types import GetSetDescriptorType
from typing import Any

import torch

from hotloop.core.events import (
    ALL_TENSORS,
    COPIED_FRAMES,
    COPIED_IDS,
    COPIED_KEY_MASK,
    COPIED_MASK,
    HAS_INPUT,
    HAS_SEQUENCES,
    MOST_COPY_BYTES,
    NEEDS_GRADIENTS,
    ON_DEVICE,
    sizes,
)

MOST_ENTRIES, MOST_NAMES = 16, 2_000
MOST_PAUSE_NS = 500_000_000
MASK_KEYS = ("attention_mask", "mask", "padding_mask", "src_key_padding_mask")
TOKEN_KEYS = ("input_ids", "tokens", "ids", "src", "x")
LIBRARY_BATCHES = {
    ("transformers.tokenization_utils_base", "BatchEncoding"): "data",
    ("transformers.feature_extraction_utils", "BatchFeature"): "data",
    ("transformers.image_processing_base", "BatchFeature"): "data",
}
"""Batches of well-known libraries, by the exact class: the attribute in which each keeps its dict."""
GRAPH_BATCHES = ("torch_geometric.data.batch",)
COPYING_NS, COPYING_PARTS = 20_000_000, 2_000
"""Copies may take this long, and this fraction of the time since: 0.05 %. Then the next one comes after a time that
is drawn, so that nothing that recurs is hit every time."""

_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_mro_of = type.__dict__["__mro__"].__get__
_names_of = type.__dict__["__dict__"].__get__
_all_memory = memoryview((c_ubyte * (1 << 47)).from_address(0)).cast("B")
"""Reads of a tensor's memory are slices of this: a call of ctypes would be seen by a person's audit hook."""
key_of = object.__hash__
"""An object's address, in another form: ``id`` would be seen by a person's audit hook."""
_tuple_at, _tuple_length = tuple.__getitem__, tuple.__len__
_list_at, _list_length = list.__getitem__, list.__len__
_dict_length, _dict_values = dict.__len__, dict.values
_short_name = type.__dict__["__name__"].__get__
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_INTEGERS = {torch.int64: 8, torch.int32: 4, torch.int16: 2}
_MASKS = {torch.int64: 8, torch.int32: 4, torch.bool: 1, torch.uint8: 1, torch.float32: 4}
_draw = random.Random(0).random
_clock = time.perf_counter_ns


def is_tensor(value: Any) -> bool:
    """A tensor of torch's own, by exact type."""
    kind = type(value)
    return kind is _Tensor or kind is _Parameter


def is_kind(kind: type, base: type) -> bool:
    """Whether a class is another one or derives from it, by identity: a metaclass may compare as it likes."""
    return any(owner is base for owner in _mro_of(kind))


def dict_of(value: Any) -> dict[str, Any]:
    """An object's own attributes, past whatever its class calls by the name of ``__dict__``; none for one without."""
    for owner in _mro_of(type(value)):
        descriptor = _names_of(owner).get("__dict__")
        if type(descriptor) is GetSetDescriptorType:
            held = descriptor.__get__(value)
            return held if type(held) is dict and has_plain_keys(held) else {}
    return {}


def has_plain_keys(held: dict[Any, Any]) -> bool:
    """Whether looking a name up compares it with plain strings alone."""
    return len(held) <= MOST_NAMES and all(type(key) is str for key in held)


def parts_of(batch: Any) -> Any:
    """The first entries of an exact tuple, list or dict, or of a batch that a library keeps in a dict; else none."""
    kind = type(batch)
    if is_kind(kind, tuple):
        return [_tuple_at(batch, i) for i in range(min(MOST_ENTRIES, _tuple_length(batch)))]
    if kind is list:
        return [_list_at(batch, i) for i in range(min(MOST_ENTRIES, _list_length(batch)))]
    named = dict_of_batch(batch)
    return () if named is None or _dict_length(named) > MOST_ENTRIES else tuple(_dict_values(named))


def dict_of_batch(batch: Any) -> dict[Any, Any] | None:
    """The dict that a batch is, or that a library's batch keeps; None for all else."""
    kind = type(batch)
    if is_kind(kind, dict):
        held: dict[Any, Any] = batch
        return held
    name = LIBRARY_BATCHES.get((module_of_type(kind), _short_name(kind)))
    if name is None:
        return None
    value = dict_of(batch).get(name)
    return value if type(value) is dict else None


def first_tensor(batch: Any, depth: int = 0) -> torch.Tensor | None:
    """The first tensor with a dimension, three levels deep."""
    if is_tensor(batch):
        return batch if batch.dim() else None
    if depth < 3:
        for part in parts_of(batch):
            tensor = first_tensor(part, depth + 1)
            if tensor is not None:
                return tensor
    return None


def leading(tensor: Any) -> tuple[int, int]:
    """The first two lengths of a tensor; 0 for what is not there."""
    if tensor is None or tensor.is_nested:
        return (0, 0) if tensor is None else (tensor.size(0), 0)
    shape = tensor.shape
    return (shape[0] if len(shape) else 0), (shape[1] if len(shape) > 1 else 0)


def named(batch: Any, names: tuple[str, ...]) -> Any:
    """The first tensor that a batch, or a dict in it, has under one of these names, with the name; None without."""
    mapping = dict_of_batch(batch)
    if mapping is None:
        if type(batch) is list or type(batch) is tuple:
            mapping = next((part for part in parts_of(batch)[:4] if type(part) is dict), None)
        if mapping is None:
            return None
    if _dict_length(mapping) > MOST_ENTRIES:
        return None
    # Not looked up: a key of a person's own class would be compared.
    held = {key: value for key, value in dict.items(mapping) if type(key) is str and is_tensor(value)}
    return next(((name, held[name]) for name in names if name in held), None)


def describe_batch(batch: Any) -> tuple[int, int, int, int]:
    """Flags, samples that it declares, leading sizes, and the sizes of its sequences.

    ``samples that it declares``: of a batch of graphs their number, below 0 the length of the lists that it is made of.
    """
    if _function_modes():
        return 0, 0, 0, 0
    kind = type(batch)
    if (kind is list or kind is tuple) and batch and type(batch[0]) is _Tensor and type(batch[-1]) is _Tensor:
        # As nearly every batch is: tensors in a row, no names.
        shape = batch[0].shape if not batch[0].is_nested else ()
        if len(shape) > 1:
            word = sizes(shape[0], shape[1])
            return HAS_INPUT | HAS_SEQUENCES, -len(batch), word, word
    tensor = first_tensor(batch)
    first, second = leading(tensor)
    flags = HAS_INPUT if tensor is not None else 0
    declared = 0
    if kind is list or kind is tuple:
        declared = -_listed(batch)
    elif module_of_type(kind) in GRAPH_BATCHES:
        # The class is made per kind of graph; its count is in the object.
        count = dict_of(batch).get("_num_graphs")
        declared = count if type(count) is int else 0
    held, tokens = named(batch, TOKEN_KEYS), tensor
    if held is not None:
        tokens = held[1]
    if tokens is None or tokens.is_nested or tokens.dim() < 2:
        return flags, declared, sizes(first, second), 0
    return flags | HAS_SEQUENCES, declared, sizes(first, second), sizes(*leading(tokens))


def _listed(batch: Any) -> int:
    """Samples of a batch that lists them one by one; 0 where its lists differ in length."""
    parts = [part for part in parts_of(batch)[:8] if type(part) is list or type(part) is tuple]
    if not parts:
        return len(batch)
    return len(parts[0]) if all(len(part) == len(parts[0]) for part in parts) else 0


def memory_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor on the host."""
    address = tensor.data_ptr()
    return bytes(_all_memory[address : address + tensor.nbytes])


def identify(tensor: torch.Tensor) -> tuple[int, int]:
    """A number by which the same tensor with the same contents is known again, and its flags.

    The address of the object alone would not do: it is given to another one as soon as the object is gone. Of a tensor
    on the host a few bytes of its contents count, of one on a device its memory's address.
    """
    try:
        version = tensor._version
    except RuntimeError:  # an inference tensor counts none
        version = 0
    try:
        if tensor.is_cpu and tensor.is_contiguous() and (address := tensor.data_ptr()):
            length = tensor.nbytes
            begin = address + (length >> 4 << 3)
            seen = bytes(_all_memory[begin : min(begin + 64, address + length)])
            return hash((key_of(tensor), version, address, seen)), HAS_INPUT
        return hash((key_of(tensor), version, tensor.data_ptr())), HAS_INPUT | ON_DEVICE
    except (RuntimeError, NotImplementedError):  # it is not in plain memory
        return hash((key_of(tensor), version)), HAS_INPUT | ON_DEVICE


def identify_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Flags, the first tensor's identity, and that of all inputs (0 where one is not a tensor)."""
    if _function_modes():
        return 0, 0, 0
    if len(args) == 1 and not kwargs:
        tensor = args[0]
        kind = type(tensor)
        if kind is _Tensor or kind is _Parameter:
            number, flags = identify(tensor)
            return flags | ALL_TENSORS | (NEEDS_GRADIENTS if tensor.requires_grad else 0), number, number
        return 0, 0, 0
    flags = identity = 0
    every = []
    values = (*args, *kwargs.values())
    for value in values[:MOST_ENTRIES]:
        if is_tensor(value):
            number, own = identify(value)
            every.append(number)
            flags |= NEEDS_GRADIENTS if value.requires_grad else 0
            if not identity:
                identity, flags = number, flags | own
    together = 0
    if every and len(every) == len(values):
        flags, together = flags | ALL_TENSORS, hash(tuple(every))
    return flags, identity, together


def needs_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """NEEDS_GRADIENTS where an input does."""
    if _function_modes():
        return 0
    values = (*args, *kwargs.values())[:MOST_ENTRIES]
    return NEEDS_GRADIENTS if any(is_tensor(value) and value.requires_grad for value in values) else 0


def size_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int, int]:
    """Flags, and the sizes of a module's inputs as of a batch."""
    if _function_modes():
        return 0, 0, 0
    single = args[0] if len(args) == 1 and not kwargs else None
    if type(single) is list and len(single) > 1 and is_tensor(single[0]):
        picture = single[0]
        if picture.dim() == 3 and picture.shape[0] in (1, 3, 4) and picture.is_floating_point():
            return 0, sizes(len(single), 0), 0
    flags, _, lead, sequences = describe_batch(args if args else kwargs)
    return flags & HAS_SEQUENCES, lead, sequences


class Copier:
    """Takes a copy of what says which tokens are padding, now and then: of host memory, at most MOST_COPY_BYTES."""

    __slots__ = ("_began_ns", "_due_ns", "_misses", "_ring", "_spent_ns")

    def __init__(self, ring: Any) -> None:
        self._ring = ring
        self._due_ns = self._spent_ns = self._misses = 0
        self._began_ns = _clock()

    def look(self, batch: Any) -> None:
        """At a batch that is trained on."""
        now_ns = _clock()
        if now_ns < self._due_ns or _function_modes():
            return
        if self._find(batch):
            self._misses = 0
        else:  # nothing to copy: look less and less often
            self._misses += 1
            self._due_ns = now_ns + min(MOST_PAUSE_NS, 1 << min(self._misses + 12, 60))
        cost_ns = _clock() - now_ns
        self._spent_ns += cost_ns
        if self._spent_ns > COPYING_NS + (now_ns - self._began_ns) // COPYING_PARTS:
            self._due_ns = now_ns + int(2 * COPYING_PARTS * cost_ns * _draw())

    def _find(self, batch: Any) -> bool:
        held, masked = named(batch, TOKEN_KEYS), named(batch, MASK_KEYS)
        tokens = first_tensor(batch) if held is None else held[1]
        if masked is not None and masked[1].dim() == 2 and _fits(masked[1], _MASKS):
            mask = masked[1]
            if tokens is None or tokens.is_nested or tokens.dim() < 2 or tokens.shape[:2] == mask.shape:
                is_key = masked[0] != "attention_mask" and mask.dtype == torch.bool
                return self._copy(mask, COPIED_KEY_MASK if is_key else COPIED_MASK, _MASKS[mask.dtype])
        if tokens is None or tokens.is_nested or tokens.dim() not in (2, 3) or tokens.shape[1] < 2:
            return False
        if tokens.dim() == 2 and _fits(tokens, _INTEGERS):
            return self._copy(tokens, COPIED_IDS, _INTEGERS[tokens.dtype])
        if tokens.dim() == 3 and _fits(tokens, {torch.float32: 4}):
            return self._copy(tokens, COPIED_FRAMES, 4 * tokens.shape[2])
        return False

    def _copy(self, tensor: torch.Tensor, what: int, item: int) -> bool:
        rows, columns = tensor.shape[0], tensor.shape[1]
        address = tensor.data_ptr()
        self._ring.copy(_all_memory[address : address + tensor.nbytes], what, rows, columns, item)
        return True


def _fits(tensor: torch.Tensor, kinds: dict[Any, int]) -> bool:
    return (
        tensor.dtype in kinds
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and 0 < tensor.nbytes <= MOST_COPY_BYTES
        and bool(tensor.data_ptr())
    )


def module_of_type(kind: type) -> str:
    """The module that a class says it is of; empty where it does not say it plainly."""
    name = _names_of(kind).get("__module__")
    return name if type(name) is str else ""


def type_name(kind: type) -> str:
    return str(type.__dict__["__qualname__"].__get__(kind))
