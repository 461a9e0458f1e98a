"""The contract between the agent that records and the reader: the fields of a step row and the kinds of facts.

A recording is one append-only file of frames per process (frames.py, docs/formats.md). A frame holds either one
*step row*, which is ``len(STEP_FIELDS)`` little-endian int64, or one *fact*, a JSON object with a ``kind``.
"""

from __future__ import annotations

import json

UNKNOWN = -1
"""Value of a row field that was not measured (only fields whose comment says so may hold it)."""

TIME_FIELDS = (
    # Exclusive host time between start_ns and end_ns; these fourteen sum to end_ns - start_ns exactly.
    "other_ns",  # before anything happened in the window, and after optimizer, checkpoint, collectives
    "input_wait_ns",  # inside a DataLoader iterator's __next__
    "iterator_ns",  # creating a DataLoader iterator (worker start included)
    "h2d_ns",  # Tensor.to / cuda / copy_ to an accelerator (patched only where one exists)
    "forward_ns",  # outermost module call with gradients enabled
    "nograd_ns",  # outermost module call without gradients
    "backward_ns",
    "optimizer_ns",
    "communication_ns",  # collectives that the training's own code calls
    "checkpoint_ns",  # torch.save and its kin
    "after_input_ns",  # gap: last event was a batch (or copy); nothing of ours on the stack
    "after_forward_ns",  # gap: last event was a forward with gradients
    "after_nograd_ns",  # gap: last event was a forward without gradients
    "after_backward_ns",  # gap: last event was a backward
)
"""Exclusive host-time fields, in the order of the phase stack's slots."""

OTHER_WAIT_FIELD = "burst_input_ns"
"""What stack samples in a wait for a loader that does not feed backward count as; in rows, a part of the waits."""
SAMPLED_FIELDS = (*TIME_FIELDS, OTHER_WAIT_FIELD)
"""What a stack sample may count as."""
GAP_FIELDS = ("other_ns", "after_input_ns", "after_forward_ns", "after_nograd_ns", "after_backward_ns")
"""The time fields that make up the phase ``other``."""

STEP_FIELDS = (
    "index",  # number of the row in its process, from 0
    "closed_by",  # CLOSED_BY_*
    "optimizer_index",  # which optimizer closed it (order of first step), UNKNOWN for none
    "rows_merged",  # 1, or k for a block of k consecutive rows in a very long run (all fields are then sums)
    "start_ns",  # ns of perf_counter since the process anchor
    "end_ns",
    *TIME_FIELDS,
    # Spans that overlap the exclusive fields above.
    "burst_input_ns",  # part of input_wait+iterator inside a burst of no-grad forwards (see observe/phases.py)
    "burst_gap_ns",  # part of the gap fields inside such a burst
    "burst_h2d_ns",
    "bursts",  # how many bursts ended in this row
    "bursts_other_loader",  # of these, on data of their own: batches of a loader that does not feed backward, or, with
    # the model that is trained, in eval mode, tensors that it also had in an earlier row
    "bursts_eval_mode",  # of these, with the outermost module in eval mode
    "batches",  # batches fetched, from any loader
    "micro_batches",  # batches fetched from loaders that feed backward
    "iterators",  # DataLoader iterators created
    "forwards",  # outermost calls with gradients
    "nograd_forwards",
    "backwards",
    "retained_backwards",  # backwards called with retain_graph=True
    "synced_backwards",  # DDP forwards that requested gradient synchronization; UNKNOWN without DDP
    "repeated_forwards",  # outermost forwards on an input that an earlier forward of this row already had
    "repeated_forward_ns",
    "repeated_nograd_forwards",  # of these, without gradients
    "repeated_backwards",  # of these, with gradients and reached by a backward of this row
    "recompute_ns",  # time of module calls inside backward; UNKNOWN if nested modules were not watched
    "samples",  # leading batch dimension summed; UNKNOWN if never seen
    "padded_tokens",  # padding included, of all batches of the row, from their shapes; UNKNOWN without sequences
    # The next three are of all batches of a counted row, UNKNOWN in others; a block sums those of its counted rows.
    "tokens",  # without padding
    "padding_tokens",
    "longest_tokens",  # if each batch were padded only to its own longest sample
    "cpu_ns",  # CPU time of the whole process since it was last read: in this row, or, if rows are short, in this one
    # and those before it that hold 0 (it is read in every 8th or 32nd row: reading takes microseconds)
    "gc_ns",  # garbage collections on any thread
    "gc_count",
    "scaler_ns",  # GradScaler's own work (scale, unscale_, update), optimizer excluded
    "checkpoints",  # torch.save and kin called
    "collectives",
    "compile_ns",  # torch.compile at work during this row
    "compiles",  # frames compiled during this row
    "fetch_ns",  # dataset part of loading in this process (num_workers=0); 0 if none
    "fetch_cpu_ns",  # its thread CPU time, and time that it was ready but had no core
    "collate_ns",
    "fetch_batches",  # batches that fetch_ns and collate_ns cover
    # Accelerator time between event pairs; UNKNOWN without. Reported later by facts ``device_times``; the reader fills
    # it.
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_h2d_ns",
    "rss_bytes",  # last known resident memory
    "device_allocated_bytes",  # last known; UNKNOWN without accelerator
    "device_reserved_bytes",
    "flags",  # FLAG_*
)

DEVICE_TIME_FIELDS = {
    "forward_ns": "device_forward_ns",
    "backward_ns": "device_backward_ns",
    "optimizer_ns": "device_optimizer_ns",
    "h2d_ns": "device_h2d_ns",
}
"""Key of a ``device_times`` fact, which is also the time field of the host -> the field of the row that it fills."""

FIELD = {name: i for i, name in enumerate(STEP_FIELDS)}
"""Position of every field in a row."""

CLOSED_BY_OPTIMIZER = 0
CLOSED_BY_SCALER_SKIP = 1
CLOSED_BY_BACKWARD = 2
CLOSED_BY_END = 3
"""The last, incomplete row: what happened after the last step (``tail``)."""

FLAG_DEEP = 1
"""The row cost more than others: a deep window of ours recorded operators, or torch.profiler was on."""
FLAG_WATCHED_ALL = 2
"""Nested modules were watched during the whole row, so recompute_ns is known."""
FLAG_FOREIGN_PROFILER = 4


OUTCOME_FILE = "outcome.json"


def outcome_to_json(
    *,
    exit_code: int | None,
    signal: int | None,
    duration_s: float,
    oom_kills: int | None = None,
    unattached: str | None = None,
) -> str:
    """The text of the file. ``signal`` is the number of the signal that ended the command, ``oom_kills`` how many
    processes the kernel killed for memory meanwhile, ``unattached`` why no process recorded anything."""
    content = {
        "schema": "hotloop.outcome/1",
        "exit_code": exit_code,
        "signal": signal,
        "duration_s": duration_s,
        "oom_kills": oom_kills,
        "unattached": unattached,
    }
    return json.dumps(content)
