"""shared-memory-on-disk: /dev/shm is a folder on the node's disk."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests


@lint_rule("shared-memory-on-disk", "/dev/shm is a folder on the node's disk", reads="kubernetes")
def shared_memory_on_disk(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for an `emptyDir` without `medium: Memory` that is mounted at `/dev/shm`.

    ## Why it costs
    Batches that workers hand over are then written to the node's disk, and may fill it.

    ## How to tell
    The mount at `/dev/shm` names a volume whose `emptyDir` has no medium.

    ## What to do
    `emptyDir: {medium: Memory}`. Its size counts as memory of the container.

    ## When it is wrong
    If the node's disk is a memory file system already.
    """
    for pod in manifests.pods:
        volumes = {one["name"].text: one for one in pod.spec["volumes"].elements}
        for container in pod.containers:
            for mount in container["volumeMounts"].elements:
                volume = volumes.get(mount["name"].text)
                if (mount["mountPath"].text or "").rstrip("/") != "/dev/shm" or volume is None:
                    continue
                if volume["emptyDir"] and volume["emptyDir.medium"].text is None:
                    yield LintFinding(
                        severity=Severity.LOW,
                        line=volume["emptyDir"].line,
                        message="what workers hand over in /dev/shm goes to the node's disk",
                        advice="emptyDir: {medium: Memory}",
                    )
