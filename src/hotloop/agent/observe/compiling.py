"""torch.compile's own counters -> a fact, and its start and end callbacks -> time in the current row."""

from __future__ import annotations

import sys
from time import time
from typing import Any

from hotloop.core.stack_layout import Place

from .guard import guarded
from .places import is_user_file

MAX_REASONS = 16
LIMIT_WORDS = ("recompile limit exceeded", "recompile_limit reached", "cache_size_limit reached")
"""How torch 2.13 and, in the other two, older ones say that a function was compiled too often."""


@guarded
def compile_facts(where: Place | None) -> dict[str, Any] | None:
    """Graphs, breaks and recompiles so far, with reasons and places; None while nothing was compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None or not hasattr(utils, "counters"):  # it may be half imported by another thread
        return None
    counters = utils.counters
    graphs = int(counters["stats"].get("unique_graphs", 0)) if "stats" in counters else 0
    frames = int(counters["frames"].get("total", 0)) if "frames" in counters else 0
    if not graphs and not frames:
        return None
    breaks = dict(counters["graph_break"]) if "graph_break" in counters else {}
    recompiles: list[list[Any]] = []
    count = 0
    metrics = list(getattr(utils, "_compilation_metrics", ()))
    for metric in metrics:
        reason = getattr(metric, "recompile_reason", None)
        if not reason or _hit_limit(getattr(metric, "fail_reason", "")):
            continue
        count += 1
        if len(recompiles) < MAX_REASONS:
            recompiles.append([str(reason)[:400], _place(metric)])
    return {
        "kind": "compile",
        "used": True,
        "where": where,
        "graphs": graphs,
        "graph_breaks": sum(int(n) for n in breaks.values()),
        "break_reasons": _break_reasons(utils, list(breaks)[:MAX_REASONS]),
        "recompiles": count,
        "recompile_reasons": recompiles,
        "limit": _limit(metrics, counters),
    }


def _limit(metrics: list[Any], counters: Any) -> list[Any] | None:
    """The guard that failed when a function reached the limit of recompilations, where the function is, and how many
    seconds ago (place and age None where torch no longer holds them). None where none reached it."""
    for metric in metrics:
        if _hit_limit(getattr(metric, "fail_reason", "")):
            # A compilation that never began names no function; the ones of the same frame before it do.
            frame = str(getattr(metric, "compile_id", "")).rpartition("/")[0]
            same = (one for one in metrics if str(getattr(one, "compile_id", "")).rpartition("/")[0] == frame)
            place = next((place for one in same if (place := _place(one)) is not None), None)
            started_us = getattr(metric, "start_time_us", None)
            reason = str(getattr(metric, "recompile_reason", None) or "unknown")[:400]
            return [reason, place, None if started_us is None else time() - started_us * 1e-6]
    unimplemented = counters.get("unimplemented", {})
    return ["unknown", None, None] if any(map(_hit_limit, list(unimplemented))) else None


def _hit_limit(text: object) -> bool:
    return any(words in str(text).lower() for words in LIMIT_WORDS)


def _break_reasons(utils: Any, counted: list[Any]) -> list[list[Any]]:
    """Every counted reason with the user's line; the counter's text names none when the compiled module is torch's."""
    stacks = {
        str(getattr(one, "reason", "")): getattr(one, "user_stack", ())
        for one in list(getattr(utils, "graph_break_reasons", ()))
    }
    found = []
    for reason in map(str, counted):
        stack = next((stack for text, stack in stacks.items() if text and (text in reason or reason in text)), ())
        found.append([reason[:400], _place_in(reason) or _place_on(stack)])
    return found


def _place_on(stack: Any) -> Place | None:
    """The innermost user's line of a stack of traceback.FrameSummary, else None."""
    for frame in reversed(list(stack)):
        if frame.lineno is not None and is_user_file(frame.filename):
            return (frame.filename, frame.lineno, frame.name)
    return None


def _place(metric: Any) -> Place | None:
    filename, line = getattr(metric, "co_filename", None), getattr(metric, "co_firstlineno", None)
    if not filename or line is None or not is_user_file(str(filename)):
        return None
    return (str(filename), int(line), str(getattr(metric, "co_name", "?")))


def _place_in(reason: str) -> Place | None:
    """The user's line that a break's text names ('... File "x.py", line 3, in f'), else None."""
    found: Place | None = None
    for line in reason.splitlines():
        line = line.strip()
        if line.startswith('File "') and ", line " in line:
            filename, _, rest = line[6:].partition('", line ')
            number, _, function = rest.partition(", in ")
            if number.strip().isdigit() and is_user_file(filename):
                found = (filename, int(number), function.split()[0] if function.split() else "?")
    return found
