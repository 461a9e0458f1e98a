"""A training's operators, optimizer and buckets as JSON -> their times as they are and with changes, as JSON.

It judges nothing: times go out, forecasts are made from them elsewhere. Tensors are random, shapes are those recorded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hotloop.core.catalogue import Catalogue
from hotloop.probe.parts.buckets import run_buckets
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
            times = part.measure(request, part.budget_ratio * request.budget_s)
            result[part.id] = None if times is None else times.to_dict()
        except Exception as error:  # one measurement that fails must not lose the others
            result["failed"][part.id] = f"{type(error).__name__}: {error}"[:300]
    result["elapsed_s"] = round(time.perf_counter() - begin_s, 3)
    return result


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--buckets":
        print(json.dumps(run_buckets(json.loads(arguments[1])).to_dict()))
        return 0
    if len(arguments) != 2:
        print("usage: opportunities.py IN.json OUT.json", file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        given = json.load(file)
    result = measure(given)
    partial = arguments[1] + ".part"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(partial, arguments[1])
    return 0
