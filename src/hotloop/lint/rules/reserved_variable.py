"""reserved-variable: a TrainJob sets variables that the trainer sets itself."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests, find_specs


@lint_rule("reserved-variable", "a TrainJob sets variables that the trainer sets itself", reads="kubernetes")
def reserved_variable(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for `PET_*` variables (`PET_NNODES`, `PET_MASTER_ADDR`, ...) in a TrainJob or its runtime.

    ## Why it costs
    Kubeflow's trainer gives them to torchrun itself. It refuses a job that sets them, or the nodes disagree on where
    they meet.

    ## How to tell
    A TrainJob, or a runtime with a `torch` policy, has such a name in a container's `env`.

    ## What to do
    Remove them, and set `trainer.numNodes` and `trainer.numProcPerNode`.

    ## When it is wrong
    With a runtime that does not start torchrun.
    """
    for one in manifests.objects:
        kind = one["kind"].text
        is_runtime = kind in ("TrainingRuntime", "ClusterTrainingRuntime") and bool(one["spec.mlPolicy.torch"])
        if kind != "TrainJob" and not is_runtime:
            continue
        entries = one["spec.trainer.env"].elements
        entries += [each for spec in find_specs(one) for c in spec["containers"].elements for each in c["env"].elements]
        for each in entries:
            name = each["name"].text or ""
            if name.startswith("PET_"):
                yield LintFinding(
                    severity=Severity.MEDIUM,
                    line=each["name"].line,
                    message=f"{name} is reserved: the trainer sets it for torchrun",
                    advice="remove it; set trainer.numNodes and trainer.numProcPerNode",
                )
