"""Numbers and names -> short text for people: the one place that knows units; None becomes 'unknown'."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from hotloop.core.findings import Value
from hotloop.core.link_fit import format_byte_rate
from hotloop.core.utilization import TEXT, Utilization

UNKNOWN = "unknown"


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


def shorten_middle(text: str, limit_count: int, ellipsis: str = "...") -> str:
    """``text`` in at most ``limit_count`` characters: its beginning and its longer end around an ellipsis.

    >>> shorten_middle("/tmp/cache/of/torchinductor/nb/cnb6h2.py:58", 30)
    '/tmp/cach...or/nb/cnb6h2.py:58'
    """
    if len(text) <= limit_count:
        return text
    room = max(0, limit_count - len(ellipsis))
    return text[: room // 3] + ellipsis + text[len(text) - (room - room // 3) :]


def below_folder(file: str, folder: str) -> str:
    """``file`` relative to ``folder`` if it is below it, else as it is.

    >>> below_folder("/home/a/train.py", "/home/a"), below_folder("/usr/lib/x.py", "/home/a"), below_folder("x.py", "")
    ('train.py', '/usr/lib/x.py', 'x.py')
    """
    prefix = folder.rstrip("/") + "/"
    return file[len(prefix) :] if folder and file.startswith(prefix) else file


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


def format_utilization(used: Utilization, *, with_peak: bool = True) -> str:
    """The known facts in one line, with the basis of MFU's peak; empty where nothing is known.

    >>> format_utilization(Utilization(utilization_ratio=0.43, mfu_ratio=0.117, peak="bfloat16 of H100"))
    'GPU utilization 43%, MFU 12% (bfloat16 of H100)'
    """
    parts = [f"{TEXT[name]} {format_percent(value)}" for name in TEXT if (value := getattr(used, name)) is not None]
    if used.mfu_ratio is not None and used.hfu_ratio == used.mfu_ratio:
        parts.remove(f"{TEXT['hfu_ratio']} {format_percent(used.hfu_ratio)}")
    return ", ".join(parts) + (f" ({clean(used.peak)})" if with_peak and used.mfu_ratio is not None else "")


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


def format_share(ratio: float) -> str:
    """A share of the step with one decimal, for columns.

    >>> format_share(0.4604), format_share(0.0), format_share(0.0001)
    ('46.0%', '0.0%', '<0.1%')
    """
    return "<0.1%" if 0 < ratio < 0.0005 else f"{ratio * 100:.1f}%"


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


def format_rate(value_per_s: float | None, noun: str) -> str:
    """Something per second, e.g. '80.0 samples/s'."""
    return UNKNOWN if value_per_s is None else f"{format_number(value_per_s)} {noun}/s"


UNIT_SIGNS = {"flops": " flops", "w": " W", "j": " J", "per_s": "/s", "ms": " ms", "mib": " MiB", "s": " s"}


def format_quantity(value: float, unit: str, percent: Callable[[float], str] = format_percent) -> str:
    """A number in its unit, which is the ending of the name that it is listed under.

    >>> [format_quantity(1_500_000, "ns"), format_quantity(0.5, "ratio"), format_quantity(12, "")]
    ['1.50 ms', '50%', '12']
    """
    known = {"ns": format_duration, "bytes": format_bytes, "ratio": percent, "share": format_share}
    if unit in known:
        return known[unit](value)
    if unit == "speedup":
        return f"{value:.2f}x"
    return (f"{value:,}" if isinstance(value, int) else format_number(value)) + UNIT_SIGNS.get(unit, "")


def format_scalar(name: str, value: Value) -> str:
    """A value of a table in the unit that its column's name ends in; rates are plain, their head says what they are,
    except for those of bytes.

    >>> [format_scalar("x_ratio", 0.5), format_scalar("pinned", True), format_scalar("x_ns", None)]
    ['50.0%', 'yes', 'unknown']
    >>> format_scalar("bus_bytes_per_s", 3 * 2**20)
    '3.15 MB/s'
    """
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("bytes_per_s"):
            return format_byte_rate(value)
        unit = name.rpartition("_")[2]
        return format_quantity(value, unit if unit in ("ns", "bytes", "ratio") else "", format_share)
    return shorten(str(value), 60)


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """One unit for all times of a table, so that they can be compared by eye."""

    name: str
    ns: float
    digits: int

    def show(self, value_ns: float, *, sign: bool = False) -> str:
        text = f"{value_ns / self.ns:{'+' if sign else ''},.{self.digits}f}"
        # What rounds to nothing has no direction.
        return text.lstrip("+-") if not text.strip("+-0.,") else text


def choose_unit(value_ns: float) -> TimeUnit:
    """The unit in which this time has a few digits before the point."""
    for limit, ns, name in ((1e3, 1.0, "ns"), (1e6, 1e3, "µs"), (1e10, 1e6, "ms")):
        if value_ns < limit:
            return TimeUnit(name, ns, 0 if name == "ns" else 1 if value_ns / ns >= 100 else 2)
    return TimeUnit("s", 1e9, 2)
