"""small-shared-memory: a training has 64 MiB of shared memory."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.manifests import Manifests, gpu_resources


@lint_rule("small-shared-memory", "a training has 64 MiB of shared memory", reads="kubernetes")
def small_shared_memory(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Looks for training containers with GPUs and no volume at `/dev/shm`.

    ## Why it costs
    A container's `/dev/shm` has 64 MiB. DataLoader workers hand batches over in it, and NCCL connects the GPUs of a
    node through it: a worker ends by a bus error, or NCCL with "No space left on device".

    ## How to tell
    The pod trains (by its kind or its command), a container asks for GPUs, and neither an `emptyDir` is mounted at
    `/dev/shm` nor `hostIPC` set. `medium` with two or more GPUs, else `low`: with one it depends on the workers.

    ## What to do
    A volume `emptyDir: {medium: Memory, sizeLimit: 8Gi}`, mounted at `/dev/shm`.

    ## When it is wrong
    If the loader has no workers, or the container runtime gives more.
    """
    for pod in manifests.pods:
        if not pod.is_training or pod.spec["hostIPC"].text == "true":
            continue
        for container in pod.containers:
            counts = [value.number or 0 for _, value in gpu_resources(container, "limits")]
            mounted = [one["mountPath"].text or "" for one in container["volumeMounts"].elements]
            if counts and max(counts) >= 1 and not any(path.rstrip("/") in ("/dev/shm", "/dev") for path in mounted):
                yield LintFinding(
                    severity=Severity.MEDIUM if max(counts) >= 2 else Severity.LOW,
                    line=container["name"].line,
                    message=f"{container['name'].text} trains on {max(counts):g} GPUs with 64 MiB in /dev/shm",
                    advice="mount an emptyDir with medium: Memory at /dev/shm",
                )
