"""Measurements of the ranks of ``bench comm`` -> its tables, its verdict, and the fit of their link."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop.core.benchmarks import Row
from hotloop.core.errors import UsageError
from hotloop.core.findings import Value
from hotloop.core.link_choice import WayChoice
from hotloop.core.link_fit import LinkFit, bus_factor, fit_link, format_byte_rate

SIZES = tuple(1 << shift for shift in range(10, 27, 2))
"""1 KiB to 64 MiB, each four times the previous one."""
MOST_RANKS = 64
"""Ranks of one host, started by --ranks."""
SLOW_PAIR_RATIO = 0.5
"""A pair below this part of what the quickest quarter of its kind reaches, or with a latency as much above theirs, is
slow. A choice: pairs of one kind differ by some percent, a cable or a hop that is wrong by a factor."""
SLOW_LOCAL_RATIO = 0.25
"""The same for pairs of one host over gloo: through its memory, on cores that others use too. Four ranks on two cores
with 25 runnable processes differed by a factor of 2 (2026-11-23, three runs)."""
LEAST_SLOW_NS = 100_000.0
"""The least difference of latencies that counts: on busy cores, less means nothing."""
FEWEST_PAIRS = 3
"""Pairs of one kind."""
POOR_FIT_RATIO = 0.5
"""Where a time is further from the line, sizes between the measured ones are not forecast well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLaunch:
    """How the benchmark's ranks start: for each rank that this process starts, variables in addition to its own."""

    variables: tuple[Mapping[str, str], ...]
    is_alone: bool
    """All ranks are of this host and started here; else a launcher started this process as one of them."""
    rank: int = 0


