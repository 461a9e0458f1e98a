"""Findings -> cards: what waits, what it costs, where, what to do, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hotloop.core.findings import Bound, Finding, Fix, Kind, Numerics, Safety, Saving, Severity, Value
from hotloop.core.report import Report
from hotloop.show.report.document import Card, Command, Interval, Pairs, Paragraph, Place, Row, Section, write

from .document import Surface
from .manual import split_manual
from .text import (
    UNKNOWN,
    clean,
    format_duration,
    format_percent,
    format_quantity,
    format_range,
    shorten,
)

SETTING_NAMES = frozenset(
    [
        "batch_size",
        "bucket_cap_mb",
        "capturable",
        "collate_fn",
        "drop_last",
        "find_unused_parameters",
        "foreach",
        "fused",
        "gradient_as_bucket_view",
        "no_sync",
        "num_workers",
        "persistent_workers",
        "pin_memory",
        "prefetch_factor",
        "retain_graph",
        "static_graph",
        "torch_threads",
    ]
)
"""Names that a reader knows from torch in this spelling; every other evidence name is written with spaces."""


UNITS = frozenset({"ns", "bytes", "ratio", "count", "flops", "w", "j", "speedup"})
"""Endings of evidence names that say how to read the value."""


EVIDENCE_LABELS = {
    "replayed_ratio": "replayed share of the step",
    "replayed_ns": "time of replayed operators",
    "operators_left_out": "operators not replayed",
    "rounds": "repetitions",
    "growth_ratio": "step growth with twice the batch, by operators",
    "growth_in_passes_ratio": "step growth with twice the batch, by full passes",
    "saving_by_factor": "saving by batch size factor",
    "growth_bytes_per_step": "memory growth",
    "padding_ratio": "padding",
    "padding_to_longest_ratio": "padding that remains after padding to the longest sample of a batch",
    "fewer_tokens_by_padding_to_longest_ratio": "tokens saved by padding to the longest",
    "fewer_tokens_by_bucketing_ratio": "tokens saved by length bucketing",
}
"""Evidence whose name in the JSON is not plain words. Other names are shown with spaces."""


SILENT_IF_ZERO = frozenset({"fewer_tokens_by_padding_to_longest_ratio", "fewer_tokens_by_bucketing_ratio"})
"""Evidence of what a fix would save, which is not shown where it saves nothing."""


SHOWN_ITEMS = 4
"""Longer lists in the evidence are cut; the JSON holds them in full."""


NUMERICS_TEXT = {
    Numerics.EXACT: "same numbers",
    Numerics.REORDERED: "same math, rounding may differ",
    Numerics.RESAMPLED: "random draws or data order may differ",
    Numerics.LOSSY: "changes the numerics: watch the loss",
}


def format_forecast(saving: Saving) -> str:
    """A forecast as range, middle and basis.

    >>> from hotloop.core.findings import Basis
    >>> format_forecast(Saving(low_ratio=0.35, mid_ratio=0.42, high_ratio=0.46, basis=Basis.SIMULATED))
    '35–46%, most likely 42% (simulated)'
    >>> format_forecast(Saving(low_ratio=0.1497, mid_ratio=0.15, high_ratio=0.1504, basis=Basis.SIMULATED))
    '15% (simulated)'
    """
    ends = format_range(saving.low_ratio, saving.high_ratio)
    middle = format_percent(saving.mid_ratio)
    likely = "" if ends == middle else f", most likely {middle}"
    return f"{ends}{likely} ({saving.basis.value})"


def describe_forecast(finding: Finding) -> str | None:
    """The forecast of a finding, and that of all fixes of its rule where the rule has several findings."""
    if finding.saving is None:
        return None
    both = finding.rule_saving
    together = "" if both is None else f"; with every fix of {clean(finding.rule)} {format_forecast(both)}"
    return format_forecast(finding.saving) + together


def describe_bound(bound: Bound) -> str:
    """What taking the cost away saves, or why that was not measured.

    >>> from hotloop.core.findings import Basis
    >>> saving = Saving(low_ratio=0.0, mid_ratio=0.01, high_ratio=0.03, basis=Basis.BOUNDED)
    >>> describe_bound(Bound(ablation="no-gc", saving=saving, pairs=4, reason="nothing is collected"))
    'leaving this out saves 0.0–3.0% (4 pairs; cannot tell it from 0; nothing is collected)'
    """
    saving, reason = bound.saving, clean(bound.reason)
    if saving is None:
        return f"{UNKNOWN}: {reason}"
    notes = [f"{bound.pairs} pairs", *(["cannot tell it from 0"] if saving.low_ratio <= 0 else []), reason]
    return f"leaving this out saves {format_range(saving.low_ratio, saving.high_ratio)} ({'; '.join(notes)})"


def describe_stake(findings: Sequence[Finding]) -> str | None:
    """The cost of the first finding worth acting on and the forecast saving of its fix; None without one.

    It follows the verdict, which names serious findings only: a lesser finding is named here.
    """
    serious = (Severity.HIGH, Severity.MEDIUM)
    top = next((f for f in findings if f.severity in serious or (f.saving and f.severity is Severity.LOW)), None)
    if top is None or top.saving is None:
        return None
    forecast = _format_stake(top.saving, f" of the time per {clean(top.unit)}")
    together = (
        "" if top.rule_saving is None else f"; all fixes of {clean(top.rule)} together {_format_stake(top.rule_saving)}"
    )
    name = clean(top.rule)
    if top.kind is Kind.OPPORTUNITY:
        return f"{name} could save {forecast}{together}."
    fixing = "Fixing it" if top.severity in serious else f"Fixing {name}"
    lost = "" if top.cost_ratio is None else f" ({format_percent(top.cost_ratio)})"
    cost = "" if top.cost_ns is None else f"You lose {format_duration(top.cost_ns)} {cost_base(top)[0]}{lost}. "
    return f"{cost}{fixing} should save {forecast}{together}."


def _format_stake(saving: Saving, base: str = "") -> str:
    return f"{format_range(saving.low_ratio, saving.high_ratio)}{base} ({saving.basis.value})"


def describe_kind(finding: Finding) -> str:
    """The kind of a finding, with its severity.

    >>> describe_kind(Finding(rule="gc-pause", kind=Kind.FAULT, title="", phase=None, cost_ns=None, cost_ratio=None,
    ...                       saving=None, evidence={}, severity_override=Severity.HIGH))
    'High: problem'
    """
    if finding.kind is Kind.OPPORTUNITY and finding.severity is Severity.INFO:
        return "Tip"
    return f"{finding.severity.value.capitalize()}: {'problem' if finding.kind is Kind.FAULT else 'tip'}"


def cost_base(finding: Finding) -> tuple[str, str]:
    """The basis of a finding's cost in time and of its share."""
    if finding.base == "run":
        return "in this run, once", "of the run"
    return "per step", f"of the time per {clean(finding.unit)}"


