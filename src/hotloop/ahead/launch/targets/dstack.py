"""dstack: a distributed task for `dstack apply`."""

from __future__ import annotations

import shlex
from typing import Any

from hotloop.ahead.launch.request import LaunchRequest
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
from hotloop.core.errors import UsageError


class Dstack(LaunchTarget):
    id = "dstack"
    summary = "a dstack task"
    takes = TRAINING_OPTIONS | {"gpu", "spot", "image", "volume", "shm"}
    rents = True
    submit = ("dstack", "apply", "--yes", "-f")

    def check(self, request: LaunchRequest) -> None:
        super().check(request)
        marked = next((word for word in request.command.words if "${{" in word), None)
        if marked is not None:
            raise UsageError(f"the command's word {marked!r}: dstack would replace ${{{{ }}}}; pass it in a file")

    def write(self, request: LaunchRequest) -> str:
        resources: dict[str, Any] = {}
        if request.gpus_per_node:
            name, _, memory = (gpu_name(request) or "").partition("-")
            resources["gpu"] = {"name": [name], "count": request.gpus_per_node}
            if memory.removesuffix("GB").isdecimal():
                resources["gpu"]["memory"] = memory
        if request.cpus is not None:
            resources["cpu"] = f"{request.cpus}.."
        if request.shm is not None:
            why = "a container's /dev/shm is 64 MiB, too little for DataLoader workers and NCCL"
            resources["shm_size"] = Noted(
                request.shm.replace("i", "") + ("" if request.shm.endswith("B") else "B"), why
            )
        layout = (
            "export PET_NNODES=$DSTACK_NODES_NUM PET_NODE_RANK=$DSTACK_NODE_RANK "
            f"PET_NPROC_PER_NODE={request.processes_per_node} "
            f"PET_MASTER_ADDR=$DSTACK_MASTER_NODE_IP PET_MASTER_PORT={MASTER_PORT}"
        )
        words = " ".join(shlex.quote(word) for word in request.command.words)
        storage = {}
        if request.volume is not None:
            entry = {"name": request.volume.claim, "path": request.volume.path}
            storage = {"volumes": Noted([entry], "checkpoints must outlive the machine")}
        return draw_documents(
            "Start: dstack apply -f FILE\ndstack sends no signal before it ends a task: the run resumes from the last "
            "checkpoint that training itself saved.",
            {
                "type": "task",
                "name": request.name,
                "nodes": request.nodes,
                **({"image": request.image} if request.image is not None else {}),
                "env": training_environment(request),
                "commands": [f'{layout}\n{assign_script("node")}exec sh -c "$node" node {words}\n'],
                **({"resources": resources} if resources else {}),
                **storage,
                "spot_policy": "spot" if request.cloud is not None else "on-demand",
                **({"backends": [request.cloud.id]} if request.cloud is not None else {}),
                "retry": Noted(
                    {"on_events": ["no-capacity", "interruption"], "duration": "24h"},
                    "restarted when a machine is taken away, not when training itself fails",
                ),
            },
        )
