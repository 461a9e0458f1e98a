"""Environment variables -> what they do to a training here: harm, cost, or nothing at all.

A variable is judged by its value and by whether anything on this machine reads it. variables.toml describes each
variable; a new one is one more table there.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hotloop.core.doctor import MachineCheck
from hotloop.core.redact import redact_text
from hotloop.measure.bench.checks import ResultMaker, machine_check
from hotloop.measure.bench.host import Host, listed

Level = Literal["warning", "harmful"]
DESCRIPTIONS = Path(__file__).with_name("variables.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``is_bad`` looks at the value. ``is_read`` says whether anything here reads it; None when that is unknown."""

    name: str
    is_bad: Callable[[str, Host], bool]
    level: Level
    why: str
    fix: str
    is_read: Callable[[Host], bool | None]
    unread: str
    """Why it has no effect, where it is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The effect of one variable of this environment. ``level`` is None when it has no effect."""

    name: str
    value: str
    level: Level | None
    why: str
    fix: str


@cache
def read_variables() -> tuple[Variable, ...]:
    """The variables that variables.toml describes."""
    described = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))
    unread = described["unread"]
    return tuple(_variable(name, one, unread) for one in described["variable"] for name in one["names"])


def _variable(name: str, described: dict[str, Any], unread: dict[str, str]) -> Variable:
    reader = described.get("read_by", "nothing")
    return Variable(
        name=name,
        is_bad=_condition(described.get("bad", "any")),
        level=described.get("level", "warning"),
        why=described.get("why", "").replace("{name}", name),
        fix=described.get("fix", "unset {name}").replace("{name}", name),
        is_read=READERS[reader],
        unread=described.get("unread", unread.get(reader, "")),
    )


def _condition(bad: str | list[str] | dict[str, int]) -> Callable[[str, Host], bool]:
    if isinstance(bad, str):
        return CONDITIONS[bad]
    if isinstance(bad, list):
        return lambda value, host: value.strip().lower() in bad
    limit = bad["below"]
    return lambda value, host: 0 < (integer(value) or 0) < limit


def judge_variables(host: Host) -> tuple[Effect, ...]:
    """The effects worth reporting, harmful first; variables that do what they should are left out."""
    effects = []
    for one in read_variables():
        value = host.environment.get(one.name)
        if value is None:
            continue
        read = one.is_read(host)
        if read is False:
            effects.append(Effect(name=one.name, value=value, level=None, why=one.unread, fix=f"unset {one.name}"))
        elif one.is_bad(value, host):
            # Where it is unknown whether anything reads it, the harm is possible, not certain.
            level: Level = one.level if read else "warning"
            why = one.why if read else f"{one.why} (unknown whether anything here reads it)"
            effects.append(Effect(name=one.name, value=value, level=level, why=why, fix=one.fix))
    order: dict[str | None, int] = {"harmful": 0, "warning": 1, None: 2}
    return tuple(sorted(effects, key=lambda e: (order[e.level], e.name)))


def integer(text: str) -> int | None:
    """A whole number, or None."""
    text = text.strip()
    return int(text) if re.fullmatch(r"[+-]?\d{1,9}", text) else None


def is_on(value: str, host: Host) -> bool:
    """A switch that is on: a number other than 0, or a word for yes."""
    number = integer(value)
    return number != 0 if number is not None else value.strip().lower() in ("true", "yes", "on", "y", "t")


def is_off(value: str, host: Host) -> bool:
    number = integer(value)
    return number == 0 if number is not None else value.strip().lower() in ("false", "no", "off", "n", "f")


def is_set(value: str, host: Host) -> bool:
    return value.strip() != ""


# Who reads a variable here.


def if_torch(question: Callable[[Host], bool]) -> Callable[[Host], bool | None]:
    """The result where torch's own facts are known, else None."""
    return lambda host: question(host) if host.has_torch else None


def has_cuda(host: Host) -> bool:
    return bool(host.fact("accelerator", "kind") == "cuda")


def has_nccl(host: Host) -> bool:
    return bool(host.fact("distributed", "backends", "nccl")) and has_cuda(host)


def has_several_gpus(host: Host) -> bool:
    # A GPU that is hidden here may be visible to the training; a GPU that does not exist is not.
    return has_nccl(host) and max(host.devices_count or 0, len(host.gpus or ())) > 1


def has_infiniband(host: Host) -> bool:
    return has_nccl(host) and bool(host.names("sys/class/infiniband"))


def with_openmp(host: Host, *names: str) -> bool | None:
    """One of these OpenMP runtimes was loaded by torch."""
    loaded = host.fact("openmp")
    return None if not isinstance(loaded, list) or not loaded else any(name in loaded for name in names)


# What makes a value bad.


def names_no_interface(value: str, host: Host) -> bool:
    """An interface list in gloo's format (exact names) with a name that does not exist here."""
    present = host.names("sys/class/net")
    wanted = [name.strip() for name in value.split(",") if name.strip()]
    return bool(present) and any(name not in present for name in wanted)