def describe_no_forecast(finding: Finding) -> str:
    """Why a finding with a cost has no forecast."""
    if finding.base == "run":
        return "no forecast: a one-time cost per start, whose share shrinks in a longer run"
    return f"{UNKNOWN}: no forecast is possible"


def format_history(history: Mapping[str, Value]) -> str | None:
    """How far past forecasts were off, or None when there are none.

    >>> format_history({"n": 12, "median_abs_error": 0.03}), format_history({"n": 0, "median_abs_error": None})
    ('median error of 12 past forecasts: 3.0 percentage points', None)
    """
    count, error = history.get("n"), history.get("median_abs_error")
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0 or not isinstance(error, (int, float)):
        return None
    return f"median error of {count} past forecasts: {error * 100:.1f} percentage points"


def format_fix(fix: Fix) -> str:
    """A fix in one line: what to set, by which technique, the effort of it, what it does to the numbers.

    >>> format_fix(Fix(technique="loader-workers", settings={"num_workers": 2}, safety=Safety.ASK,
    ...                numerics=Numerics.RESAMPLED, effort="easy"))
    'loader-workers: num_workers=2 (effort: easy; random draws or data order may differ)'
    """
    settings = ", ".join(f"{clean(name)}={_format_setting(value)}" for name, value in fix.settings.items())
    notes = [f"effort: {clean(fix.effort)}"] if fix.effort is not None else []
    notes += [NUMERICS_TEXT[fix.numerics]] if fix.numerics is not None else []
    notes += ["by hand"] if fix.safety is Safety.SHOW else []
    return f"{clean(fix.technique)}{': ' if settings else ''}{settings}" + (f" ({'; '.join(notes)})" if notes else "")


def format_evidence(name: str, value: Value) -> tuple[str, str] | None:
    """One piece of evidence as (label, text); the unit at the end of its name sets the format. None when unknown.

    >>> format_evidence("fetch_ns_per_batch", 3_100_000), format_evidence("num_workers", 0)
    (('fetch', '3.10 ms per batch'), ('num_workers', '0'))
    >>> format_evidence("link_bytes_per_s", 2**20), format_evidence("noise_ratio", 0.031)
    (('link', '1.00 MiB/s'), ('noise', '3.1%'))
    >>> format_evidence("rounds", 3), format_evidence("replayed_ratio", 0.85)
    (('repetitions', '3'), ('replayed share of the step', '85%'))
    >>> format_evidence("fewer_tokens_by_padding_to_longest_ratio", 0.0)
    """
    if value is None or (name in SILENT_IF_ZERO and not value):
        return None
    if name in SETTING_NAMES:
        return name, _format_value(value, "")
    base, _, per = name.partition("_per_")
    head, _, unit = base.rpartition("_")
    if unit not in UNITS:
        head, unit = base, ""
    label = EVIDENCE_LABELS.get(name) or clean((head or base).replace("_", " "))
    text = _format_value(value, unit)
    return label, text + (f"/{per}" if per == "s" else f" per {clean(per.replace('_', ' '))}" if per else "")


def _format_value(value: Value, unit: str) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return shorten(value, 80)
    if isinstance(value, Mapping):
        return ", ".join(
            f"{shorten(str(k), 40)}: {_format_value(v, unit)}" for k, v in list(value.items())[:SHOWN_ITEMS]
        )
    if isinstance(value, list | tuple):
        more = f" +{len(value) - SHOWN_ITEMS} more" if len(value) > SHOWN_ITEMS else ""
        return ", ".join(_format_value(v, unit) for v in value[:SHOWN_ITEMS]) + more
    return format_quantity(value, unit)


