"""Numbers -> the words in which the titles of findings say them."""

from __future__ import annotations

SURE_RATIO = 0.01
"""With a low forecast below this, what was measured does not rule out that nothing is won, and titles say so."""


def format_time(time_ns: float) -> str:
    """A time with three significant digits in the unit that suits it.

    >>> format_time(18_342_000), format_time(432_000), format_time(2.5e9)
    ('18.3 ms', '432 µs', '2.5 s')
    """
    for unit_ns, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(time_ns) >= unit_ns:
            value = time_ns / unit_ns
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{time_ns:.0f} ns"


def format_share(ratio: float) -> str:
    """A share in percent: whole ones from 10 %, else one decimal.

    >>> format_share(0.463), format_share(0.037)
    ('46%', '3.7%')
    """
    return f"{ratio * 100:.0f}%" if ratio >= 0.0995 else f"{ratio * 100:.1f}%"


def format_bytes(size_bytes: float) -> str:
    """A size in binary units.

    >>> format_bytes(3 * 2**20), format_bytes(1536)
    ('3.0 MiB', '1.5 KiB')
    """
    for unit_bytes, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size_bytes) >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def shorten_code(text: str, most_count: int = 60) -> str:
    """A line of code, cut behind a whole word where it is too long, with dots in place of the rest.

    >>> shorten_code("  total += p.grad.norm().item() ** 2"), shorten_code("mean = decay * mean + value", 20)
    ('total += p.grad.norm().item() ** 2', 'mean = decay * ...')
    """
    text = text.strip()
    if len(text) <= most_count:
        return text
    head = text[: most_count - 4]
    return f"{head.rsplit(' ', 1)[0]} ..."


def format_interval(steps: float, on_average: bool = False) -> str:
    """How often something happens that happens every ``steps`` steps.

    >>> format_interval(1.0), format_interval(50.2), format_interval(24.8, on_average=True)
    ('every step', 'every 50 steps', 'every 25 steps on average')
    """
    return "every step" if steps < 1.5 else f"every {steps:.0f} steps{' on average' * on_average}"
