"""trainjob: a Kubeflow TrainJob. Kubeflow's torch runtime makes the pods and sets torchrun's layout (PET_*)."""

from __future__ import annotations

from typing import Any

from hotloop.launch.pods import (
    CONTAINER,
    POD_OPTIONS,
    SHELL,
    describe_metadata,
    describe_placement,
    describe_resources,
    describe_security,
    describe_volumes,
    escape_words,
    list_environment,
)
from hotloop.launch.request import LaunchRequest
from hotloop.launch.target import LaunchTarget, draw_documents
from hotloop.launch.yaml_text import Noted


class TrainJob(LaunchTarget):
    id = "trainjob"
    summary = "a Kubeflow TrainJob (trainer.kubeflow.org/v1alpha1)"
    takes = POD_OPTIONS | {"runtime"}
    submit = ("kubectl", "create", "-f")
    schema = "trainjob"

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
