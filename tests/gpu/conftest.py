"""Tests marked gpu are skipped where there is no CUDA device; what they measure goes into one JSON file."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_measures: dict[str, Any] = {}
_outcomes: dict[str, str] = {}


def _cuda_device() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu") and Path(__file__).parent in item.path.parents]
    if marked and _cuda_device() is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """measure(name=value, ...): kept in the JSON under the test's name."""

    def keep(**values: Any) -> None:
        _measures.setdefault(request.node.name, {}).update(values)

    return keep


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/gpu/" in report.nodeid and (report.when == "call" or report.outcome != "passed"):
        _outcomes[report.nodeid.rpartition("::")[2]] = report.outcome


def result_path() -> Path:
    out = os.environ.get("OUT")
    return (Path(out) if out else ROOT / "benchmarks" / "results") / "gpu.json"


def describe_run(device: str) -> dict[str, Any]:
    import torch

    return {
        "schema": "hotloop.gpu/1",
        "date": date.today().isoformat(),
        "device": device,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "outcomes": dict(sorted(_outcomes.items())),
        "measures": dict(sorted(_measures.items())),
    }


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _measures and "torch" in sys.modules:
        device = _cuda_device()
        if device is not None:
            path = result_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(describe_run(device), indent=1) + "\n")
