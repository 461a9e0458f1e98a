"""job: a plain Kubernetes Job, with a headless Service if it has several nodes. Needs no operator."""

from __future__ import annotations

from typing import Any

from hotloop.ahead.launch.request import STOPPED_CODE, LaunchRequest
from hotloop.ahead.launch.target import (
    MASTER_PORT,
    NODE_SCRIPT,
    TRAINING_OPTIONS,
    LaunchTarget,
    draw_documents,
    training_environment,
)
from hotloop.ahead.launch.yaml_text import Noted

POD_OPTIONS = TRAINING_OPTIONS | {"spot", "image", "volume", "shm", "rdma", "queue"}
CONTAINER = "node"
"""As Kubeflow's torch runtime names it."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RANK_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
SHELL = ("sh", "-c", NODE_SCRIPT, "node")
"""The words before the training command."""


def describe_metadata(request: LaunchRequest) -> dict[str, Any]:
    """The name, and the queue that admits the job when all its nodes are available."""
    if request.queue is None:
        return {"name": request.name}
    why = "Kueue starts the job when all its pods fit, and the cluster grows with the queue, not with utilization"
    return {"name": request.name, "labels": Noted({QUEUE_LABEL: request.queue}, why)}


def describe_layout(request: LaunchRequest, address: str) -> list[Any]:
    """Kubeflow's torchrun variables, if nothing else sets them."""
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
        why = "whole devices: a fraction such as 0.25 is invalid"
        limits["nvidia.com/gpu"] = Noted(str(request.gpus_per_node), why)
    if request.rdma is not None:
        limits[request.rdma] = Noted("1", "the device through which NCCL reaches the network")
    if request.cpus is not None:
        limits["cpu"] = str(request.cpus)
    return {"limits": limits} if limits else {}


def describe_volumes(request: LaunchRequest) -> tuple[list[Any], list[Any]]:
    """Volumes of the pod, and their mounts in the container."""
    shared: dict[str, Any] = {"medium": "Memory"}
    why = "a container's /dev/shm is 64 MiB, too little for DataLoader workers and NCCL; it counts as the pod's memory"
    if request.shm is not None:
        shared["sizeLimit"] = request.shm
    else:
        why += "\nwithout a limit, it may take half of the node's memory: limit it with --shm SIZE"
    volumes: list[Any] = [Noted({"name": "shm", "emptyDir": shared}, why)]
    mounts: list[Any] = [{"name": "shm", "mountPath": "/dev/shm"}]
    if request.volume is not None:
        claim = {"name": "storage", "persistentVolumeClaim": {"claimName": request.volume.claim}}
        why = "checkpoints must outlive the pod; several nodes need a claim with access mode ReadWriteMany"
        volumes.append(Noted(claim, why))
        mounts.append({"name": "storage", "mountPath": request.volume.path})
    return volumes, mounts


def describe_placement(request: LaunchRequest) -> dict[str, Any]:
    """The grace period, and the selector of spot nodes."""
    grace = request.notice_s
    why = f"time between the request to stop and the kill: {request.notice_reason}"
    if request.cloud is not None and grace > request.cloud.notice_s:
        why += f"\n{request.cloud.name} ends a spot machine {request.cloud.notice_s} s after its notice anyway"
    found: dict[str, Any] = {"terminationGracePeriodSeconds": Noted(grace, why)}
    if request.cloud is not None:
        found["nodeSelector"] = Noted(dict(request.cloud.labels), f"spot nodes of {request.cloud.name}")
        taints = [
            {"key": key, "operator": "Equal", "value": value, "effect": effect}
            for key, value, effect in request.cloud.taints
        ]
        if taints:
            found["tolerations"] = Noted(taints, "the taint that keeps other pods off them")
    return found


def describe_security(request: LaunchRequest) -> dict[str, Any]:
    """The capability for pinned memory: empty without RDMA, because CUDA's own pinned buffers do not count as locked
    memory."""
    if request.rdma is None:
        return {}
    why = "RDMA locks the memory that it reads, above a container's limit (ulimit -l)"
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
    """Words escaped for Kubernetes, which would replace $(NAME) and turn $$ into $."""
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


MOST_RESTARTS = 6


