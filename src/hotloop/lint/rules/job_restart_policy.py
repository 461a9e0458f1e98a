"""job-restart-policy: a Job's pods have a restart policy that Jobs do not allow."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests


@lint_rule("job-restart-policy", "a Job's pods have a restart policy that Jobs do not allow", reads="kubernetes")
def job_restart_policy(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for `kind: Job` or `CronJob` whose pods have no `restartPolicy`, or `Always`.

    ## Why it costs
    The API server refuses the object: a Job needs `Never` or `OnFailure`, and the default is `Always`.

    ## How to tell
    The pod template has containers with images and no such policy.

    ## What to do
    `restartPolicy: Never`, and `backoffLimit` for how often a failed training is started again.

    ## When it is wrong
    If the file is a patch that another one completes.
    """
    for pod in manifests.pods:
        if pod.kind not in ("Job", "CronJob") or not (pod.owner["apiVersion"].text or "").startswith("batch/"):
            continue
        policy = pod.spec["restartPolicy"]
        if policy.text not in ("Never", "OnFailure") and any(one["image"].text for one in pod.containers):
            says = (
                f"restartPolicy is {policy.text}"
                if policy.text
                else "restartPolicy is missing, and its default is Always"
            )
            yield LintFinding(
                severity=Severity.HIGH,
                line=policy.line if policy else pod.spec["containers"].line,
                message=f"the Job is refused: {says}",
                advice="restartPolicy: Never",
            )
