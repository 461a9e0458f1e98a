"""The contract between the hooks in a training and hotloop's own process: one memory, one slot per event.

The memory is a header, a ring of slots, and a place for copies of parts of batches. A slot is eight words: the clock,
six arguments, and last its number with the event's code, so that a slot counts only once it is complete.
Nothing here imports anything that a training would not have: both sides load this file.
"""

from __future__ import annotations

import struct

MAGIC = 0x686C3031
"""First word of the memory: 'hl01'."""
SLOT = struct.Struct("=8q")
DATA = struct.Struct("=48sqq")
"""A slot of text: a part, ``part_of(number of its head, part)``, and the last word as in every slot."""
PART_BYTES = 48
HEADER_BYTES = 4096
SLOT_BYTES = SLOT.size
SLOTS = 1 << 16
RING_BYTES = SLOTS * SLOT_BYTES
COPY_AT = HEADER_BYTES + RING_BYTES
COPY_BYTES = 2 << 20
MOST_COPY_BYTES = 1 << 20
MEMORY_BYTES = COPY_AT + COPY_BYTES
CODE_BITS = 8
MOST_TEXT_BYTES = 256 << 10

HEADER = struct.Struct("=8q")
"""Magic word, pid, anchor of the clock, requests from outside, end of the newest copy, steps that were only counted."""
REQUEST_AT = 24
"""The request is one word: its number in the upper half, steps from bit 8 on, and below them bits for the content."""
WANTS_TRACE, WANTS_DEEP, WANTS_OFF, WANTS_ON = 1, 2, 4, 8
REQUEST_NAME = "request.json"
"""In the run folder: the newest request of ``hotloop attach``, for the ``hotloop run`` of each host."""
COPY_NUMBER_AT = 32
RESTED_AT = 40

(
    TEXT,  # a = length in bytes: so many slots of text follow, maybe with others between them
    PART,
    COPY,  # a = place in the copies' own ring, b = length in bytes, c = COPIED_*, d, e = rows and columns, f = item
    OWNER,  # another thread than before trains: what came so far belongs to nothing
    ITERATOR_IN,  # a = loader, b = iterators of it so far
    ITERATOR_OUT,  # a = loader, b = iterator
    BATCH_IN,  # a = iterator
    BATCH_OUT,  # a = iterator, b = flags, c = samples that it declares, d = leading sizes, e = sizes of sequences
    BATCH_END,  # a = iterator: there was no batch, or an error
    FETCH,  # a = wall ns of reading samples, b = thread CPU ns of all, c = collating, d = draws (-1, 0, 1), e = batches
    FORWARD_IN,  # a = module, b = flags, c = first input, d = all inputs, e = leading sizes, f = sizes of sequences
    FORWARD_OUT,  # a = module, b = 1 where it raised, c = of a new module's result: 1 a tensor, 2 one with gradients
    BACKWARD_IN,  # a = 1 where the graph is kept
    BACKWARD_OUT,  # a = 1 where it raised
    STEP_IN,  # a = optimizer
    STEP_OUT,  # a = optimizer, b = CPU ns of the process, 0 if it was not read
    SCALER_IN,  # a = optimizer
    SCALER_OUT,  # a = optimizer, b = 1 where it raised
    SCALER_WORK_IN,
    SCALER_WORK_OUT,
    PHASE_IN,  # a = field: a collective, a checkpoint, a copy to a device
    PHASE_OUT,  # a = field
    COLLECTED,  # a = ns, b = generation
    COMPILE_IN,
    COMPILE_OUT,
    GRAPH,  # a = ns of one call of a compiled graph, b = 1 where gradients are on
    INNER_BATCH,  # a = samples that a module inside the model got
    RECOMPUTED,  # a = ns of module calls inside backward
    FLAG,  # a = flag of rows, b = 1 on, 0 off
    LEFT_OUT,  # the time since the last row is hotloop's own
    RESTED,  # a = steps that were not timed since the last one, b = clock at the end of the last of them
    SKIPPED,  # a = forwards without gradients that were not timed since the last one
    END,  # how the interpreter ended: a = HOW_*
    TIMED,  # to the next of these one step is timed by the device's clock too: a = its number, 0 if none is
    DEVICE_TIMES,  # a = number of a timed step, b to e = device ns of forward, backward, optimizer, copies; -1 unknown
) = range(1, 36)

(
    GRAD, TRAINING, LEARNS, HAS_INPUT, ALL_TENSORS, SYNC_KNOWN, SYNCED, DRAWS, ON_DEVICE, FIRST_TIME, HAS_SEQUENCES,
    NEEDS_GRADIENTS, HIDES_MODULES, OPAQUE, NEW_WEIGHTS, SAME_WEIGHTS,
) = (1 << bit for bit in range(16))  # fmt: skip
"""Flags of FORWARD_IN and BATCH_OUT: whether gradients are on; whether the module is in training mode, and has
parameters; whether an input was identified, and whether all were; whether DDP or FSDP synchronizes gradients; whether
the module may draw random numbers; whether the input is on a device; whether the module is called for the first time;
whether the sizes of sequences are known; whether an input needs gradients; whether the module keeps other modules in
lists, where torch does not count their weights; and whether it has weights that are not plain tensors. With several
optimizers: whether its weights were changed since its last forward with gradients, or are still the same."""

EVENT_NS = 4_500
"""The cost of recording an event between torch's operators, which leave the caches cold (docs/overhead.md)."""

COPIED_MASK, COPIED_KEY_MASK, COPIED_IDS, COPIED_FRAMES = range(4)
"""What a copy contains: an attention mask, a mask of padding, numbers of tokens, or frames of float32 features."""

HOW_COMPLETED, HOW_EXCEPTION, HOW_INTERRUPTED = range(3)


def sizes(first: int, second: int) -> int:
    """Two lengths in one word.

    >>> split_sizes(sizes(8, 5))
    (8, 5)
    """
    return min(first, 0x7FFFFFFF) | min(second, 0x7FFFFFFF) << 32


def split_sizes(word: int) -> tuple[int, int]:
    return word & 0xFFFFFFFF, word >> 32 & 0x7FFFFFFF
