"""A device's name -> its published peaks, for the roofline; None for a device that is not in the table.

Dense figures without sparsity, from the makers' data sheets: NVIDIA V100 (2020), A100 (2021), H100 SXM (2023), H200
(2024), B200 (2024), L40S and L4 (2023), A10 (2021), T4 (2019); AMD MI210 and MI250X (2022), MI300X (2023).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What an element type can reach at most."""

    kind: str
    flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of one device. A type that the device has no matrix unit for is absent."""

    flops_per_s: dict[str, float]
    """By element type: 'float64', 'float32' (without TF32), 'tf32', 'float16', 'bfloat16'."""
    bytes_per_s: float

    def of(self, types: str) -> Peak | None:
        """The peak of products whose arguments have these types, as a trace or a recording names them."""
        kind = name_type(types)
        # It is not told whether TF32 was allowed: the higher roof is the honest one.
        if kind == "float32" and "tf32" in self.flops_per_s:
            kind = "tf32"
        return Peak(kind=kind, flops_per_s=self.flops_per_s[kind]) if kind in self.flops_per_s else None


def name_type(types: str) -> str | None:
    """The element type that a product computes in; None for none that is known.

    >>> name_type('["float", "float"]'), name_type("c10::Half"), name_type("long int")
    ('float32', 'float16', None)
    """
    kinds = (("BFloat16", "bfloat16"), ("Half", "float16"), ("float", "float32"), ("double", "float64"))
    return next((kind for word, kind in kinds if word in types), None)


_TABLE: tuple[tuple[re.Pattern[str], Peaks], ...] = (
    (
        re.compile(r"\bB200\b"),
        Peaks(
            flops_per_s={"float64": 37e12, "float32": 80e12, "tf32": 1.125e15, "float16": 2.25e15, "bfloat16": 2.25e15},
            bytes_per_s=8.0e12,
        ),
    ),
    (
        re.compile(r"\bH200\b"),
        Peaks(
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12},
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
            flops_per_s={"float64": 67e12, "float32": 67e12, "tf32": 494.5e12, "float16": 989e12, "bfloat16": 989e12},
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
    (
        re.compile(r"\bL4\b"),
        Peaks(
            flops_per_s={"float32": 30.3e12, "tf32": 60e12, "float16": 121e12, "bfloat16": 121e12},
            bytes_per_s=0.3e12,
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
