"""A training's operators, optimizer and buckets as JSON -> their times as they are and with changes, as JSON.

It judges nothing: times go out, forecasts are made from them elsewhere. Tensors are random, shapes are those recorded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from hotloop.core.catalogue import Catalogue
from hotloop.probe.request import Part, ProbeRequest

PARTS = Catalogue(Part, "hotloop.probe.parts")


def measure(given: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the request asks for; what fails says why and stops nothing else."""
    begin_s = time.perf_counter()
    torch.manual_seed(0)
    request = ProbeRequest.from_dict(given)
    if request.threads:
        torch.set_num_threads(request.threads)
    result: dict[str, Any] = {"schema": "hotloop.probe-result/1", "torch": torch.__version__, "failed": {}}
    for part in sorted(PARTS.values(), key=lambda part: part.order):
        if not part.is_wanted(request):
            continue
        try:
            result[part.id] = part.measure(request, part.budget_ratio * request.budget_s)
        except Exception as error:  # one measurement that fails must not lose the others
            result["failed"][part.id] = f"{type(error).__name__}: {error}"[:300]
    result["elapsed_s"] = round(time.perf_counter() - begin_s, 3)
    return result
