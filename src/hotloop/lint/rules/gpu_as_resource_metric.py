"""gpu-as-resource-metric: an autoscaler watches a resource metric that does not exist."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests


@lint_rule("gpu-as-resource-metric", "an autoscaler watches a resource metric that does not exist", reads="kubernetes")
def gpu_as_resource_metric(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for a HorizontalPodAutoscaler with a metric of type `Resource` that is neither `cpu` nor `memory`.

    ## Why it costs
    The metrics server knows these two alone. The autoscaler reports an unknown metric and never scales.

    ## How to tell
    `spec.metrics[].type` is `Resource`, and its name is, for example, `gpu` or `nvidia.com/gpu`.

    ## What to do
    Export utilisation (dcgm-exporter), offer it by a metrics adapter, and use the type `Pods` or `External`.

    ## When it is wrong
    If the cluster has a metrics server of its own that serves this name.
    """
    for one in manifests.objects:
        if one["kind"].text != "HorizontalPodAutoscaler":
            continue
        for metric in one["spec.metrics"].elements:
            name = metric["resource.name"]
            if metric["type"].text in ("Resource", "ContainerResource") and name.text not in (None, "cpu", "memory"):
                yield LintFinding(
                    severity=Severity.HIGH,
                    line=name.line,
                    message=f"{name.text} is no resource metric, so this autoscaler never scales by it",
                    advice="use a Pods or External metric that an adapter serves, such as DCGM_FI_DEV_GPU_UTIL",
                )
