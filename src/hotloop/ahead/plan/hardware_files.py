"""Name of a device, or path of a TOML file -> Hardware, and the rates that such devices reach in training.

The files in hardware/ are the known devices. A user's own file may begin with ``base = "h100-80g-sxm"``: its values
override the base, the rest stays. The efficiencies are the constants of plan/efficiency.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError, suggest_known
from hotloop.core.hardware import Hardware, Price
from hotloop.core.link_fit import LinkFit
from hotloop.core.workload import field_names, require_choice, require_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of data-sheet rates, and costs that no data sheet states."""

    product_ratio: float
    """Share of the 16-bit (or 32-bit) peak, for a product so large that its bytes do not matter."""
    fp8_ratio: float
    """Share of the 8-bit peak, likewise."""
    attention_ratio: float
    """Share of the 16-bit peak, for fused attention in PyTorch, counting the causal half."""
    megatron_attention_ratio: float
    """The same in Megatron, which uses cuDNN's attention."""
    idle_outputs: float
    """Further elements of a product's result that its last wave of tiles could have computed."""
    backward_ratio: float
    """Backward time over twice the forward time, as its FLOPs and bytes are twice the forward's."""
    memory_ratio: float
    """Share of the memory's bandwidth."""
    eager_passes: float
    """Bytes moved by everything but products, over the minimum, in uncompiled PyTorch."""
    compiled_passes: float
    megatron_passes: float
    """The same for Megatron's own fused kernels."""
    host_ns: float
    """Time until the host has launched one layer's forward pass, in uncompiled PyTorch."""
    megatron_host_ns: float
    step_host_ns: float
    """Once a step: the optimizer's launches, clipping, schedule, the next batch."""
    contention_ratio: float
    """The time that overlapped compute and communication add, as a share of the shorter."""
    inside_ratio: float
    """Share of the bandwidth inside a node."""
    between_ratio: float
    """Share of the bandwidth between nodes."""
    hop_ratio: float
    """The time of a ring's step between nodes, over the latency of their link."""
    error_ratio: float
    """At least four fifths of the published steps outside the fit are within this share of the prediction."""
    megatron_error_ratio: float


def read_efficiency(hardware: Hardware) -> Efficiency:
    """This device's constants: its own if published rows give them, by words of its name; else those of any device."""
    tables = _tables()
    words = set(re.split(r"[^a-z0-9]+", hardware.name.lower()))
    values = {name: entry["value"] for name, entry in tables["all"].items()}
    errors = dict(tables["errors"]["other"])
    for kind in ("other", *sorted(words & tables["devices"].keys())):
        values |= {name: entry["value"] for name, entry in tables["devices"][kind].items()}
        errors |= tables["errors"].get(kind, {})
    return Efficiency(**values, error_ratio=errors["torch"], megatron_error_ratio=errors["megatron"])


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath("efficiency.toml").read_text(encoding="utf-8"))


FOLDER = Path(__file__).with_name("hardware")
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
PRICE_KINDS = ("on-demand", "spot", "reserved")
NUMBERS = ("memory_bytes", "memory_bytes_per_s", "host_bytes_per_s", "context_bytes", "power_watt")
LINK_KEYS = ("latency_ns", "bytes_per_s")
PRICE_KEYS = ("usd_per_hour", "provider", "day", "kind", "source")


def list_hardware() -> list[str]:
    """Names of the known devices."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def read_hardware(name: str) -> Hardware:
    """The device of this name, or of the TOML file at this path. Raises UsageError."""
    tables = _read_tables(name)
    try:
        return _build(tables)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def _read_tables(name: str) -> dict[str, Any]:
    is_path = name.endswith(".toml") or "/" in name
    path = Path(name) if is_path else FOLDER / f"{name}.toml"
    if not is_path and name not in list_hardware():
        raise UsageError(
            f"unknown gpu {name!r}: choose one of {', '.join(list_hardware())}, or give the path of a TOML file"
        )
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"cannot read the hardware file {path}: {reason}") from error
    base = tables.pop("base", None)
    if base is None:
        return tables
    known = list_hardware()
    if base not in known:
        raise UsageError(f"{path}: base = {base!r} is not a known device; choose one of {', '.join(known)}")
    return _merge(_read_tables(base), tables)


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = {**base, **own}
    for key in base.keys() & own.keys():
        if isinstance(base[key], dict) and isinstance(own[key], dict):
            both[key] = {**base[key], **own[key]}
    return both


def _build(tables: Mapping[str, Any]) -> Hardware:
    check_keys("key ", tables, field_names(Hardware))
    needed = [field.name for field in fields(Hardware) if field.default is MISSING and field.default_factory is MISSING]
    missing = [key for key in needed if key not in tables]
    if missing:
        raise UsageError(f"{missing[0]} is missing; a hardware file needs {', '.join(needed)}")
    require_count("gpus_per_node", tables["gpus_per_node"])
    peaks = _table("peak_flops", tables["peak_flops"], DTYPES)
    values: dict[str, Any] = {key: read_number(key, tables[key], above=True) for key in NUMBERS if key in tables}
    values |= {key: int(values[key]) for key in ("memory_bytes", "context_bytes") if key in values}
    return Hardware(
        name=str(tables["name"]),
        peak_flops={dtype: read_number(f"peak_flops.{dtype}", value, above=True) for dtype, value in peaks.items()},
        gpus_per_node=tables["gpus_per_node"],
        inside=_link("inside", tables["inside"]),
        between=_link("between", tables["between"]),
        prices=tuple(_price(one) for one in tables.get("prices", ())),
        sources={str(key): str(text) for key, text in tables.get("sources", {}).items()},
        **values,
    )


def check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises UsageError for an unknown key; ``where`` is its prefix."""
    unknown = next((key for key in table if key not in known), None)
    if unknown is not None:
        raise UsageError(f"unknown {where}{unknown}{suggest_known(unknown, known)}")


def read_number(name: str, value: object, *, above: bool = False) -> float:
    """Raises UsageError unless it is a finite number of 0 or more, or ``above`` 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not is_number or (above and not value):
        raise UsageError(f"{name} = {value!r}: give a number {'above 0' if above else 'of 0 or more'}")
    return float(value)  # type: ignore[arg-type]


def _table(key: str, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{key} is not a table; give {', '.join(known)} in [{key}]")
    check_keys(f"key {key}.", value, known)
    return value


def _link(key: str, value: Any) -> LinkFit:
    table = _table(key, value, LINK_KEYS)
    return LinkFit(**{each: read_number(f"{key}.{each}", table.get(each), above=True) for each in LINK_KEYS})


def _price(value: Any) -> Price:
    table = _table("prices", value, PRICE_KEYS)
    kind = table.get("kind", "on-demand")
    require_choice("prices.kind", kind, PRICE_KINDS)
    return Price(
        usd_per_hour=read_number("prices.usd_per_hour", table.get("usd_per_hour"), above=True),
        provider=str(table.get("provider", "own")),
        day=str(table.get("day", "unknown")),
        kind=kind,
    )
