"""Measurements of the ranks of ``bench comm`` -> its tables, its verdict, and the fit of their link."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.core.benchmarks import Row
from hotloop.core.errors import UsageError
from hotloop.core.link_choice import WayChoice
from hotloop.core.link_fit import LinkFit, bus_factor, fit_link

SIZES = tuple(1 << shift for shift in range(10, 27, 2))
"""1 KiB to 64 MiB, each four times the previous one."""
MOST_RANKS = 64
"""Ranks of one host, started by --ranks."""
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
    notes.append(
        "times are those of the slowest rank; bandwidths and fits use the shortest time; bus bandwidth uses "
        "nccl-tests' formula"
    )
    if any(fit and fit.error_ratio and fit.error_ratio > POOR_FIT_RATIO for fit in fits.values()):
        notes.append("the rate of a fit applies to large messages; do not use a fit whose largest error is high")
    if "all-reduce" in fits and fits["all-reduce"] is None:
        notes.append("all-reduce was timed at too few sizes for a fit; raise --budget or give smaller --sizes")
    return notes
