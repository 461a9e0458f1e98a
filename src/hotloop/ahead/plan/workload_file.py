"""A workload file (TOML: [model], [run], [hardware]) -> Workload and Hardware. Any invalid value is one UsageError."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from hotloop.core.errors import UsageError
from hotloop.core.hardware import Hardware, Price
from hotloop.core.workload import DecoderShape, PlannedRun, Workload, field_names, require_choice, require_count

from .cost import USUAL_FAILURES, Failures
from .hardware_files import PRICE_KINDS, check_keys, read_hardware, read_number

MODELS = Path(__file__).with_name("models.toml")
ABOUT_MODEL = ("params", "source", "fused_loss")
"""Keys of models.toml that are not part of a shape; ``fused_loss`` is the practice of the model's own training code."""
FAILURE_KEYS = field_names(Failures)
HARDWARE_KEYS = ("gpu", "count", "usd_per_hour", "spot_usd_per_hour", "price_kind", *FAILURE_KEYS)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The request of a workload file."""

    name: str
    """The name of the model, or of the file."""
    workload: Workload
    gpu: str
    """The name in the file."""
    hardware: Hardware
    price_kind: str = "on-demand"
    tokens: int | None = None
    """The tokens of the whole training, if the file states them."""
    failures: Failures = USUAL_FAILURES


def read_model(name: str, **changes: Any) -> DecoderShape:
    """A known model with some fields changed. Raises UsageError if it is unknown."""
    known = read_models()
    if name not in known:
        raise UsageError(f"unknown model {name!r}: choose one of {', '.join(known)}, or give its shape in [model]")
    shape = {key: value for key, value in known[name].items() if key not in ABOUT_MODEL}
    return DecoderShape(**{**shape, **changes})


@cache
def read_models() -> Mapping[str, Any]:
    """Known models by name: their shapes, and ABOUT_MODEL, whose ``params`` is the source's number."""
    return tomllib.loads(MODELS.read_text(encoding="utf-8"))


def read_workload_file(path: str) -> PlanRequest:
    """The request in this file. Raises UsageError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from error
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    try:
        return parse_workload(tables, name=Path(path).stem)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def parse_workload(tables: Mapping[str, Any], name: str) -> PlanRequest:
    """The request of a workload file's tables. Raises UsageError."""
    check_keys("table ", tables, ("model", "run", "hardware", "goal"))
    model, run, hardware = (_table(tables, one) for one in ("model", "run", "hardware"))
    goal = _table(tables, "goal") if "goal" in tables else {}
    check_keys("key goal.", goal, ("tokens",))
    tokens = goal.get("tokens")
    if isinstance(tokens, float) and tokens.is_integer():
        tokens = int(tokens)  # 1e12 is a float in TOML
    if tokens is not None:
        require_count("goal.tokens", tokens)
    check_keys("key hardware.", hardware, HARDWARE_KEYS)
    for key in ("gpu", "count"):
        if key not in hardware:
            raise UsageError(f"hardware.{key} is missing: [hardware] needs gpu and count")
    if not isinstance(hardware["gpu"], str):
        raise UsageError(f"hardware.gpu = {hardware['gpu']!r}: give the name of a device in quotes")
    shape = _build_model(model)
    workload = Workload(model=shape, run=_build_run(run, model), gpus=hardware["count"])
    device = _price(read_hardware(hardware["gpu"]), hardware)
    precision = workload.run.precision
    if precision.removeprefix("pure-") not in device.peak_flops:
        raise UsageError(f"run.precision = {precision!r}: {device.name} computes only {', '.join(device.peak_flops)}")
    return PlanRequest(
        name=str(model.get("name", name)),
        workload=workload,
        gpu=hardware["gpu"],
        hardware=device,
        price_kind=hardware.get("price_kind", "on-demand"),
        tokens=tokens,
        failures=Failures(**{key: hardware[key] for key in FAILURE_KEYS if key in hardware}),
    )


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name)
    if not isinstance(table, dict):
        raise UsageError(f"the table [{name}] is missing: a workload file needs [model], [run] and [hardware]")
    return table


def _build_model(table: Mapping[str, Any]) -> DecoderShape:
    check_keys("key model.", table, ("name", *field_names(DecoderShape)))
    _check_types("model", table, DecoderShape)
    rest = {key: value for key, value in table.items() if key != "name"}
    if isinstance(table.get("name"), str) and ("layers" not in rest or table["name"] in read_models()):
        return read_model(table["name"], **rest)
    _require("model", rest, ("layers", "hidden", "heads", "vocab", "seq"))
    return DecoderShape(**rest)


def _build_run(table: Mapping[str, Any], model: Mapping[str, Any]) -> PlannedRun:
    check_keys("key run.", table, field_names(PlannedRun))
    _check_types("run", table, PlannedRun)
    _require("run", table, ("micro_batch", "global_batch"))
    run = PlannedRun(**table)
    usual: dict[str, Any] = {}
    if run.framework == "torch" and run.sharding.startswith("zero"):
        usual["sequence_parallel"] = False  # DeepSpeed has no sequence parallelism of its own
    if model.get("name") in read_models():
        usual["fused_loss"] = read_models()[model["name"]].get("fused_loss", run.fused_loss)
    return replace(run, **{key: value for key, value in usual.items() if key not in table})


def _require(name: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in table]
    if missing:
        raise UsageError(f"{', '.join(f'{name}.{key}' for key in missing)} missing: [{name}] needs {', '.join(keys)}")


def _check_types(name: str, table: Mapping[str, Any], kind: type) -> None:
    """Checks flags and words; the data classes check numbers and choices."""
    for field in fields(kind):
        value = table.get(field.name)
        if value is None:
            continue
        if field.type == "bool" and not isinstance(value, bool):
            raise UsageError(f"{name}.{field.name} = {value!r}: give true or false")
        if field.type == "str" and not isinstance(value, str):
            raise UsageError(f"{name}.{field.name} = {value!r}: give a word in quotes")


def _price(device: Hardware, table: Mapping[str, Any]) -> Hardware:
    """The device, at the file's price if it states one."""
    kind = table.get("price_kind", "on-demand")
    require_choice("hardware.price_kind", kind, PRICE_KINDS)
    if kind == "spot" and "usd_per_hour" in table and "spot_usd_per_hour" in table:
        raise UsageError("hardware.usd_per_hour and spot_usd_per_hour are both spot prices here: give only one of them")
    own = {}
    for key, of_kind in (("usd_per_hour", kind), ("spot_usd_per_hour", "spot")):
        if key in table:
            usd = read_number(f"hardware.{key}", table[key])
            own[of_kind] = Price(usd_per_hour=usd, provider="own", day="as given", kind=of_kind)
    others = (price for price in device.prices if price.kind not in own)
    return replace(device, prices=(*own.values(), *others))
