"""tokenize: what was written and how fast, then what was left out and why."""

from __future__ import annotations

from hotloop.core.tokenizing import REJECTIONS, TOKENIZE_SCHEMA, TokenizeReport
from hotloop.show.report.document import Document, Paragraph, Section, Surface, View, write
from hotloop.show.report.text import clean, format_bytes, format_counted

SEQUENCE_TOKENS = 1024
"""Length of the sequences in the line that shows how to read the tokens."""


def describe_tokenize(report: TokenizeReport, surface: Surface) -> Document:
    tokens = format_counted(report.tokens_count, "token")
    shards = len(report.shards)
    bin_bytes = sum(shard.bin_bytes for shard in report.shards)
    left_out = [one for one in report.rejections if one.kind != "empty"]
    lines = [
        f"files: {format_counted(shards, 'pair')} of .bin and .idx, {report.token_type}, {format_bytes(bin_bytes)}",
        f"sources: {format_counted(report.sources_count, 'file')}, {format_bytes(report.source_bytes)}",
        _describe_speed(report),
    ]
    lines += [
        f"left out: {format_counted(one.count, 'document')} {REJECTIONS.get(one.kind, clean(one.kind))} (first: "
        f"{clean(one.first)})"
        for one in report.rejections
    ]
    if report.unknown_count:
        share = report.unknown_count / report.tokens_count
        lines.append(
            f"unknown: {format_counted(report.unknown_count, 'token')} ({share:.2%}) for text outside the vocabulary"
        )
    if report.tokens_count > SEQUENCE_TOKENS:
        lines.append(
            f'to read the tokens: hotloop.TokenDataset("{clean(report.folder)}", seq_length={SEQUENCE_TOKENS})'
        )
    else:
        lines.append(f"too few tokens for a sequence of {SEQUENCE_TOKENS} tokens and its last target")
    return Document(
        title=f"{tokens} of {format_counted(report.documents_count, 'document')} in {clean(report.folder)}",
        tone="medium" if left_out else "good",
        sections=(Section(title="", blocks=tuple(Paragraph(text=write(line), indent=0, hang=2) for line in lines)),),
        next_label="next",
        next_command=report.next,
    )


def _describe_speed(report: TokenizeReport) -> str:
    if report.was_complete:
        return "this run: nothing to do, the folder was complete"
    rate = report.run_tokens_count / max(report.wall_s, 1e-9)
    resumed = ", after an interruption" if report.was_resumed else ""
    tokens = format_counted(report.run_tokens_count, "token")
    processes = format_counted(report.processes_count, "worker")
    return f"this run: {tokens} in {report.wall_s:.1f} s by {processes} ({rate:,.0f} tokens/s){resumed}"


TOKENIZE = View(
    id="tokenize",
    type=TokenizeReport,
    schema=TOKENIZE_SCHEMA,
    describe=describe_tokenize,
)
