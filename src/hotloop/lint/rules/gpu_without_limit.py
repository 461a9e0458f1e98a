"""gpu-without-limit: GPUs are requested without a limit of the same number."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests, gpu_resources


@lint_rule("gpu-without-limit", "GPUs are requested without a limit of the same number", reads="kubernetes")
def gpu_without_limit(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Compares GPUs under `resources.requests` with those under `resources.limits`.

    ## Why it costs
    For extended resources both have to be equal. The API server refuses an object whose request has no limit.

    ## How to tell
    A request names a GPU, and the limit is missing or another number.

    ## What to do
    Write the number under `limits`; the request then follows by itself.

    ## When it is wrong
    If a webhook of the cluster adds the limit, or a patch in another file does.
    """
    for pod in manifests.pods:
        for container in pod.containers:
            limits = {name: value.text for name, value in gpu_resources(container, "limits")}
            for name, value in gpu_resources(container, "requests"):
                if limits.get(name) != value.text and value.text is not None and not value.text.startswith("$"):
                    has = f"the limit is {limits[name]}" if limits.get(name) else "there is no limit"
                    yield LintFinding(
                        severity=Severity.HIGH if name not in limits else Severity.MEDIUM,
                        line=value.line,
                        message=f"a request of {value.text} {name} is refused: {has}",
                        advice=f"write {name}: {value.text} under limits",
                    )
