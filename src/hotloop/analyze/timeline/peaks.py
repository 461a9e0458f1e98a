"""A device's name -> its published peaks, for the roofline; None for a device that is not in the table.

Dense figures without sparsity, from the makers' data sheets: NVIDIA V100 (2020), A100 (2021), H100 SXM (2023), H200
(2024), B200 (2024), L40S (2023), A10 (2021), T4 (2019); AMD MI210 and MI250X (2022), MI300X (2023).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of one device. A type that the device has no matrix unit for is absent."""

    flops_per_s: dict[str, float]
    """By element type: 'float64', 'float32' (without TF32), 'tf32', 'float16', 'bfloat16'."""
    bytes_per_s: float


_TABLE: tuple[tuple[re.Pattern[str], Peaks], ...] = (
    (
        re.compile(r"\bB200\b"),
        Peaks(
            flops_per_s={"float64": 37e12, "float32": 75e12, "tf32": 1.1e15, "float16": 2.25e15, "bfloat16": 2.25e15},
            bytes_per_s=8.0e12,
        ),
    ),
    (
        re.compile(r"\bH200\b"),
        Peaks(
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494e12, "float16": 989e12, "bfloat16": 989e12},
            bytes_per_s=4.8e12,
        ),
    ),
    (
        re.compile(r"\bH100\b.*PCIe"),
        Peaks(
            flops_per_s={"float64": 51e12, "float32": 51e12, "tf32": 378e12, "float16": 756e12, "bfloat16": 756e12},
            bytes_per_s=2.0e12,
        ),
    ),
    (
        re.compile(r"\bH100\b"),
        Peaks(
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494e12, "float16": 989e12, "bfloat16": 989e12},
            bytes_per_s=3.35e12,
        ),
    ),
    (
        re.compile(r"\bA100\b.*80GB"),
        Peaks(
            flops_per_s={"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bytes_per_s=2.0e12,
        ),
    ),
    (
        re.compile(r"\bA100\b"),
        Peaks(
            flops_per_s={"float64": 19.5e12, "float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12},
            bytes_per_s=1.555e12,
        ),
    ),
    (
        re.compile(r"\bV100\b"),
        Peaks(flops_per_s={"float64": 7.8e12, "float32": 15.7e12, "float16": 125e12}, bytes_per_s=0.9e12),
    ),
    (
        re.compile(r"\bL40S\b"),
        Peaks(
            flops_per_s={"float32": 91.6e12, "tf32": 183e12, "float16": 362e12, "bfloat16": 362e12},
            bytes_per_s=0.864e12,
        ),
    ),
    (
        re.compile(r"\bA10\b"),
        Peaks(
            flops_per_s={"float32": 31.2e12, "tf32": 62.5e12, "float16": 125e12, "bfloat16": 125e12},
            bytes_per_s=0.6e12,
        ),
    ),
    (re.compile(r"\bT4\b"), Peaks(flops_per_s={"float32": 8.1e12, "float16": 65e12}, bytes_per_s=0.32e12)),
    (
        re.compile(r"MI300X"),
        Peaks(
            flops_per_s={
                "float64": 163.4e12,
                "float32": 163.4e12,
                "tf32": 653.7e12,
                "float16": 1307.4e12,
                "bfloat16": 1307.4e12,
            },
            bytes_per_s=5.3e12,
        ),
    ),
    (
        re.compile(r"MI210"),
        Peaks(
            flops_per_s={"float64": 45.3e12, "float32": 45.3e12, "float16": 181e12, "bfloat16": 181e12},
            bytes_per_s=1.6e12,
        ),
    ),
)


def find_peaks(device_name: str | None) -> Peaks | None:
    """The peaks of a device by the name that the driver gives it."""
    if device_name is None:
        return None
    for pattern, peaks in _TABLE:
        if pattern.search(device_name):
            return peaks
    return None