def matches_no_interface(value: str, host: Host) -> bool:
    """An interface list in NCCL's way (prefixes, '=' exact, '^' all but these) that leaves no interface."""
    present = host.names("sys/class/net")
    inverted = value.startswith("^")
    text = value[1:] if inverted else value
    exact = text.startswith("=")
    wanted = [name.strip() for name in (text[1:] if exact else text).split(",") if name.strip()]
    if not present or not wanted:
        return False

    def hit(name: str) -> bool:
        return any(name == w if exact else name.startswith(w) for w in wanted)

    return not any(hit(name) != inverted for name in present if name != "lo" or not inverted)


def hides_all_gpus(value: str, host: Host) -> bool:
    first = value.split(",")[0].strip()
    return (first == "" or first == "-1") and any(re.fullmatch(r"nvidia\d+", name) for name in host.names("dev"))


def has_missing_library(value: str, host: Host) -> bool:
    paths = [path for path in re.split(r"[\s:]+", value) if "/" in path and "$" not in path]
    return any(not os.path.exists(path) for path in paths)


def limits_vector_units(value: str, host: Host) -> bool:
    """A cap on oneDNN's instruction set below what the CPU has."""
    flags = host.fact("cpu_flags")
    old = ("avx2", "avx512f")
    caps = {"sse41": old, "avx": old, "avx2": old[1:], "avx2_vnni": old[1:], "avx2_vnni_2": old[1:]}
    caps |= {name: ("amx_bf16",) for name in ("avx512_core", "avx512_core_vnni", "avx512_core_bf16")}
    return isinstance(flags, list) and any(flag in flags for flag in caps.get(value.strip().lower(), ()))


def keeps_scalar_kernels(value: str, host: Host) -> bool:
    """torch's own kernels without vector instructions, on a CPU that has them."""
    flags = host.fact("cpu_flags")
    return value.strip().lower() == "default" and isinstance(flags, list) and "avx2" in flags


def spins_while_crowded(value: str, host: Host) -> bool:
    threads = host.number("torch", "threads")
    return (
        value.strip().lower() in ("active", "infinite")
        and threads is not None
        and host.cores_count is not None
        and threads > host.cores_count
    )


def splits_blocks_small(value: str, host: Host) -> bool:
    found = re.search(r"max_split_size_mb\s*:\s*(\d+)", value)
    return found is not None and int(found.group(1)) < 128


CONDITIONS: dict[str, Callable[[str, Host], bool]] = {
    "any": lambda value, host: True,
    "never": lambda value, host: False,
    "set": is_set,
    "on": is_on,
    "off": is_off,
    "names-no-interface": names_no_interface,
    "matches-no-interface": matches_no_interface,
    "hides-all-gpus": hides_all_gpus,
    "has-missing-library": has_missing_library,
    "limits-vector-units": limits_vector_units,
    "keeps-scalar-kernels": keeps_scalar_kernels,
    "spins-while-crowded": spins_while_crowded,
    "splits-blocks-small": splits_blocks_small,
}
"""Names for ``bad``: whether a value is bad on this machine."""

READERS: dict[str, Callable[[Host], bool | None]] = {
    "always": lambda host: True,
    "nothing": lambda host: False,
    "torch": if_torch(lambda host: True),
    "cuda": if_torch(has_cuda),
    "hip": if_torch(lambda host: bool(host.fact("torch", "hip"))),
    "nccl": if_torch(has_nccl),
    "several-gpus": if_torch(has_several_gpus),
    "infiniband": if_torch(has_infiniband),
    "gloo": if_torch(lambda host: bool(host.fact("distributed", "backends", "gloo"))),
    "mkl": if_torch(lambda host: bool(host.fact("torch", "mkl"))),
    "onednn": if_torch(lambda host: bool(host.fact("torch", "onednn"))),
    "intel-openmp": lambda host: with_openmp(host, "libiomp5", "libomp"),
    "gnu-openmp": lambda host: with_openmp(host, "libgomp"),
}
"""Names for ``read_by``: whether something on this machine reads the variable; None when that is unknown."""


@machine_check("variables", "variables", "environment variables")
def check_variables(host: Host, answer: ResultMaker) -> tuple[MachineCheck, ...]:
    effects = judge_variables(host)
    checks = []
    for effect in effects:
        if effect.level is None:
            continue
        one = ResultMaker(f"variable-{effect.name.lower().replace('_', '-').strip('-')}", "variables", effect.name)
        measured = f"{effect.name}={redact_text(effect.value)}"[:120]
        make = one.harmful if effect.level == "harmful" else one.warning
        checks.append(make(measured, why=effect.why, fix=effect.fix, variable=effect.name))
    idle = [effect for effect in effects if effect.level is None]
    if idle:
        one = ResultMaker("variables-without-effect", "variables", "variables without effect")
        reasons: dict[str, list[str]] = {}
        for effect in idle:
            reasons.setdefault(effect.why, []).append(effect.name)
        checks.append(
            one.warning(
                listed([effect.name for effect in idle], most=8),
                why="; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items()),
                fix="unset them, or keep them only for machines where they have an effect",
                variables=[effect.name for effect in idle],
            )
        )
    if checks:
        return tuple(checks)
    variables = read_variables()
    known = sum(1 for one in variables if one.name in host.environment)
    text = f"{len(variables)} checked, {known} set" + (", none harmful" if known else "")
    return (answer.good(text, set_count=known),)