def plan_launch(variables: Mapping[str, str], ranks: int | None) -> RankLaunch:
    """The ranks to start: one of a launcher's group where its variables are set, else ``ranks`` (2) on this host.

    torchrun sets RANK, WORLD_SIZE and MASTER_ADDR; srun also sets SLURM_PROCID and SLURM_NTASKS. Raises
    UsageError where a group is only half described.
    """
    own = dict(variables)
    if "MASTER_ADDR" in own:
        for name, other in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
            if name not in own and other in own:
                own[name] = own[other]
    if own.get("RANK") and own.get("WORLD_SIZE"):
        if ranks is not None:
            raise UsageError(
                f"--ranks {ranks}: a launcher has started {own['WORLD_SIZE']} ranks (RANK and WORLD_SIZE are set); "
                "leave --ranks out, or unset both"
            )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not own.get(name)]
        if missing:
            raise UsageError(f"RANK and WORLD_SIZE are set, but not {missing[0]}; set it to the host or port of rank 0")
        for name in ("RANK", "WORLD_SIZE"):
            if not own[name].isdecimal():
                raise UsageError(f"{name} is {own[name]!r}; it must be a number")
        if int(own["WORLD_SIZE"]) < 2:
            raise UsageError("WORLD_SIZE is 1: nothing is sent; start at least two ranks")
        kept: dict[str, str] = {name: own[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in own}
        return RankLaunch(variables=(kept,), is_alone=False, rank=int(own["RANK"]))
    if "SLURM_PROCID" in own and own.get("SLURM_NTASKS", "1") not in ("", "1"):
        raise UsageError(
            "srun has started several tasks, but MASTER_ADDR is not set; export MASTER_ADDR and MASTER_PORT (the host "
            "of task 0 and a free port) before srun"
        )
    count = 2 if ranks is None else ranks
    if not 2 <= count <= MOST_RANKS:
        raise UsageError(f"--ranks {count}: give a number from 2 to {MOST_RANKS}; for more, use torchrun or srun")
    each = tuple(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        for rank in range(count)
    )
    return RankLaunch(variables=each, is_alone=True)


def loopback(variables: Mapping[str, str]) -> dict[str, str]:
    """gloo's interface for ranks of one host, unless the user has chosen one. Without it, gloo asks the host's name."""
    return {} if "GLOO_SOCKET_IFNAME" in variables else {"GLOO_SOCKET_IFNAME": "lo"}


def tabulate_times(answer: Mapping[str, Any]) -> list[Row]:
    """Time and bandwidth by collective and size. Algorithm bandwidth is message bytes over the least time: what others
    do on the machine only adds."""
    rows: list[Row] = []
    for cell in answer["cells"]:
        algorithm = cell["bytes"] / min(cell["times_ns"]) * 1e9
        rows.append(
            {
                "collective": cell["collective"],
                "message_bytes": cell["bytes"],
                "min_ns": round(min(cell["times_ns"])),
                "median_ns": round(statistics.median(cell["times_ns"])),
                "algorithm_bytes_per_s": round(algorithm),
                "bus_bytes_per_s": round(algorithm * bus_factor(cell["collective"], answer["ranks"])),
                "n": len(cell["times_ns"]),
            }
        )
    return rows


def fit_collectives(answer: Mapping[str, Any]) -> dict[str, LinkFit | None]:
    """The line of each collective through the least of its times."""
    found: dict[str, LinkFit | None] = {}
    for name in dict.fromkeys(cell["collective"] for cell in answer["cells"]):
        factor = bus_factor(name, answer["ranks"])
        points = [(c["bytes"] * factor, min(c["times_ns"])) for c in answer["cells"] if c["collective"] == name]
        found[name] = fit_link(points)
    return found


def tabulate_fits(fits: Mapping[str, LinkFit | None], ranks: int) -> list[Row]:
    """Latency, rate and the worst deviation of every line."""
    return [
        {
            "fit": name,
            "latency_ns": None if fit is None else round(fit.latency_ns),
            "rate_bytes_per_s": None if fit is None else round(fit.bytes_per_s),
            "largest_error_ratio": None if fit is None else fit.error_ratio,
            "at_message_bytes": None
            if fit is None or fit.error_bytes is None
            else round(fit.error_bytes / bus_factor(name, ranks)),
        }
        for name, fit in fits.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLink:
    """One way between two ranks."""

    first: int
    second: int
    latency_ns: float
    bytes_per_s: float
    is_slow: bool


def judge_pairs(answer: Mapping[str, Any]) -> tuple[PairLink, ...]:
    """Every pair that was timed. Pairs on one host and pairs between hosts are two kinds, each judged by itself: one
    rank with a slow link makes most pairs of three or four ranks slow, so the quickest quarter is the measure."""
    large, hosts = answer["pair_bytes"]["large"], answer["hosts"]
    kinds: dict[bool, list[Mapping[str, Any]]] = {}
    for pair in answer["pairs"]:
        kinds.setdefault(hosts[pair["first"]] == hosts[pair["second"]], []).append(pair)
    found: list[PairLink] = []
    for is_local, pairs in kinds.items():
        ratio = SLOW_LOCAL_RATIO if is_local and answer["backend"] == "gloo" else SLOW_PAIR_RATIO
        quick = (len(pairs) - 1) // 4
        large_ns = sorted(pair["large_ns"] for pair in pairs)[quick]
        small_ns = sorted(pair["small_ns"] for pair in pairs)[quick]
        for pair in pairs:
            is_late = pair["small_ns"] > max(small_ns / ratio, small_ns + LEAST_SLOW_NS)
            found.append(
                PairLink(
                    first=pair["first"],
                    second=pair["second"],
                    latency_ns=pair["small_ns"],
                    bytes_per_s=large / pair["large_ns"] * 1e9,
                    is_slow=len(pairs) >= FEWEST_PAIRS and (large_ns < ratio * pair["large_ns"] or is_late),
                )
            )
    return tuple(sorted(found, key=lambda link: (link.first, link.second)))


def tabulate_pairs(links: Sequence[PairLink], hosts: Sequence[str]) -> list[Row]:
    def row(link: PairLink) -> Row:
        found: dict[str, Value] = {"ranks": f"{link.first} and {link.second}"}
        if len(set(hosts)) > 1:
            found["hosts"] = " and ".join(dict.fromkeys((hosts[link.first], hosts[link.second])))
        return found | {
            "one_way_ns": round(link.latency_ns),
            "rate_bytes_per_s": round(link.bytes_per_s),
            "slow": link.is_slow,
        }

    return [row(link) for link in links]


def describe_slow_pairs(links: Sequence[PairLink], hosts: Sequence[str]) -> str | None:
    """Which pair is slow, or which rank where all of its pairs are and no other; None where none is."""
    slow = [link for link in links if link.is_slow]
    if not slow:
        return None
    others = [link.bytes_per_s for link in links if not link.is_slow]
    usual = f"{format_byte_rate(statistics.median(others))} between the others" if others else "all are slow"
    for rank in range(len(hosts)):
        own = [link for link in links if rank in (link.first, link.second)]
        if len(own) > 1 and set(own) == set(slow):
            rates = sorted(link.bytes_per_s for link in own)
            return (
                f"all pairs of rank {rank} ({hosts[rank]}) are slow: {format_byte_rate(rates[0])} to "
                f"{format_byte_rate(rates[-1])}, {usual}; check its cable, its port and its host's load"
            )
    worst = min(slow, key=lambda link: (link.bytes_per_s, -link.latency_ns))
    where = " and ".join(dict.fromkeys((hosts[worst.first], hosts[worst.second])))
    more = f", and {len(slow) - 1} more pair{'s' if len(slow) > 2 else ''}" if len(slow) > 1 else ""
    return (
        f"ranks {worst.first} and {worst.second} ({where}) are slow{more}: {format_byte_rate(worst.bytes_per_s)} and "
        f"{worst.latency_ns / 1e3:.0f} µs one way, {usual}"
    )


def tabulate_gradients(answer: Mapping[str, Any]) -> list[Row]:
    """The exchange of the recorded buckets, with nothing else to do; no row where none were given."""
    found = answer.get("gradients")
    if found is None:
        return []
    least_ns = min(found["times_ns"])
    rate = found["bytes"] * bus_factor("all-reduce", answer["ranks"]) / least_ns * 1e9
    return [
        {
            "gradients": f"{found['buckets']} bucket{'s' if found['buckets'] > 1 else ''}",
            "size_bytes": found["bytes"],
            "min_ns": round(least_ns),
            "median_ns": round(statistics.median(found["times_ns"])),
            "bus_bytes_per_s": round(rate),
            "n": len(found["times_ns"]),
        }
    ]


def tabulate_ways_to_send(choice: WayChoice) -> list[Row]:
    """The exposed time per step of every way of sending."""
    return [
        {
            "send": way.way,
            "sent_bytes": round(way.sent_bytes),
            "exposed_ns": round(way.exposed_ns),
            "picked": way is choice.picked,
        }
        for way in choice.ways
    ]


def describe_choice(choice: WayChoice) -> str:
    """The choice in one sentence, with what it is forecast to save."""
    now_s, then_s = choice.now.exposed_ns * 1e-9, choice.picked.exposed_ns * 1e-9
    if choice.picked.technique is None:
        return f"send gradients as they are: no other method saves 10% of the step ({now_s:.3g} s are exposed)"
    settings = ", ".join(f"{name} = {value}" for name, value in choice.picked.settings.items())
    return (
        f"send gradients by {choice.picked.technique} ({settings}): {then_s:.3g} s of a step would be exposed, now "
        f"{now_s:.3g} s"
    )


def collect_notes(answer: Mapping[str, Any], fits: Mapping[str, LinkFit | None]) -> list[str]:
    """Notes for the reader of the tables."""
    notes = []
    unsupported = {one["collective"]: one["why"] for one in answer["left_out"] if one["why"] != "budget"}
    notes += [f"{name} was not timed: {why}" for name, why in unsupported.items()]
    dropped = [one for one in answer["left_out"] if one["why"] == "budget"]
    if dropped:
        least = min(one["bytes"] for one in dropped)
        size = f"{least >> 20} MiB" if least >= 1 << 20 else f"{least >> 10} KiB"
        notes.append(f"{len(dropped)} messages of {size} or more did not fit into --budget")
    if answer["pairs_left"]:
        notes.append(f"{answer['pairs_left']} pairs of ranks did not fit into --budget")
    notes.append(
        "times are those of the slowest rank; bandwidths and fits use the shortest time; bus bandwidth uses "
        "nccl-tests' formula"
    )
    if any(fit and fit.error_ratio and fit.error_ratio > POOR_FIT_RATIO for fit in fits.values()):
        notes.append("the rate of a fit applies to large messages; do not use a fit whose largest error is high")
    if "all-reduce" in fits and fits["all-reduce"] is None:
        notes.append("all-reduce was timed at too few sizes for a fit; raise --budget or give smaller --sizes")
    return notes
