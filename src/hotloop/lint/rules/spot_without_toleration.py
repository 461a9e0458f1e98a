"""spot-without-toleration: a pod selects spot nodes whose taint it does not tolerate."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests

SPOT = (
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("eks.amazonaws.com/capacitytype", "spot"),
    ("eks.amazonaws.com/capacityType", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
)


@lint_rule("spot-without-toleration", "a pod selects spot nodes whose taint it does not tolerate", reads="kubernetes")
def spot_without_toleration(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for a node selector for spot nodes without a toleration.

    ## Why it costs
    On Azure all spot nodes have the taint `kubernetes.azure.com/scalesetpriority=spot:NoSchedule`: the pod stays
    pending for ever. Elsewhere it does if the nodes were given such a taint.

    ## How to tell
    `nodeSelector` names spot capacity, and `tolerations` hold nothing about it. `medium` on Azure, where the taint is
    always there, else `info`.

    ## What to do
    Add the toleration of your provider beside the selector.

    ## When it is wrong
    If an admission webhook adds the toleration, as some clusters do.
    """
    for pod in manifests.pods:
        tolerated = [one for one in pod.spec["tolerations"].elements]
        for key, value in pod.spec["nodeSelector"].items:
            if (key, (value.text or "").lower()) not in SPOT:
                continue
            if any(one["key"].text in (key, None) or "spot" in (one["key"].text or "").lower() for one in tolerated):
                continue
            yield LintFinding(
                severity=Severity.MEDIUM if "azure" in key else Severity.INFO,
                line=value.line,
                message=f"selects spot nodes ({key}) and does not tolerate a taint of theirs",
                advice=f"add a toleration with key {key}",
            )