class JobSet(LaunchTarget):
    id = "jobset"
    summary = "a JobSet (jobset.x-k8s.io/v1alpha2): all nodes restart together"
    takes = POD_OPTIONS
    needs = ("image",)
    submit = ("kubectl", "create", "-f")

    def write(self, request: LaunchRequest) -> str:
        address = f"{request.name}-node-0-0.{request.name}"
        job = {
            "completionMode": Noted("Indexed", "gives each pod the rank of its node"),
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimit": Noted(0, "a rank that lost its peers cannot continue: the first failure ends the job"),
            "podFailurePolicy": Noted(
                describe_failures("FailJob"), "evictions and requested stops fail with PodFailurePolicy"
            ),
            "template": {"spec": describe_pod(request, describe_layout(request, address))},
        }
        return draw_documents(
            "Start: kubectl create -f FILE",
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": describe_metadata(request),
                "spec": {
                    "network": Noted({"enableDNSHostnames": True}, "the first pod's name is the rendezvous"),
                    "failurePolicy": {
                        "maxRestarts": Noted(MOST_RESTARTS, "for failures of training itself"),
                        "restartStrategy": Noted("BlockingRecreate", "the old pods end before new ones start"),
                        "rules": Noted(
                            [
                                {
                                    "name": "stopped",
                                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                                    "onJobFailureReasons": ["PodFailurePolicy"],
                                }
                            ],
                            "preemptions do not count",
                        ),
                    },
                    "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
                },
            },
        )


class TrainJob(LaunchTarget):
    id = "trainjob"
    summary = "a Kubeflow TrainJob (trainer.kubeflow.org/v1alpha1)"
    takes = POD_OPTIONS | {"runtime"}
    submit = ("kubectl", "create", "-f")

    def write(self, request: LaunchRequest) -> str:
        volumes, mounts = describe_volumes(request)
        resources = describe_resources(request)
        trainer: dict[str, Any] = {
            **({"image": request.image} if request.image is not None else {}),
            "command": list(SHELL),
            "args": list(escape_words(request.command.words)),
            "numNodes": request.nodes,
            "numProcPerNode": request.processes_per_node,
            **({"resourcesPerNode": resources} if resources else {}),
            "env": Noted(list_environment(request), "PET_NNODES and the like are reserved: Kubeflow sets them"),
        }
        pod = {
            **describe_placement(request),
            "volumes": volumes,
            "containers": [{"name": CONTAINER, **describe_security(request), "volumeMounts": mounts}],
        }
        patch = {"replicatedJobs": [{"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}]}
        return draw_documents(
            "Start: kubectl create -f FILE\nNeeds Kubeflow Trainer 2.3: older ones cannot patch the grace period.\n"
            f"How often pods are restarted is up to the runtime {request.runtime}.",
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": describe_metadata(request),
                "spec": {
                    "runtimeRef": {"name": request.runtime},
                    "trainer": trainer,
                    "runtimePatches": [
                        {"manager": "hotloop.launch", "trainingRuntimeSpec": {"template": {"spec": patch}}}
                    ],
                },
            },
        )


BACKOFF_PER_NODE = 6
"""The number of failures that Kubernetes allows a one-pod job by default."""


class PlainJob(LaunchTarget):
    id = "job"
    summary = "a Kubernetes Job (batch/v1), with a headless Service for several nodes"
    takes = POD_OPTIONS
    needs = ("image",)
    submit = ("kubectl", "create", "-f")

    def write(self, request: LaunchRequest) -> str:
        address = f"{request.name}-0.{request.name}" if request.nodes > 1 else "localhost"
        subdomain: dict[str, Any] = {}
        if request.nodes > 1:
            subdomain = {"subdomain": Noted(request.name, "pods find each other by the names of this Service")}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": describe_metadata(request),
            "spec": {
                "completionMode": Noted("Indexed", "gives each pod the rank of its node"),
                "completions": request.nodes,
                "parallelism": request.nodes,
                "backoffLimit": Noted(
                    BACKOFF_PER_NODE * request.nodes,
                    "when one node is lost, the ranks on every other node fail too and count",
                ),
                "podReplacementPolicy": Noted("Failed", "never two pods of one rank: wait until the old one has ended"),
                "podFailurePolicy": Noted(
                    describe_failures("Ignore"), "evictions and requested stops do not count as failures"
                ),
                "template": {"spec": describe_pod(request, describe_layout(request, address), **subdomain)},
            },
        }
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": request.name},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": Noted(True, "ranks look for each other before they are ready"),
                "selector": {"batch.kubernetes.io/job-name": request.name},
                "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
            },
        }
        head = "Start: kubectl create -f FILE"
        return draw_documents(head, *([service, job] if request.nodes > 1 else [job]))
