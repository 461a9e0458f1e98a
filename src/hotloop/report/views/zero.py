"""zero: model states of one device by stage of ZeRO, in the units of its paper."""

from __future__ import annotations

from functools import partial

from hotloop.core.decode import decode_contract, encode_contract
from hotloop.core.planning import ZERO_SCHEMA, ZeroReport
from hotloop.report.document import Document, Paragraph, Section, Table, write
from hotloop.report.renderer import Surface
from hotloop.report.text import clean, format_count
from hotloop.report.view import View

SHARDED = ("nothing", "optimizer states", "and gradients", "and parameters")


def describe_zero(report: ZeroReport, surface: Surface) -> Document:
    rows = tuple(
        (
            str(one.stage),
            SHARDED[one.stage],
            *(
                _gigabytes(size)
                for size in (one.params_bytes, one.gradients_bytes, one.optimizer_bytes, one.total_bytes)
            ),
        )
        for one in report.stages
    )
    table = Table(
        header=("stage", "sharded", "parameters", "gradients", "optimizer", "in all"),
        rows=rows,
        left=frozenset({0, 1}),
        shrinks=False,
    )
    note = "GB = 1e9 bytes on one device, without activations; formula: arXiv:1910.02054, table 1"
    return Document(
        kind="zero",
        subject=report,
        data=lambda: encode_contract(ZERO_SCHEMA, report),
        version=report.tool_version,
        title=f"model states of {format_count(report.params)} parameters on {format_count(report.ranks)} ranks",
        lead=(
            Paragraph(text=write(f"{clean(report.precision)} precision, {clean(report.optimizer)}"), indent=0, hang=2),
        ),
        sections=(Section(title="", blocks=(table, Paragraph(text=write(note), indent=0, hang=2))),),
    )


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.2f} GB"


ZERO = View(
    id="zero", type=ZeroReport, schema=ZERO_SCHEMA, describe=describe_zero, read=partial(decode_contract, ZeroReport)
)
