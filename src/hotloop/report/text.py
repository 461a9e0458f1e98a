"""Numbers and strings of a report -> short text for people: units, percentages, evidence; None becomes 'unknown'."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from hotloop.core.findings import Finding, Fix, Kind, Numerics, Safety, Saving, Severity, Skipped, Value, Where
from hotloop.core.phases import Excluded
from hotloop.core.report import Outcome, Report, ScorecardRow

UNKNOWN = "unknown"

SETTING_NAMES = frozenset(
    {
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
    }
)
"""Names that a reader knows from torch in this spelling; every other evidence name is written with spaces."""

UNITS = frozenset({"ns", "bytes", "ratio", "count", "flops", "w", "j", "speedup"})
"""Endings of evidence names that say how the value is to be read."""

EVIDENCE_LABELS = {
    "replayed_ratio": "part of the step timed again",
    "replayed_ns": "operators timed again",
    "operators_left_out": "operators not timed again",
    "rounds": "times each was timed",
    "growth_ratio": "part of the step that twice the batch adds, by operators",
    "growth_in_passes_ratio": "the same by whole passes",
    "saving_by_factor": "saving by batch size factor",
    "growth_bytes_per_step": "memory growth",
    "padding_ratio": "padding",
    "padding_to_longest_ratio": "padding left with each batch padded to its longest sample",
    "fewer_tokens_by_padding_to_longest_ratio": "tokens saved by padding to the longest",
    "fewer_tokens_by_bucketing_ratio": "tokens saved by batches of like lengths",
}
"""Evidence whose name in the JSON is no plain word. Other names are shown with spaces."""

SILENT_IF_ZERO = frozenset({"fewer_tokens_by_padding_to_longest_ratio", "fewer_tokens_by_bucketing_ratio"})
"""Evidence of what a fix would win, which is not shown where it wins nothing."""

SHOWN_ITEMS = 4
"""Longer lists in the evidence are cut; the JSON holds them whole."""

NUMERICS_TEXT = {
    Numerics.EXACT: "same numbers",
    Numerics.REORDERED: "same maths, rounding may differ",
    Numerics.RESAMPLED: "random draws or data order may differ",
    Numerics.LOSSY: "changes the numerics: watch the loss",
}

DEVICE_PHASES_NOTE = (
    "mean per step, between events around each phase: waits of the device count, "
    "and the rest of a step is not idle time"
)

EXCHANGE_RULES = frozenset({"exposed-communication", "slow-link", "small-buckets", "sync-every-microstep", "straggler"})
"""Rules about waiting for other ranks."""

NO_NEWS = "the training ran on the CPU"
"""How the reasons of rules begin that only an accelerator's training can break."""

SHOWN_REASONS = 4
"""More reasons for not judging than this are counted; JSON and HTML hold them all."""

OUTCOME_TEXT = {
    "completed": "completed",
    "exception": "ended by an uncaught exception",
    "signal": "ended by a signal",
    "killed": "killed",
    "oom": "ran out of memory",
    "running": "still running",
    "unknown": "how it ended is unknown",
}


def clean(text: str) -> str:
    """``text`` on one line, without characters that could drive a terminal or reorder what is read.

    Names come from the user's program: controls, bidirectional marks, lone surrogates and private characters are out.

    >>> clean("a\\x1b[31mb\\n c")
    'a [31mb c'
    """
    return " ".join(blank_controls(text).split())


