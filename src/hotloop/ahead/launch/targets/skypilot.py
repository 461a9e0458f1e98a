"""skypilot: a SkyPilot task for `sky jobs launch`, which moves it to another region or cloud when it is preempted."""

from __future__ import annotations

import shlex
from typing import Any

from hotloop.ahead.launch.request import STOPPED_CODE, LaunchRequest
from hotloop.ahead.launch.target import (
    MASTER_PORT,
    TRAINING_OPTIONS,
    LaunchTarget,
    assign_script,
    draw_documents,
    gpu_name,
    training_environment,
)
from hotloop.ahead.launch.yaml_text import Noted


class SkyPilot(LaunchTarget):
    id = "skypilot"
    summary = "a SkyPilot task, started as a managed job"
    takes = TRAINING_OPTIONS | {"gpu", "spot", "image", "volume"}
    rents = True
    submit = ("sky", "jobs", "launch", "--yes")

    def write(self, request: LaunchRequest) -> str:
        resources: dict[str, Any] = {}
        if request.gpus_per_node:
            resources["accelerators"] = f"{gpu_name(request)}:{request.gpus_per_node}"
        if request.cpus is not None:
            resources["cpus"] = f"{request.cpus}+"
        if request.cloud is not None:
            resources["infra"] = request.cloud.id
            resources["use_spot"] = True
        resources["job_recovery"] = Noted(
            {"recover_on_exit_codes": STOPPED_CODE}, "a node that was asked to stop continues elsewhere"
        )
        if request.image is not None:
            resources["image_id"] = f"docker:{request.image}"
        layout = (
            "export PET_NNODES=$SKYPILOT_NUM_NODES PET_NODE_RANK=$SKYPILOT_NODE_RANK "
            f"PET_NPROC_PER_NODE={request.processes_per_node}\n"
            f'export PET_MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1) PET_MASTER_PORT={MASTER_PORT}\n'
        )
        words = " ".join(shlex.quote(word) for word in request.command.words)
        storage = {}
        if request.volume is not None:
            storage = {
                "volumes": Noted({request.volume.path: request.volume.claim}, "checkpoints must outlive the machine")
            }
        return draw_documents(
            "Start: sky jobs launch FILE",
            {
                "name": request.name,
                "num_nodes": request.nodes,
                "resources": resources,
                "workdir": ".",
                **storage,
                "envs": training_environment(request),
                "run": f'{layout}{assign_script("node")}exec sh -c "$node" node {words}\n',
            },
        )
