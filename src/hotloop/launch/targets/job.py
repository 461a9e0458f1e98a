"""job: a plain Kubernetes Job, with a headless Service where it has several nodes. Needs no operator."""

from __future__ import annotations

from typing import Any

from hotloop.launch.pods import POD_OPTIONS, describe_failures, describe_layout, describe_metadata, describe_pod
from hotloop.launch.request import LaunchRequest
from hotloop.launch.target import MASTER_PORT, LaunchTarget, draw_documents
from hotloop.launch.yaml_text import Noted

BACKOFF_PER_NODE = 6
"""As many failures as Kubernetes allows a job of one pod by default."""


class PlainJob(LaunchTarget):
    id = "job"
    summary = "a Kubernetes Job (batch/v1), with a headless Service for several nodes"
    takes = POD_OPTIONS
    needs = ("image",)
    submit = ("kubectl", "create", "-f")
    schema = "job"

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
                    "when one node goes, the ranks of every other node fail too and count",
                ),
                "podReplacementPolicy": Noted("Failed", "never two pods of one rank: wait until the old one has ended"),
                "podFailurePolicy": Noted(
                    describe_failures("Ignore"), "evictions and stops that were asked for count as no failure"
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
