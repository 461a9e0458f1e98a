"""hotloop tokenize: texts to memory-mapped tokens, by all cores, killed and continued at will."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hotloop.cli.options import option, output_options
from hotloop.cli.show import check_counts, check_outputs, emit, show_report
from hotloop.core.errors import UsageError
from hotloop.core.machine import count_cores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from hotloop.ahead.data.token_worker import TokenizeJob
    from hotloop.ahead.data.tokenize_job import JobState

ORDER, SUMMARY = 10, "turn texts into memory-mapped tokens"
MIB = 1 << 20
TERMINAL_EVERY_S, PLAIN_EVERY_S = 0.5, 30.0
LINE_COLUMNS = 79


ABOUT = {
    "description": (
        "Encode texts with a fast tokenizer into Megatron's .bin and .idx files. If the command is killed, start it "
        "again, and it continues; the output bytes are the same for any number of processes. Exits with 0 when "
        "finished, even if documents were left out (the report counts them)."
    )
}
OPTIONS = (
    option(
        "sources",
        nargs="+",
        metavar="SRC",
        help="files, folders or URLs: JSON lines, text, parquet, Arrow (also a save_to_disk folder), .gz .zst .xz .bz2",
    ),
    option("--tokenizer", metavar="FILE", required=True, help="a tokenizer.json, or a folder with one"),
    option("-o", "--out", metavar="DIR", required=True, help="the folder for the tokens"),
    option("--column", default="text", metavar="NAME", help="key or column of the text (default: text)"),
    option(
        "--source-format",
        dest="form",
        choices=("jsonl", "text", "parquet", "arrow"),
        help="format of every source (default: by suffix)",
    ),
    option(
        "--documents",
        choices=("line", "file"),
        default="line",
        help="the unit of a text source that counts as one document (default: line)",
    ),
    option("--append-eos", action="store_true", help="end each document with the end-of-sequence token"),
    option(
        "--eos",
        metavar="TOKEN",
        help="the end-of-sequence token (default: from tokenizer_config.json next to the tokenizer)",
    ),
    option(
        "--special-tokens",
        action="store_true",
        help="also add the tokens from the tokenizer's own template, such as <s>",
    ),
    option("--processes", type=int, metavar="N", help="tokenizing processes (default: one per core)"),
    option(
        "--batch-size", type=int, default=256, metavar="N", help="documents that are encoded together (default: 256)"
    ),
    option(
        "--shard-tokens",
        type=int,
        default=1 << 30,
        metavar="N",
        help="start a new pair of files before the current pair exceeds N tokens (default: 1,073,741,824)",
    ),
    option(
        "--document-limit",
        type=int,
        default=8,
        metavar="MIB",
        help="leave out longer documents, and count them (default: 8 MiB; encoding takes about 130 times that memory)",
    ),
    option(
        "--strict",
        action="store_true",
        help="stop at the first corrupt document instead of counting and leaving it out",
    ),
    *output_options(kind="tokenize", html=None),
)


def execute(arguments: argparse.Namespace) -> int:
    from hotloop.ahead.data.tokenize_job import run_job

    check_outputs(arguments.json)
    check_counts(arguments, "processes")
    _check_options(arguments)
    job, left_out_count = _read_job(arguments)
    if left_out_count and not arguments.quiet:
        emit(f"{left_out_count} files of unknown format were left out; use --format to read every file in one format")
    line = None if arguments.quiet else ProgressLine(job, sys.stderr)
    try:
        report = run_job(
            job,
            Path(arguments.out),
            processes_count=arguments.processes or count_cores(),
            batch_documents=arguments.batch_size,
            is_strict=arguments.strict,
            notice=line,
        )
    except KeyboardInterrupt:
        if line is not None:
            line.end()
        emit("interrupted; the same command continues from here")
        return 130
    if line is not None:
        line.end()
    show_report(report, arguments, sys.stdout)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    for name in ("batch_size", "shard_tokens", "document_limit"):
        value = getattr(arguments, name)
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: give a number of at least 1")
    if arguments.document_limit > 1024:
        raise UsageError(f"--document-limit {arguments.document_limit}: give at most 1024 (MiB)")


def _read_job(arguments: argparse.Namespace) -> tuple[TokenizeJob, int]:
    from hotloop.ahead.data.text_chunks import CutRules
    from hotloop.ahead.data.text_files import find_files
    from hotloop.ahead.data.token_worker import TokenizeJob
    from hotloop.ahead.data.tokenizer_file import find_end_id, open_tokenizer

    tokenizer = open_tokenizer(arguments.tokenizer)
    wants_end = arguments.append_eos or arguments.eos is not None
    files, left_out_count = find_files(arguments.sources, arguments.form)
    job = TokenizeJob(
        files=files,
        tokenizer=tokenizer,
        cut=CutRules(
            column=arguments.column,
            whole_files=arguments.documents == "file",
            limit_bytes=arguments.document_limit * MIB,
        ),
        end_id=find_end_id(tokenizer, arguments.eos) if wants_end else None,
        special_tokens=arguments.special_tokens,
        shard_tokens=arguments.shard_tokens,
    )
    return job, left_out_count


class ProgressLine:
    """Called after each chunk; rewrites one line on a terminal, and adds one each half minute elsewhere."""

    def __init__(self, job: TokenizeJob, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_bytes = sum(file.size_bytes for file in job.files)
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._began: tuple[float, int, int] | None = None
        """When the first chunk was done, and the bytes and tokens until then."""
        self._shown_s = clock()

    def __call__(self, state: JobState) -> None:
        now_s = self._clock()
        if self._began is None:
            self._began = (now_s, state.size_bytes, state.tokens_count)
        if now_s - self._shown_s < (TERMINAL_EVERY_S if self._is_terminal else PLAIN_EVERY_S):
            return
        self._shown_s = now_s
        text = f"hotloop: {self._describe(state, now_s)}"[:LINE_COLUMNS]
        self._stream.write(f"\r{text:{LINE_COLUMNS}}" if self._is_terminal else f"{text}\n")
        self._stream.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._is_terminal and self._began is not None:
            self._stream.write(f"\r{'':{LINE_COLUMNS}}\r")
            self._stream.flush()

    def _describe(self, state: JobState, now_s: float) -> str:
        assert self._began is not None
        began_s, bytes_before, tokens_before = self._began
        spent_s = max(now_s - began_s, 1e-3)
        done_bytes = state.size_bytes - bytes_before
        share = state.size_bytes / max(1, self._total_bytes)
        text = f"{share:.0%}, {state.tokens_count:,} tokens, {(state.tokens_count - tokens_before) / spent_s:,.0f}/s"
        if done_bytes <= 0:
            return text
        left_s = round((self._total_bytes - state.size_bytes) * spent_s / done_bytes)
        return f"{text}, {left_s // 3600}:{left_s // 60 % 60:02d}:{left_s % 60:02d} left"
