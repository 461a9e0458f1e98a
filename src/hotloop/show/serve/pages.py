"""Data of runs -> HTML. Every name of a user's program is escaped here, or inserted as text by page.js."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from urllib.parse import quote

from hotloop import __version__
from hotloop.core.errors import RecordingError
from hotloop.show.report.text import blank_controls, format_counted, format_duration, shorten

from .listing import RunEntry, State
from .live import STATE_TONE, describe_state

COMMAND_LENGTH = 200
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"<>]*)">')


def draw_list(runs: Path, entries: Sequence[RunEntry], left_count: int) -> str:
    """All runs, to filter, to open and to compare."""
    if not entries:
        again = "<meta http-equiv='refresh' content='5'>"
        start = "Record one: <code>hotloop run -- COMMAND</code>"
        return _draw_page("runs", f"{again}<p>No run under <code>{_text(runs)}</code> yet. {start}</p>")
    rows = "".join(_draw_row(number, entry) for number, entry in enumerate(entries))
    more = f"<p class='dim'>{format_counted(left_count, 'older run')} not shown.</p>" if left_count else ""
    body = f"""
<form action="/compare" method="get">
<div class="controls">
<label>Filter <input type="search" id="filter" autocomplete="off" aria-controls="runs"></label>
<button type="submit" id="compare">Compare two</button>
<span class="dim" id="count" role="status">{format_counted(len(entries), "run")}</span>
</div>
<div class="scroll" tabindex="0" role="region" aria-label="Runs">
<table class="numbers words runs" id="runs">
<thead><tr><th scope="col"><span class="hidden">compare</span></th><th scope="col">run</th><th scope="col">state</th>
<th scope="col" class="figure">steps</th><th scope="col" class="figure">step time</th><th scope="col">verdict</th>
<th scope="col" class="wide-only">command</th><th scope="col" class="wide-only">began</th></tr></thead>
<tbody>{rows}</tbody></table></div></form>{more}"""
    return _draw_page("runs", f"<h1>Runs</h1><p class='dim'>{_text(runs)}</p>{body}")


def _draw_row(number: int, entry: RunEntry) -> str:
    where = path_of(entry)
    detail = f"<small class='block'>{_text(entry.detail)}</small>" if entry.detail else ""
    steps = "" if entry.steps_count is None else f"{entry.steps_count:,}"
    time = "" if entry.step_ns is None else format_duration(entry.step_ns)
    began = "" if entry.started_wall_s is None else _format_time(entry.started_wall_s)
    command = shorten(" ".join(entry.command), COMMAND_LENGTH)
    return (
        f"<tr><td><input type='checkbox' name='run' value='{_text(_quoted(entry))}' id='run-{number}'"
        f" aria-label='compare {_text(entry.name)}'></td>"
        f"<th scope='row'><a href='{_text(where)}'>{_text(shorten(entry.name, 120))}</a></th>"
        f"<td class='t-{STATE_TONE[entry.state]}'>{entry.state.value}{detail}</td><td class='figure'>{steps}</td>"
        f"<td class='figure'>{time}</td><td>{_text(entry.verdict)}</td>"
        f"<td class='wide-only'><code>{_text(command)}</code></td><td class='wide-only'>{began}</td></tr>\n"
    )


def draw_run(entry: RunEntry) -> str:
    """A run: page.js updates it with every event while it trains, and moves on to the report once it is over."""
    command = shorten(" ".join(entry.command), 2000) or "no command was recorded"
    state = describe_state(entry)
    if entry.state is State.BROKEN:
        task, link = "", ""
    elif entry.state.is_live:
        task, link = (
            "data-follow='events'",
            "The figures cover the last steps. <a href='report'>Report of the steps so far</a>",
        )
    else:
        task, link = "data-next='report'", "<a href='report'>The report</a> is drawn; this takes a few seconds."
    body = f"""
<section class="verdict" aria-label="State">
<h1>{_text(shorten(entry.name, 200))}</h1>
<p class="lead t-{state["tone"]}" id="state" role="status">{_text(state["state"])}</p>
<p class="t-bad" id="problem" hidden></p>
<p class="command"><code>{_text(command)}</code></p>
<p id="report">{link}</p>
</section>
<div id="live" {task}>
<dl class="facts" id="facts"></dl>
<section aria-label="Step time" id="chart" hidden><h2>Step time</h2>
<figure class="plot"><svg viewBox="0 0 600 120" role="img" aria-label="Step time since this page was opened">
<polyline class="line own" points=""></polyline></svg><figcaption class="dim"></figcaption></figure></section>
{_draw_table("phases", "Where the last steps went", ("", "", "share", "mean"))}
{_draw_table("ranks", "Ranks", ("rank", "host", "steps", "step time", "largest phase", "memory", "last step"))}
</div>
<noscript><p>The figures need JavaScript; the report does not.</p></noscript>"""
    return _draw_page(entry.name, body, leads_back=True)


def _draw_table(name: str, title: str, header: Sequence[str]) -> str:
    """A table without rows, which stays hidden until page.js has some."""
    cells = "".join(f"<th scope='col'>{one}</th>" for one in header)
    return (
        f"<section id='{name}' aria-label='{title}' hidden><h2>{title}</h2>"
        f"<div class='scroll' tabindex='0' role='region' aria-label='{title}'><table class='numbers'>"
        f"<thead><tr>{cells}</tr></thead><tbody></tbody></table></div></section>"
    )


def draw_note(text: str) -> str:
    """A page that says one thing."""
    return _draw_page("no page", f"<p>{_text(shorten(text, 600))}</p>", leads_back=True)


def _draw_page(title: str, body: str, *, leads_back: bool = False) -> str:
    back = "<a href='/'>All runs</a>" if leads_back else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>hotloop: {_text(shorten(title, 100))}</title>
<link rel="stylesheet" href="/page.css"><script src="/page.js" defer></script></head>
<body><a class="skip" href="#main">Skip to the content</a>
<header><div class="bar"><p class="brand"><strong>hotloop</strong> {__version__}</p>{back}</div></header>
<main id="main" tabindex="-1">{body}</main></body></html>
"""


def path_of(entry: RunEntry) -> str:
    return f"/runs/{_quoted(entry)}/"


def _quoted(entry: RunEntry) -> str:
    """The name for an address, whatever bytes it has."""
    return quote(os.fsencode(entry.name), safe="")


def add_way_back(html: bytes) -> bytes:
    """A drawn report with a link to the list in its header."""
    return html.replace(b'<div class="actions"', b'<a href="/">All runs</a>\n    <div class="actions"', 1)


def policy_of(html: bytes) -> str:
    """The policy that a drawn page states itself: what it runs, by hash. Raises RecordingError where it has none."""
    found = _POLICY.search(html, 0, 4096)
    if found is None:
        raise RecordingError("the page that was drawn states no policy, so it is not shown")
    return found[1].decode("ascii") + "; frame-ancestors 'none'"


def _format_time(wall_s: float) -> str:
    try:
        return datetime.fromtimestamp(wall_s).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return ""


def _text(value: object) -> str:
    return escape(blank_controls(str(value)), quote=True)
