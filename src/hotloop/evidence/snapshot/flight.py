"""Dumps of torch's flight recorder, one for each rank -> the collective in which the ranks differ.

torch (NCCL's watchdog, or a program that calls ``torch._C._distributed_c10d._dump_fr_trace``) writes them to files that
environment variables name, when a collective exceeds its time.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop.core.errors import RecordingError
from hotloop.evidence.trace.plain_pickle import load_plain

from . import proc
from .family import Member

FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DEFAULT_FILE = "/.cache/torch/comm_lib_trace_rank_"
"""In the user's home, where torch writes from 2.8 on if no variable says so."""
MOST_BYTES = 64 << 20
UNEVEN = re.compile(r"gather|scatter|all_?to_?all")
"""Collectives whose sizes may differ between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A collective as one rank enqueued it; the ranks of ``group`` count their own from 1 on."""

    group: str
    number: int
    name: str
    sizes: tuple[tuple[int, ...], ...]
    is_over: bool

    def describe(self) -> str:
        return f"{self.name} of {' and '.join(str(list(size)) for size in self.sizes) or 'nothing'}"

    @property
    def signature(self) -> tuple[object, ...]:
        """What has to be the same on all ranks."""
        return (self.name,) if UNEVEN.search(self.name) else (self.name, self.sizes)


def collect_dumps(ranks: Sequence[Member]) -> dict[int, tuple[Operation, ...]]:
    """The operations in the dump of each rank, oldest first, by rank; ranks that have written none since they started
    are left out."""
    dumps = {}
    for member in ranks:
        default = member.environment.get("HOME", "/tmp") + DEFAULT_FILE
        prefix = next((member.environment[name] for name in FILE_VARIABLES if name in member.environment), default)
        path = Path(f"/proc/{member.pid}/root{prefix}{member.rank}")
        try:
            about = path.stat()
            is_new = stat.S_ISREG(about.st_mode) and about.st_mtime > proc.started_s(member.process)
            if is_new and about.st_size <= MOST_BYTES and member.rank is not None:
                dumps[member.rank] = read_dump(path)
        except (OSError, RecordingError):  # half written, or no dump at all: as good as none
            continue
    return dumps


def read_dump(path: Path) -> tuple[Operation, ...]:
    """The collectives in a dump. Raises RecordingError if it is none."""
    content = load_plain(path)
    try:
        entries: list[dict[str, Any]] = content["entries"]  # type: ignore[index]
        return tuple(
            Operation(
                group=str(entry["process_group"][1])[:100],
                number=int(entry["collective_seq_id"]),
                name=str(entry["profiling_name"]).rpartition(":")[2][:100],
                sizes=tuple(tuple(int(length) for length in size) for size in entry["input_sizes"]),
                is_over=entry["state"] == "completed" or bool(entry.get("retired")),
            )
            for entry in entries
            if not entry.get("is_p2p")
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordingError(f"{path} is not a dump of torch's flight recorder: {error!r}") from error


def find_difference(dumps: Mapping[int, Sequence[Operation]]) -> tuple[str, tuple[int, ...]] | None:
    """The first collective of a group that is not the same on all ranks that list it; else the last one, if a rank has
    not reached it while others wait in it. With the ranks that differ from most; all, if none are more."""
    groups = dict.fromkeys(operation.group for operations in dumps.values() for operation in operations)
    for group in groups:
        by_rank = {
            rank: {operation.number: operation for operation in operations if operation.group == group}
            for rank, operations in dumps.items()
        }
        by_rank = {rank: known for rank, known in by_rank.items() if known}
        shared = set.intersection(*(set(known) for known in by_rank.values()))
        for number in sorted(shared):
            operations = {rank: known[number] for rank, known in by_rank.items()}
            counts = Counter(operation.signature for operation in operations.values())
            if len(counts) > 1:
                ((usual, most), (_, next_most)) = counts.most_common(2)
                differing = [rank for rank, its in operations.items() if its.signature != usual or most == next_most]
                says = "; ".join(f"rank {rank} runs {its.describe()}" for rank, its in sorted(operations.items())[:4])
                return f"collective {number} of group {group} differs: {says}", tuple(sorted(differing))
        lasts = {rank: known[max(known)] for rank, known in by_rank.items()}
        furthest = max(lasts.values(), key=lambda operation: operation.number)
        late = sorted(rank for rank, operation in lasts.items() if operation.number < furthest.number)
        if late and not furthest.is_over:
            names = ", ".join(str(rank) for rank in late)
            text = f"collective {furthest.number} of group {group}, {furthest.describe()}, has not been reached by "
            return f"{text}rank{'s' * (len(late) > 1)} {names}", tuple(late)
    return None
