"""Devices from data files, and from a user's own."""

import tomllib
from pathlib import Path

import pytest

from hotloop.ahead.plan.hardware_files import FOLDER, list_hardware, read_hardware
from hotloop.core.errors import UsageError

PROMISED = {
    "a100-40g-sxm", "a100-80g-sxm", "h100-80g-sxm", "h200", "b200", "l4", "l40s", "v100-32g", "mi300x", "cpu",
}  # fmt: skip


@pytest.mark.parametrize("name", list_hardware())
def test_every_figure_has_a_source(name: str) -> None:
    tables = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    figures = {key for key in tables if key not in ("name", "gpus_per_node", "prices", "sources")}
    assert figures == set(tables["sources"])
    assert all(price["source"].startswith("https://") and len(price["day"]) == 10 for price in tables.get("prices", ()))
    device = read_hardware(name)
    assert device.inside.bytes_per_s >= device.between.bytes_per_s
    assert device.memory_bytes > 1e10


def test_peaks_are_dense() -> None:
    assert read_hardware("h100-80g-sxm").peak("bf16") == 989e12
    assert read_hardware("a100-80g-sxm").peak("pure-bf16") == 312e12
    assert read_hardware("l4").peak("fp16") == 121e12
    assert read_hardware("h100-80g-sxm").peak("fp32") == 494.5e12  # TF32


def test_an_own_file_overrides_its_base(tmp_path: Path) -> None:
    own = tmp_path / "cluster.toml"
    own.write_text('base = "h100-80g-sxm"\nmemory_bytes = 96e9\n[between]\nbytes_per_s = 25e9\n')
    device, base = read_hardware(str(own)), read_hardware("h100-80g-sxm")
    assert (device.memory_bytes, device.between.bytes_per_s) == (96_000_000_000, 25e9)
    assert (device.between.latency_ns, device.peak_flops) == (base.between.latency_ns, base.peak_flops)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('base = "h1000"', "base = 'h1000' is not a known device; choose one of a100-40g-sxm"),
        ("memory_bytes = 1", "name is missing; a hardware file needs name, memory_bytes"),
        ('base = "l4"\nmemory_byte = 1', "unknown key memory_byte; did you mean 'memory_bytes'"),
        ('base = "l4"\nmemory_bytes = -1', "memory_bytes = -1: give a number above 0"),
        ('base = "l4"\n[peak_flops]\nbf61 = 1', "unknown key peak_flops.bf61; did you mean 'bf16'"),
        ('base = "l4"\n[[prices]]\nusd_per_hour = -2', "prices.usd_per_hour = -2"),
        ('base = "l4"\n[[prices]]\nusd_per_hour = 2\nkind = "free"', "choose one of on-demand, spot, reserved"),
        ('base = "l4"\ngpus_per_node = 0', "gpus_per_node = 0"),
        ('base = "l4"\npeak_flops = 3', "peak_flops is not a table"),
        ("base = ", "cannot read the hardware file"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, named: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_hardware(str(own))
    assert named in str(caught.value)
