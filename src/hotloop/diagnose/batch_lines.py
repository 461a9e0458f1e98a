"""RankAnalysis -> the lines of the user's code that make the batches of the training."""

from __future__ import annotations

from hotloop.core.analysis import Line, RankAnalysis
from hotloop.core.findings import Where
from hotloop.core.recording import GAP_FIELDS
from hotloop.diagnose.lines import BATCH, FEWEST_SAMPLES, field_lines, loop_places
from hotloop.diagnose.loading import main_loader
from hotloop.diagnose.measured import known_places


def batch_places(rank: RankAnalysis) -> tuple[Where, ...]:
    """Where the DataLoader that feeds the training was built; without one, what the loop calls to make a batch.

    For the latter the statement of the loop is read from the source, and the line below it that samples were seen in
    comes first. Empty where neither is known.
    """
    loader = main_loader(rank)
    if loader is not None:
        return known_places(loader.where)
    return known_places(_sampled_maker(rank), rank.batch_where)


def _sampled_maker(rank: RankAnalysis) -> Where | None:
    """The line below the loop's own statement that makes the batch, seen in most samples; None without samples."""
    if rank.batch_where is None:
        return None
    counts: dict[Where, int] = {}
    loop = loop_places(rank)
    for field_name in GAP_FIELDS:
        for line, kind in field_lines(rank, field_name):
            if kind == BATCH and _is_called_from(line, rank.batch_where) and not _is_in(line.where, loop):
                counts[line.where] = counts.get(line.where, 0) + line.samples
    most = max(counts, key=lambda where: counts[where], default=None)
    return most if most is not None and counts[most] >= FEWEST_SAMPLES else None


def _is_called_from(line: Line, place: Where) -> bool:
    return any((w.file, w.line) == (place.file, place.line) for w in line.stack[:-1])


def _is_in(where: Where, functions: frozenset[tuple[str, str]]) -> bool:
    return (where.file, where.function) in functions
