"""torch.compile's own counters -> a fact, and its start and end callbacks -> time in the current row."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .guard import guarded
from .places import Place, is_user_file

if TYPE_CHECKING:
    from .session import Session

MAX_REASONS = 16


@guarded
def compile_facts(where: Place | None) -> dict[str, Any] | None:
    """Graphs, breaks and recompiles so far, with reasons and places; None while nothing was compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters = utils.counters
    graphs = int(counters["stats"].get("unique_graphs", 0)) if "stats" in counters else 0
    frames = int(counters["frames"].get("total", 0)) if "frames" in counters else 0
    if not graphs and not frames:
        return None
    breaks = dict(counters["graph_break"]) if "graph_break" in counters else {}
    recompiles: list[list[Any]] = []
    count = 0
    for metric in list(getattr(utils, "_compilation_metrics", ())):
        reason = getattr(metric, "recompile_reason", None)
        if not reason:
            continue
        count += 1
        place = _place(metric)
        if len(recompiles) < MAX_REASONS:
            recompiles.append([str(reason)[:400], place])
    return {
        "kind": "compile",
        "used": True,
        "where": where,
        "graphs": graphs,
        "graph_breaks": sum(int(n) for n in breaks.values()),
        "break_reasons": [[str(reason)[:400], _place_in(str(reason))] for reason in list(breaks)[:MAX_REASONS]],
        "recompiles": count,
        "recompile_reasons": recompiles,
    }


def _place(metric: Any) -> Place | None:
    filename, line = getattr(metric, "co_filename", None), getattr(metric, "co_firstlineno", None)
    if not filename or line is None:
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


@guarded
def watch_compilation(session: Session) -> None:
    """Ask torch.compile to tell when it starts and ends compiling; needs torch._dynamo.callback to be loaded."""
    handler = sys.modules["torch._dynamo.callback"].callback_handler
    handler.register_start_callback(lambda *_: session.compile_began())
    handler.register_end_callback(lambda *_: session.compile_ended())
