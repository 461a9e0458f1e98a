"""What the Kubernetes targets share: container, pod and their volumes."""

from __future__ import annotations

from typing import Any

from .request import STOPPED_CODE, LaunchRequest
from .target import MASTER_PORT, NODE_SCRIPT, TRAINING_OPTIONS, training_environment
from .yaml_text import Noted

POD_OPTIONS = TRAINING_OPTIONS | {"spot", "image", "volume", "shm", "rdma", "queue"}
CONTAINER = "node"
"""As Kubeflow's torch runtime names it."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RANK_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SHELL = ("sh", "-c", NODE_SCRIPT, "node")
"""Before the words of the training."""


def describe_metadata(request: LaunchRequest) -> dict[str, Any]:
    """Name, and the queue that admits the job when all its nodes can be had."""
    if request.queue is None:
        return {"name": request.name}
    why = "Kueue starts the job when all its pods fit, and the cluster grows by what is queued, not by utilisation"
    return {"name": request.name, "labels": Noted({QUEUE_LABEL: request.queue}, why)}


def describe_layout(request: LaunchRequest, address: str) -> list[Any]:
    """Kubeflow's variables of torchrun, where nobody else sets them."""
    values = {
        "PET_NNODES": str(request.nodes),
        "PET_NPROC_PER_NODE": str(request.processes_per_node),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": RANK_FIELD}}}
    why = "$(JOB_COMPLETION_INDEX) stays unresolved here, because Kubernetes appends that variable to this list"
    return [*({"name": name, "value": value} for name, value in values.items()), Noted(rank, why)]


def list_environment(request: LaunchRequest) -> list[Any]:
    found: list[Any] = []
    for name, value in training_environment(request).items():
        entry = {"name": name, "value": value.value}
        found.append(Noted(entry, value.why))
    return found


def describe_resources(request: LaunchRequest) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if request.gpus_per_node:
        why = "whole devices: a fraction such as 0.25 is invalid; to share a GPU see --target gpu-sharing"
        limits["nvidia.com/gpu"] = Noted(str(request.gpus_per_node), why)
    if request.rdma is not None:
        limits[request.rdma] = Noted("1", "the device through which NCCL reaches the network")
    if request.cpus is not None:
        limits["cpu"] = str(request.cpus)
    return {"limits": limits} if limits else {}


def describe_volumes(request: LaunchRequest) -> tuple[list[Any], list[Any]]:
    """Volumes of the pod, and where the container mounts them."""
    shared: dict[str, Any] = {"medium": "Memory"}
    why = (
        "/dev/shm of a container is 64 MiB, too little for DataLoader workers and NCCL; it counts as memory of the pod"
    )
    if request.shm is not None:
        shared["sizeLimit"] = request.shm
    else:
        why += "\nwithout a limit it may take half of the node's memory: limit it by --shm SIZE"
    volumes: list[Any] = [Noted({"name": "shm", "emptyDir": shared}, why)]
    mounts: list[Any] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if request.volume is not None:
        claim = {"name": "storage", "persistentVolumeClaim": {"claimName": request.volume.claim}}
        why = "checkpoints have to outlive the pod; several nodes need a claim of access mode ReadWriteMany"
        volumes.append(Noted(claim, why))
        mounts.append({"name": "storage", "mountPath": request.volume.path})
    return volumes, mounts


def describe_placement(request: LaunchRequest) -> dict[str, Any]:
    """Grace, and what leads the pod to spot nodes."""
    grace = request.notice_s
    why = f"asked to stop before it is killed: {request.notice_reason}"
    if request.cloud is not None and grace > request.cloud.notice_s:
        why += f"\n{request.cloud.name} ends a spot machine {request.cloud.notice_s} s after its notice all the same"
    found: dict[str, Any] = {"terminationGracePeriodSeconds": Noted(grace, why)}
    if request.cloud is not None:
        found["nodeSelector"] = Noted(dict(request.cloud.labels), f"spot nodes of {request.cloud.name}")
        taints = [
            {"key": key, "operator": "Equal", "value": value, "effect": effect}
            for key, value, effect in request.cloud.taints
        ]
        if taints:
            found["tolerations"] = Noted(taints, "the taint that keeps other pods from them")
    return found


def describe_security(request: LaunchRequest) -> dict[str, Any]:
    """What pinned memory needs: empty without RDMA, because CUDA's own pinned buffers do not count as locked memory."""
    if request.rdma is None:
        return {}
    why = "RDMA locks the memory that it reads, beyond a container's limit (ulimit -l)"
    return {"securityContext": Noted({"capabilities": {"add": ["IPC_LOCK"]}}, why)}


def describe_container(request: LaunchRequest, environment: list[Any]) -> dict[str, Any]:
    resources = describe_resources(request)
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": list(SHELL),
        "args": list(escape_words(request.command.words)),
        "env": [*environment, *list_environment(request)],
        **({"resources": resources} if resources else {}),
        **describe_security(request),
        "volumeMounts": describe_volumes(request)[1],
    }


def escape_words(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words that Kubernetes hands on as they are: it would replace $(NAME) and turn $$ into $."""
    return tuple(word.replace("$", "$$") for word in words)


def describe_pod(request: LaunchRequest, environment: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        **more,
        **describe_placement(request),
        "containers": [describe_container(request, environment)],
        "volumes": describe_volumes(request)[0],
    }


def describe_failures(action: str) -> dict[str, Any]:
    """A job's rules for pods that were evicted or asked to stop: Ignore, or FailJob for a JobSet to restart it all."""
    return {
        "rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": action, "onExitCodes": {"operator": "In", "values": [STOPPED_CODE]}},
        ]
    }
