"""slow-start: much of the run passes before the first step ends."""

from __future__ import annotations

import os
import re

from hotloop.core.analysis import Analysis, Line, RunStart
from hotloop.core.findings import Finding, Severity
from hotloop.core.rules import rule
from hotloop.judge.diagnose.lines import FEWEST_SAMPLES, places
from hotloop.judge.diagnose.measured import format_share, format_time, severity_once, show_code

LEAST_RATIO, LEAST_NS = 0.10, 2_000_000_000
LONG_NS = 10_000_000_000
"""A start is reported from this part of the run and this time on, or if it takes this long by itself."""
KEPT_FILES = "it downloads: keep the files on a persistent disk"
TOKENS = "it tokenizes: keep the token ids"
IMPORTS = "it imports modules: delay imports that the first steps do not need"
_CAUSES = (
    (
        "waiting-for-ranks",
        re.compile(r"^torch\.distributed\b"),
        "the process waits for other ranks: look at the rank that arrives last",
    ),
    (
        "compiling",
        re.compile(r"^torch\.(_dynamo|_inductor|_functorch)\b"),
        "it compiles: keep the compiler's cache between starts",
    ),
    ("starting-device", re.compile(r"^torch\.cuda(\.[\w.]+)?:(_lazy_init|init)$"), "it starts the device"),
    ("importing", re.compile(r"^(importlib|_frozen_importlib|zipimport|<frozen importlib)"), IMPORTS),
    (
        "downloading",
        re.compile(r"^(socket|ssl|http|urllib|urllib3|requests|httpx|huggingface_hub)\b"),
        "it downloads: keep the files on a persistent disk",
    ),
    (
        "tokenizing",
        re.compile(r"^(tokenizers|sentencepiece|tiktoken)\b|token", re.IGNORECASE),
        "it tokenizes: keep the token ids",
    ),
)
_READING_LEAF = re.compile(r"^(torch\.utils\.data|multiprocessing|queue|selectors)\b")
"""A loop that waits for a loader's workers before the first step."""
_READS_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})
READING = (
    "reading-samples",
    "it reads samples: lengths, an index or batches that it skips. Save what it reads for the next start (a column "
    "of lengths, a saved index), or resume without reading",
)
_ASKS_A_PROCESS = re.compile(r"\.(recv\w*|poll|get|join|result|start|wait)\(|Process\(|Pool\(|spawn")
PROCESSES = (
    "waiting-for-processes",
    "it waits for processes that it starts. Start them before the imports and the model, fork them if nothing forbids "
    "it, or start fewer",
)
OF_EVERY_START = frozenset({"importing", "starting-device", "compiling", "unknown", "your-code"})
"""Also found in the first steps of a healthy training run: torch imports parts of itself when they are first used."""
OWN = ("your-code", "keep its result for the next start, or do it in parallel")


@rule("slow-start", "much of the run passes before the first step ends")
def slow_start(analysis: Analysis) -> Finding | None:
    """## What it does
    Measures the time from the import of torch to the end of the first step, less the time of a usual step, and names
    the lines of your code that take it: reading all samples for their lengths, skipping batches on resume, building
    indices, tokenizing, downloading, compiling, importing, waiting for other ranks.

    ## Why it costs
    Nothing trains in the meantime, and you pay for it at every start: each restart after a failure, each trial of a
    search.

    ## How to recognize it
    The start takes at least a tenth of the run and two seconds, or at least ten seconds. Stack samples are taken from
    the import of torch on.

    ## What to do
    The remedy depends on the cause that the title names. Save what the start computes: lengths as a column of the data
    set, an index or token ids in a file, compiled code in a cache. On resume, skip batches without reading them. Start
    slow work in a worker while the first steps run.

    ## When it is wrong
    The share refers to this run only. A one-minute start does not matter in a run that takes days: no saving is
    forecast, and the severity is one level lower than if the same share were lost in every step. If imports, compiling
    or your own code take less than ten seconds, the severity is info.
    """
    lead = analysis.lead
    start, left_out = lead.start, lead.excluded
    if start is None or left_out is None:
        return None
    run_ns = start.before_ns + left_out.run_ns
    ratio = start.ns / max(1, run_ns)
    if start.ns < LONG_NS and (ratio < LEAST_RATIO or start.ns < LEAST_NS):
        return None
    cause, remedy = _cause_of(start)
    shown = ""
    if start.lines:
        line = start.lines[0]
        shown = (
            f", {format_share(line.share_ratio)} of it at {os.path.basename(line.where.file)}:{line.where.line} in "
            f"{line.where.function}{show_code(line)}"
        )
    return Finding(
        title=f"{format_time(start.ns)} ({format_share(min(1.0, ratio))} of this run) passes from the import of torch "
        f"to the end of the first step{shown}" + (f": {remedy}" if remedy else ""),
        cost_ns=start.ns,
        cost_ratio=min(1.0, ratio),
        evidence={
            "cause": cause,
            "before_first_event_ns": start.before_ns,
            "first_step_ns": start.first_step_ns,
            "samples": sum(line.samples for line in start.lines),
        },
        where=places(start.lines),
        base="run",
        severity_override=Severity.INFO if cause in OF_EVERY_START and start.ns < LONG_NS else severity_once(ratio),
    )


def _cause_of(start: RunStart) -> tuple[str, str]:
    """The cause that most samples show, and the remedy."""
    votes: dict[tuple[str, str], float] = {}
    for line in start.lines:
        cause = _cause_of_line(line)
        votes[cause] = votes.get(cause, 0.0) + line.share_ratio
    if sum(line.samples for line in start.lines) < FEWEST_SAMPLES:
        return "unknown", ""
    return max(votes, key=lambda cause: votes[cause])


def _cause_of_line(line: Line) -> tuple[str, str]:
    is_import = re.match(r"(import|from)\s", line.text.strip()) is not None
    if is_import or (line.leaf.endswith(":<module>") and not line.leaf.startswith("__main__")):
        return "importing", IMPORTS
    for cause, pattern, text in _CAUSES:
        if pattern.search(line.leaf):
            return cause, text
    if {where.function.rpartition(".")[2] for where in line.stack} & _READS_SAMPLES:
        return READING
    if _READING_LEAF.match(line.leaf) is None:
        return OWN
    return PROCESSES if _ASKS_A_PROCESS.search(line.text) else READING