def blank_controls(text: str) -> str:
    """``text`` with a space for each of the characters that ``clean`` refuses, and its other spaces as they were."""
    return "".join(" " if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs", "Co"} else c for c in text)


def shorten(text: str, limit_count: int, ellipsis: str = "...") -> str:
    """``text`` cleaned, cut to ``limit_count`` characters with an ellipsis where it was longer."""
    text = clean(text)
    return text if len(text) <= limit_count else text[: max(0, limit_count - len(ellipsis))].rstrip() + ellipsis


def format_duration(value_ns: float | None) -> str:
    """Nanoseconds in the unit that a reader expects, three significant digits.

    >>> [format_duration(v) for v in (None, 0, 950, 12_345, 92_000_000, 61_500_000_000, 7_260_000_000_000)]
    ['unknown', '0 ms', '950 ns', '12.3 µs', '92.0 ms', '61.5 s', '2 h 1 min']
    """
    if value_ns is None:
        return UNKNOWN
    if value_ns < 0:
        return "-" + format_duration(-value_ns)
    if value_ns == 0:
        return "0 ms"
    if value_ns >= 120e9:
        minutes, seconds = divmod(round(value_ns * 1e-9), 60)
        hours, rest = divmod(minutes, 60)
        return f"{hours:,} h {rest} min" if hours else f"{minutes} min {seconds} s"
    for limit_ns, unit_ns, unit in ((999.5, 1.0, "ns"), (999.5e3, 1e3, "µs"), (999.5e6, 1e6, "ms")):
        if value_ns < limit_ns:
            return f"{format_number(value_ns / unit_ns) if unit != 'ns' else round(value_ns)} {unit}"
    return f"{format_number(value_ns * 1e-9)} s"


def format_number(value: float) -> str:
    """A plain number with about three significant digits, thousands separated.

    >>> [format_number(v) for v in (0, 0.00123, 1.5, 12.34, 1234.5)]
    ['0', '0.0012', '1.50', '12.3', '1,234']
    """
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.0995 or size == 0:
        return f"{value:.2f}" if size else "0"
    return f"{value:.2g}"


def format_bands(row: ScorecardRow) -> str:
    """The bands of a scorecard's row, as far as guides give them.

    >>> format_bands(ScorecardRow(name="x", measured_ratio=0.1, good="below 10%", bad="", verdict="good"))
    'good below 10%'
    """
    return ", ".join(f"{name} {clean(band)}" for name, band in (("good", row.good), ("bad", row.bad)) if band)


def format_band_verdict(row: ScorecardRow) -> str:
    """In which band a measure lies; guides have none for some measures."""
    return "no band" if row.measured_ratio is not None and not (row.good or row.bad) else clean(row.verdict)


def format_count(value: int | None) -> str:
    """A count with thousands separated.

    >>> format_count(1234567)
    '1,234,567'
    """
    return UNKNOWN if value is None else f"{value:,}"


def format_counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> format_counted(1, "step"), format_counted(1234, "step")
    ('1 step', '1,234 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_percent(ratio: float | None) -> str:
    """A ratio as a percentage; something that is there never prints as zero.

    >>> [format_percent(v) for v in (None, 0.0, 0.0002, 0.046, 0.463, 123.9)]
    ['unknown', '0%', '<0.1%', '4.6%', '46%', '124 times']
    """
    if ratio is None:
        return UNKNOWN
    if ratio == 0:
        return "0%"
    if 0 < ratio < 0.0005:
        return "<0.1%"
    if abs(ratio) >= 10:
        return f"{ratio:,.0f} times"
    if ratio > 0.9995 or abs(ratio) >= 0.0995:
        return f"{ratio * 100:,.0f}%"
    return f"{ratio * 100:.1f}%"


def format_range(low_ratio: float, high_ratio: float) -> str:
    """Two ratios as one range of percentages, with the same number of digits on both sides.

    >>> format_range(0.35, 0.46), format_range(0.004, 0.12), format_range(0.2, 0.2)
    ('35–46%', '0.4–12.0%', '20%')
    """
    digits = 0 if low_ratio >= 0.0995 or high_ratio == 0 else 1
    low, high = f"{low_ratio * 100:.{digits}f}", f"{high_ratio * 100:.{digits}f}"
    return f"{low}%" if low == high else f"{low}–{high}%"


def format_bytes(value_bytes: float | None) -> str:
    """Bytes in binary units.

    >>> format_bytes(None), format_bytes(512), format_bytes(3 * 2**30)
    ('unknown', '512 B', '3.00 GiB')
    """
    if value_bytes is None:
        return UNKNOWN
    size = float(value_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1000 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{format_number(size)} {unit}"
        size /= 1024
    raise AssertionError("the loop ends at TiB")


def describe_shared_memory(report: Report) -> str | None:
    """What a peak of host memory is the sum of; None where it is that of one process or of an accelerator."""
    memory, hosts = report.memory, [rank.host for rank in report.ranks]
    if (
        memory is None
        or memory.peak_bytes is None
        or memory.allocated_bytes is not None
        or len(hosts) == len(set(hosts))
    ):
        return None
    return "the processes of one host together: the sum of their peaks"


def format_rate(value_per_s: float | None, noun: str) -> str:
    """Something per second, e.g. '80.0 samples/s'."""
    return UNKNOWN if value_per_s is None else f"{format_number(value_per_s)} {noun}/s"


def format_where(where: Where) -> str:
    """A place as file:line, which editors and terminals make clickable."""
    return f"{clean(where.file)}:{where.line}"


def below_folder(file: str, folder: str) -> str:
    """``file`` relative to ``folder`` where it lies below it, else as it is.

    >>> below_folder("/home/a/train.py", "/home/a"), below_folder("/usr/lib/x.py", "/home/a"), below_folder("x.py", "")
    ('train.py', '/usr/lib/x.py', 'x.py')
    """
    prefix = folder.rstrip("/") + "/"
    return file[len(prefix) :] if folder and file.startswith(prefix) else file


def shorten_middle(text: str, limit_count: int, ellipsis: str = "...") -> str:
    """``text`` in at most ``limit_count`` characters: its beginning and its longer end around an ellipsis.

    >>> shorten_middle("/tmp/cache/of/torchinductor/nb/cnb6h2.py:58", 30)
    '/tmp/cach...or/nb/cnb6h2.py:58'
    """
    if len(text) <= limit_count:
        return text
    room = max(0, limit_count - len(ellipsis))
    return text[: room // 3] + ellipsis + text[len(text) - (room - room // 3) :]


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


def describe_stake(findings: Sequence[Finding]) -> str | None:
    """What the first finding that is worth an act costs and what its fix is forecast to win; None without one.

    It stands behind the verdict, which names serious findings only: a lesser one is named here.
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
    """What a finding is, with its severity.

    >>> describe_kind(Finding(rule="gc-pause", kind=Kind.FAULT, title="", phase=None, cost_ns=None, cost_ratio=None,
    ...                       saving=None, evidence={}, severity_override=Severity.HIGH))
    'High: problem'
    """
    if finding.kind is Kind.OPPORTUNITY and finding.severity is Severity.INFO:
        return "Tip"
    return f"{finding.severity.value.capitalize()}: {'problem' if finding.kind is Kind.FAULT else 'tip'}"


def excluded_parts(left_out: Excluded) -> list[tuple[str, int]]:
    """What the steady steps leave out of the run as (name, ns), in order of time; parts that took no time are not told.

    What is neither warm-up nor tail belongs to steps that were recorded operator by operator, or to lost rows.
    """
    first = "first step" if left_out.warmup_count == 1 else f"first {format_counted(left_out.warmup_count, 'step')}"
    later = f"{format_counted(left_out.later_count, 'profiled step')}" if left_out.later_count else "lost rows"
    what = "" if left_out.tail_phase is None else f": {left_out.tail_phase.replace('_', ' ')}"
    parts = [
        (first, left_out.warmup_ns),
        (later, left_out.later_ns),
        (f"after the last step{what}", left_out.tail_ns),
    ]
    return [(name, ns) for name, ns in parts if ns]


def describe_excluded(left_out: Excluded | None) -> str | None:
    """What the steady steps leave out of the run; None where it is not known.

    >>> describe_excluded(Excluded(
    ...     count=3, total_ns=3_000_000_000, ratio=0.75, warmup_count=3, warmup_ns=2_000_000_000, later_count=0,
    ...     later_ns=0, tail_ns=1_000_000_000, startup_ns=None, compile_ns=0,
    ...     phase_ns={"input_wait": 1_500_000_000, "other": 1},
    ... ))
    'left out: first 3 steps, 2.00 s, 50% of the run, most of it input wait; after the last step, 1.00 s, 25%'
    """
    if left_out is None or not left_out.total_ns:
        return None
    parts = [
        f"{name}, {format_duration(ns)}, {format_percent(ns / left_out.run_ns)}"
        for name, ns in excluded_parts(left_out)
    ]
    most = f", most of it {left_out.main_part}" if left_out.main_part is not None else ""
    return f"left out: {parts[0]} of the run{most if left_out.count else ''}" + "".join(
        f"; {part}" for part in parts[1:]
    )


def cost_base(finding: Finding) -> tuple[str, str]:
    """What a finding's cost in time and its share are of."""
    if finding.base == "run":
        return "in this run, once", "of the run"
    return "per step", f"of the time per {clean(finding.unit)}"


def describe_no_forecast(finding: Finding) -> str:
    """Why a finding with a cost has no forecast."""
    if finding.base == "run":
        return "no forecast: it is paid once per start, and the longer the training the smaller its share"
    return f"{UNKNOWN}: no forecast could be made"


def format_history(history: Mapping[str, Value]) -> str | None:
    """How far past forecasts were off, or None when there are none.

    >>> format_history({"n": 12, "median_abs_error": 0.03}), format_history({"n": 0, "median_abs_error": None})
    ('past forecasts missed by 3.0 percentage points (median of 12)', None)
    """
    count, error = history.get("n"), history.get("median_abs_error")
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0 or not isinstance(error, (int, float)):
        return None
    return f"past forecasts missed by {error * 100:.1f} percentage points (median of {count})"


def format_fix(fix: Fix) -> str:
    """A fix in one line: what to set, by which technique, the effort of it, what it does to the numbers.

    >>> format_fix(Fix(technique="loader-workers", settings={"num_workers": 2}, safety=Safety.ASK,
    ...                numerics=Numerics.RESAMPLED, effort="easy"))
    'loader-workers: num_workers=2 (effort: easy; random draws or data order may differ)'
    """
    settings = ", ".join(f"{clean(name)}={_format_setting(value)}" for name, value in fix.settings.items())
    notes = [f"effort: {fix.effort}"] if fix.effort is not None else []
    notes += [NUMERICS_TEXT[fix.numerics]] if fix.numerics is not None else []
    notes += ["you do this yourself"] if fix.safety is Safety.SHOW else []
    return f"{clean(fix.technique)}{': ' if settings else ''}{settings}" + (f" ({'; '.join(notes)})" if notes else "")


def format_outcome(outcome: Outcome) -> str:
    """How the training ended, in words."""
    text = OUTCOME_TEXT.get(outcome.ended, clean(outcome.ended))
    if outcome.signal is not None:
        text += f" ({clean(outcome.signal)})"
    if outcome.exit_code is not None:
        text += f", exit code {outcome.exit_code}"
    return text


def format_evidence(name: str, value: Value) -> tuple[str, str] | None:
    """One piece of evidence as (label, text); the unit at the end of its name sets the format. None when unknown.

    >>> format_evidence("fetch_ns_per_batch", 3_100_000), format_evidence("num_workers", 0)
    (('fetch', '3.10 ms per batch'), ('num_workers', '0'))
    >>> format_evidence("link_bytes_per_s", 2**20), format_evidence("noise_ratio", 0.031)
    (('link', '1.00 MiB/s'), ('noise', '3.1%'))
    >>> format_evidence("rounds", 3), format_evidence("replayed_ratio", 0.85)
    (('times each was timed', '3'), ('part of the step timed again', '85%'))
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
    if unit == "ns":
        return format_duration(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "ratio":
        return format_percent(value)
    if unit == "speedup":
        return f"{value:.2f}x"
    text = f"{value:,}" if isinstance(value, int) else format_number(value)
    return text + {"flops": " flops", "w": " W", "j": " J"}.get(unit, "")


def _format_setting(value: Value) -> str:
    return shorten(value, 60) if isinstance(value, str) else shorten(repr(value), 60)


def format_share(ratio: float) -> str:
    """A share of the step with one decimal, for columns.

    >>> format_share(0.4604), format_share(0.0), format_share(0.0001)
    ('46.0%', '0.0%', '<0.1%')
    """
    return "<0.1%" if 0 < ratio < 0.0005 else f"{ratio * 100:.1f}%"


def describe_hidden_exchange(report: Report) -> str | None:
    """Where an exchange between ranks is counted that a finding names and the phase ``communication`` does not hold."""
    if report.breakdown is None:
        return None
    for finding in report.findings:
        if finding.rule in EXCHANGE_RULES and finding.phase not in (None, "communication"):
            return (
                f"waiting for DDP's exchange is counted in {finding.phase}, where it happens: see {clean(finding.rule)}"
            )
    return None


def describe_skipped(skipped: Sequence[Skipped]) -> list[tuple[str, str]]:
    """(reason, rules) of what a person may want to act on, and one pair that counts the others.

    That a training on the CPU has no accelerator is no news; the JSON and HTML reports list it all.
    """
    by_reason: dict[str, list[str]] = {}
    left_out = 0
    for one in skipped:
        if one.reason.startswith(NO_NEWS):
            left_out += 1
        else:
            by_reason.setdefault(clean(one.reason), []).append(clean(one.rule))
    shown = [(reason, ", ".join(rules)) for reason, rules in list(by_reason.items())[:SHOWN_REASONS]]
    more = sum(len(rules) for rules in list(by_reason.values())[SHOWN_REASONS:])
    if left_out:
        shown.append((f"{format_counted(left_out, 'rule')} about accelerators", "the training ran on the CPU"))
    if more:
        shown.append((f"{format_counted(more, 'rule')} for other reasons", "the JSON and HTML reports list them"))
    return shown


def describe_act(finding: Finding, manuals: Mapping[str, str]) -> str | None:
    """What the fix of this very finding asks for; without one, the first advice of the rule's manual."""
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
