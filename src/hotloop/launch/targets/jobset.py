"""jobset: a JobSet, which restarts all nodes together. Needs its operator (jobset.sigs.k8s.io) in the cluster."""

from __future__ import annotations

from hotloop.launch.pods import POD_OPTIONS, describe_failures, describe_layout, describe_metadata, describe_pod
from hotloop.launch.request import LaunchRequest
from hotloop.launch.target import LaunchTarget, draw_documents
from hotloop.launch.yaml_text import Noted

MOST_RESTARTS = 6


class JobSet(LaunchTarget):
    id = "jobset"
    summary = "a JobSet (jobset.x-k8s.io/v1alpha2): all nodes restart together"
    takes = POD_OPTIONS
    needs = ("image",)
    submit = ("kubectl", "create", "-f")
    schema = "jobset"

    def write(self, request: LaunchRequest) -> str:
        address = f"{request.name}-node-0-0.{request.name}"
        job = {
            "completionMode": Noted("Indexed", "gives each pod the rank of its node"),
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimit": Noted(0, "a rank that lost its peers cannot go on: the first failure ends the job"),
            "podFailurePolicy": Noted(
                describe_failures("FailJob"), "evictions and stops that were asked for fail with PodFailurePolicy"
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
                        "maxRestarts": Noted(MOST_RESTARTS, "of failures of the training itself"),
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
