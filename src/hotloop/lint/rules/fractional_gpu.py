"""fractional-gpu: a fraction of a GPU is asked for, which no cluster grants."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests, gpu_resources


@lint_rule("fractional-gpu", "a fraction of a GPU is asked for, which no cluster grants", reads="kubernetes")
def fractional_gpu(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for a quantity of `nvidia.com/gpu` (or another vendor's GPUs) that is no whole number.

    ## Why it costs
    The API server refuses the object: extended resources are integers.

    ## How to tell
    The value is a fraction such as `0.25`, or has a unit of thousandths such as `500m`.

    ## What to do
    Ask for 1 and let the device plugin share it: time-slicing, MPS, or MIG's own resource names.

    ## When it is wrong
    If a webhook of the cluster rewrites the value first.
    """
    for pod in manifests.pods:
        for container in pod.containers:
            for name, value in gpu_resources(container, "limits") + gpu_resources(container, "requests"):
                number = value.number
                thousandths = (value.text or "").endswith("m")
                if thousandths or (number is not None and number != int(number)):
                    yield LintFinding(
                        severity=Severity.HIGH,
                        line=value.line,
                        message=f"{name}: {value.text} is refused: GPUs are whole numbers",
                        advice="ask for 1, and share it by time-slicing, MPS or MIG",
                    )