def _format_setting(value: Value) -> str:
    return shorten(value, 60) if isinstance(value, str) else shorten(repr(value), 60)


def describe_act(finding: Finding, manuals: Mapping[str, str]) -> str | None:
    """The instructions of this finding's own fix; without one, the first advice of the rule's manual."""
    if finding.fix is not None and finding.fix.act:
        return finding.fix.act.replace("`", "")
    return first_advice(manuals.get(finding.rule, ""))


def first_advice(manual: str) -> str | None:
    """First sentence of a manual's 'What to do' section, or None when there is no such section.

    >>> first_advice("## What it does\\nX.\\n\\n## What to do\\nRaise num_workers. Then measure.\\n")
    'Raise num_workers.'
    """
    _, heading, rest = manual.partition("## What to do")
    if not heading:
        return None
    section = rest.split("\n## ", 1)[0].strip().lstrip(":")
    paragraph = clean(section.split("\n\n", 1)[0].lstrip("-* 1."))
    end = paragraph.find(". ")
    return (paragraph if end < 0 else paragraph[: end + 1]).replace("`", "") or None


def describe_findings(report: Report, surface: Surface) -> list[Section]:
    """The cards of all findings, and what all fixes save together."""
    if not report.findings:
        return []
    history = format_history(report.forecast_history)
    blocks: list[Card | Paragraph] = [
        _describe_card(number, finding, history, surface.manuals) for number, finding in enumerate(report.findings, 1)
    ]
    combined = report.combined_saving
    if combined is not None and len(combined.techniques) > 1:
        blocks.append(
            Paragraph(
                text=write(
                    "Together: ",
                    (format_range(combined.low_ratio, combined.high_ratio), "strong"),
                    f", most likely {format_percent(combined.mid_ratio)} "
                    f"({', '.join(map(clean, combined.techniques))}). Savings overlap and cannot be summed.",
                ),
                indent=0,
            )
        )
    return [Section(title="Findings", blocks=tuple(blocks))]


def _describe_card(number: int, finding: Finding, history: str | None, manuals: Mapping[str, str]) -> Card:
    manual = manuals.get(finding.rule, "")
    advice, rest = split_manual(manual, "What to do")
    by_hand = "" if finding.fix is None else finding.fix.by_hand
    saving = finding.saving
    return Card(
        number=number,
        severity=finding.severity.value,
        label=describe_kind(finding),
        title=clean(finding.title),
        rule=clean(finding.rule),
        rows=tuple(_describe_rows(finding, history, manuals)),
        interval=None
        if saving is None
        else Interval(
            low_ratio=saving.low_ratio,
            mid_ratio=saving.mid_ratio,
            high_ratio=saving.high_ratio,
            cost_ratio=finding.cost_ratio or 0.0,
        ),
        advice="\n\n".join(part for part in (by_hand, advice) if part),
        manual=rest,
    )


def _describe_rows(finding: Finding, history: str | None, manuals: Mapping[str, str]) -> list[Row]:
    opportunity = finding.kind is Kind.OPPORTUNITY
    rows = []
    base = cost_base(finding)
    amounts = [f"{format_duration(finding.cost_ns)} {base[0]}"] if finding.cost_ns is not None else []
    amounts += [f"{format_percent(finding.cost_ratio)} {base[1]}"] if finding.cost_ratio is not None else []
    if amounts:
        rows.append(Row(label="at stake" if opportunity else "you lose", content=write(", ".join(amounts))))
    if finding.saving is not None:
        forecast = f"{describe_forecast(finding)}" + (f"; {history}" if history else "")
        rows.append(Row(label="could save" if opportunity else "fix saves", content=write(forecast), leads=True))
    elif finding.cost_ns is not None:
        rows.append(Row(label="fix saves", content=write(describe_no_forecast(finding))))
    if finding.bound is not None:
        rows.append(Row(label="bound", content=write(describe_bound(finding.bound)), leads=True))
    if finding.where:
        places = tuple(Place(file=clean(w.file), line=w.line, function=clean(w.function)) for w in finding.where)
        rows.append(Row(label="where", content=places, leads=True))
    if finding.ranks:
        rows.append(Row(label="ranks", content=write(", ".join(map(str, finding.ranks[:24])))))
    pairs = [pair for pair in (format_evidence(name, value) for name, value in finding.evidence.items()) if pair]
    if pairs:
        rows.append(Row(label="evidence", content=Pairs(items=tuple(pairs))))
    if finding.fix is not None:
        rows.append(Row(label="fix", content=write(format_fix(finding.fix))))
    advice = describe_act(finding, manuals)
    if advice is not None:
        label = "to do" if finding.fix is not None else "fix"
        rows.append(Row(label=label, content=write(advice), leads=True, repeats=True))
    if finding.next is not None:
        rows.append(Row(label="next", content=Command(text=clean(finding.next))))
    return rows
