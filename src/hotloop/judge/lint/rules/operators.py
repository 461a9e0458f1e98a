"""Checks of what operators make of an object: Ray clusters, JobSets, MPI jobs, queues, and pods that never end."""

from __future__ import annotations

import re

from hotloop.judge.lint.checks import HIGH, LIKELY, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.formats.manifests import GPUS, RUNS_TO_END, Container, read_all
from hotloop.judge.lint.yaml_fields import Field


def _ray_cluster(one: Field) -> Field:
    return one["spec.rayClusterSpec"] or (
        one["spec"] if one["kind"].text == "RayCluster" else one["spec.rayClusterConfig"]
    )


def _scales(cluster: Field) -> bool:
    return cluster["enableInTreeAutoscaling"].is_true or "$" in (cluster["enableInTreeAutoscaling"].text or "")


def _group_gpus(cluster: Field) -> float:
    """GPUs that the groups of workers may have together."""
    name, limits = "maxReplicas" if _scales(cluster) else "replicas", "template.spec.containers.*.resources.limits"
    groups = [(group, group.all(limits)) for group in cluster["workerGroupSpecs"].elements]
    each = [(group, sum(part.at([gpu]).amount for part in parts for gpu in GPUS)) for group, parts in groups]
    return sum(gpus * (1 if group[name].number is None else group[name].amount) for group, gpus in each)


def _asked_gpus(one: Field) -> float:
    text = one["spec.entrypoint"].text or ""
    workers = re.search(r"--(?:num[-_])?workers(?:[-_]per[-_]trial)?[= ](\d+)", text)
    each = re.search(r"--(?:num[-_])?gpus[-_]per[-_]worker[= ](\d+)", text)
    return float(workers[1]) * float(each[1]) if workers and each else 0.0


def _ray_versions(cluster: Field) -> dict[str, Field]:
    images = cluster.all("headGroupSpec.template.spec.containers.*.image")[:1]
    images += [each["template.spec.containers"].elements[0]["image"] for each in cluster["workerGroupSpecs"].elements
               if each["template.spec.containers"].elements]  # fmt: skip
    found = [(re.search(r"\bray(?:-ml)?:(?:nightly\.)?(\d+\.\d+\.\d+)", image.text or ""), image) for image in images]
    return {match[1]: image for match, image in found if match}


RAY_CLUSTER = table_rule(
    "ray-cluster-settings",
    "a Ray cluster has no workers, too few GPUs, or stays after its job",
    """## What it does
    Compares the groups of workers of a RayJob, RayCluster or RayService with the autoscaler, the entrypoint and each
    other, and looks at what happens after the job.

    ## Why it costs
    A group with `replicas: 0` gets workers only from the autoscaler; tasks that ask for more GPUs than there are wait
    forever; without `shutdownAfterJobFinishes`, the cluster keeps its GPUs after the job.

    ## How to recognize it
    `enableInTreeAutoscaling` and `shutdownAfterJobFinishes` are false by default. The entrypoint states its workers and
    GPUs.

    ## What to do
    Set `shutdownAfterJobFinishes: true` with `ttlSecondsAfterFinished`, and `replicas` or the autoscaler.

    ## When it is wrong
    Ignore the finding if another program scales or deletes the cluster.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: (
        [(one, _ray_cluster(one))]
        if (one["apiVersion"].text or "").startswith("ray.io/") and not manifests.is_part
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda one, cluster: [
                group["replicas"]
                for group in cluster["workerGroupSpecs"].elements
                if group["replicas"].text == "0"
                and not _scales(cluster)
                and all(each["replicas"].text == "0" for each in cluster["workerGroupSpecs"].elements)
            ],
            severity=HIGH,
            message=(
                "the group starts with no workers, and enableInTreeAutoscaling is not set: none are ever added,"
                " and tasks wait forever"
            ),
            advice="replicas: the number of workers, or enableInTreeAutoscaling: true",
        ),
        FieldCheck(
            at=lambda one, cluster: only(
                one["spec.shutdownAfterJobFinishes"] or one["spec.ttlSecondsAfterFinished"] or one["spec"],
                one["kind"].text == "RayJob"
                and not one["spec.shutdownAfterJobFinishes"].is_true
                and not one.all("spec.clusterSelector|deletionStrategy|deletionPolicy")
                and any(
                    GPUS[0] in read_all(part) for part in cluster.all("*.*.template.spec.containers.*.resources.limits")
                ),
            ),
            severity=HIGH,
            message=(
                "shutdownAfterJobFinishes is false (the default, with which ttlSecondsAfterFinished does "
                "nothing): the cluster keeps its GPUs after the job"
            ),
            advice="shutdownAfterJobFinishes: true",
        ),
        FieldCheck(
            at=lambda one, cluster: only(one["spec.entrypoint"], _asked_gpus(one) > _group_gpus(cluster) > 0),
            severity=HIGH,
            message=(
                "the entrypoint asks for more GPUs (workers x GPUs per worker) than the groups of workers have,"
                " which it exceeds: the placement group stays pending"
            ),
            advice="fewer workers, more replicas, or the autoscaler",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda one, cluster: list(_ray_versions(cluster).values())[1:],
            severity=HIGH,
            message="{text} has another version of Ray than the head: the workers do not join (version mismatch)",
            advice="one version of Ray for the head and all workers",
        ),
        FieldCheck(
            at=lambda one, cluster: [
                group["maxReplicas"]
                for group in cluster["workerGroupSpecs"].elements
                if group["maxReplicas"].number is not None
                and max(group["minReplicas"].amount, group["replicas"].amount) > group["maxReplicas"].amount
            ],
            severity=HIGH,
            message="the workers of the group are above its maxReplicas: the cluster is refused, or gets fewer",
            advice="make minReplicas and replicas at most maxReplicas",
        ),
        FieldCheck(
            at=lambda one, cluster: [
                group["rayStartParams.num-gpus"]
                for group in cluster["workerGroupSpecs"].elements
                for container in group["template.spec.containers"].elements[:1]
                if (given := group["rayStartParams.num-gpus"].number) is not None
                and (had := sum(value.amount for name, value in container["resources.limits"].items if name in GPUS))
                and given != had
            ],
            severity=HIGH,
            message=(
                "num-gpus {text} differs from the GPUs of the container: Ray schedules onto GPUs that do not "
                "exist, or leaves some idle"
            ),
            advice="remove num-gpus: KubeRay takes it from the limits",
        ),
    ),
)


HOST = re.compile(
    r"(?:MASTER_ADDR|master[-_]addr|rdzv[-_]endpoint|main_process_ip|COORDINATOR\w*)[=\s]+([a-z0-9][\w.-]*)"
)
INDEXES = re.compile(r"JOB_COMPLETION_INDEX|job-completion-index")


def _replicated(one: Field) -> list[tuple[Field, Field, Field]]:
    """A JobSet, each of its replicated jobs, and the spec of its pods."""
    jobs = one["spec.replicatedJobs"].elements if one["kind"].text == "JobSet" else []
    return [(one, job, job["template.spec.template.spec"]) for job in jobs]


def _texts(pod: Field) -> list[ReadPlace]:
    words = [ReadPlace(word.line, word.text or "") for word in pod.all("containers.*.command|args.*")]
    values = pod.all("containers.*.env.*")
    words += [
        ReadPlace(each["value"].line, f"{each['name'].text}={each['value'].text}") for each in values if each["value"]
    ]
    paths = pod.all("containers.*.env.*.valueFrom.fieldRef.fieldPath")
    return words + [ReadPlace(path.line, path.text or "") for path in paths]


def _jobset_hosts(one: Field, job: Field, pod: Field) -> list[ReadPlace]:
    """Host names of pods of this JobSet that do not exist."""
    name = re.escape(f"{one['metadata.name'].text}")
    jobs = "|".join(re.escape(each["name"].text or "") for each in one["spec.replicatedJobs"].elements)
    domain = one["spec.network.subdomain"].text or one["metadata.name"].text or ""
    hosts = [ReadPlace(place.line, match[1]) for place in _texts(pod) if (match := HOST.search(place.text))]
    own = [host for host in hosts if re.match(rf"{name}-({jobs})-\d", host.text)]
    return [
        host for host in own if not re.match(rf"{name}-({jobs})-\d+-\d+(\.{re.escape(domain)}(\.|$)|$)", host.text)
    ][:1]


JOBSET_RANKS = table_rule(
    "jobset-ranks",
    "the pods of a JobSet get wrong ranks or addresses",
    """## What it does
    Compares the ranks and host names that the pods of a JobSet use with those that it gives them.

    ## Why it costs
    Each replica is a Job of its own, whose completion index begins at 0: every node gets rank 0. Pods are named
    JOBSET-JOB-JOBINDEX-PODINDEX.SUBDOMAIN; the ranks wait for any other name until their timeout.

    ## How to recognize it
    `replicas` is above 1 with one pod per Job, and the pod reads the completion index; or the host name lacks an index.

    ## What to do
    Use `replicas: 1` with `parallelism` and `completions`, or the annotation `jobset.sigs.k8s.io/job-index`.

    ## When it is wrong
    Ignore the finding if each replica should train alone.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: [] if manifests.is_part else _replicated(one),
    checks=(
        FieldCheck(
            at=lambda one, job, pod: [
                place
                for place in _texts(pod)
                if INDEXES.search(place.text)
                and job["replicas"].amount > 1
                and (job["template.spec.completions"].number or 1) == 1
                and (job["template.spec.parallelism"].number or 1) == 1
            ][:1],
            severity=HIGH,
            message=(
                "the completion index is 0 in each of the JobSet's replicas, which are Jobs of one pod: every "
                "node has rank 0"
            ),
            advice="the annotation jobset.sigs.k8s.io/job-index, or replicas: 1 with parallelism and completions",
        ),
        FieldCheck(
            at=_jobset_hosts,
            severity=HIGH,
            message=(
                "the host {text} does not exist: pods are named JOBSET-JOB-JOBINDEX-PODINDEX.SUBDOMAIN, and the"
                " ranks do not find the master address"
            ),
            advice="end the name with the job index and the pod index, -0-0, and the JobSet's subdomain",
        ),
        FieldCheck(
            at=lambda one, job, pod: [
                name
                for name in one.all("spec.successPolicy.targetReplicatedJobs.*")
                if name.text not in one.texts("spec.replicatedJobs.*.name")
            ],
            severity=HIGH,
            message="no replicated job has the name {text} of the success policy: the JobSet is refused",
            advice="write the name of a replicated job",
        ),
        FieldCheck(
            at=lambda one, job, pod: only(
                one["spec.network.enableDNSHostnames"],
                one["spec.network.enableDNSHostnames"].text == "false"
                and any(HOST.search(place.text) for place in _texts(pod)),
            ),
            severity=HIGH,
            message=(
                "enableDNSHostnames: false: the pods have no host names, and the ranks do not find the master address"
            ),
            advice="enableDNSHostnames: true",
            confidence=LIKELY,
        ),
    ),
)

SERVES_ASIDE = re.compile(
    r"(?i)cloud-?sql-proxy|fluent-?bit|fluentd|filebeat|promtail|envoy|istio/proxy|otel\S*collector|dcgm-exporter|node-exporter"
    r"|tensorboard|gcs-?fuse|vault-agent|telegraf|statsd|tail\s+-\w*[fF]\b|sleep\s+inf"
)


def _goes_on(container: Container) -> bool:
    """Whether a container runs until it is killed."""
    script = container.read[0]
    ends = any(one.name in ("exit", "break", "return", "test", "[", "[[") for one in script.commands)
    loops = [
        one for one in script.commands if {"loop", "condition"} <= {*one.blocks} and one.name in ("true", ":", "sleep")
    ]
    shown = f"{container['image'].text} {container.text}"
    return bool(loops and not ends) or (not loops and SERVES_ASIDE.search(shown) is not None)


def _shown(one: Field) -> list[Field]:
    return one["spec.trainer.command"].elements + one["spec.trainer.args"].elements


NEVER_DONE = table_rule(
    "never-done",
    "a job never completes, or starts without its launcher or queue",
    """## What it does
    Looks for containers of a Job that never end, CronJobs that miss their start, queue labels on the pod template,
    MPI ranks against slots, and TrainJobs that start plain `python`.

    ## Why it costs
    A Job is complete when all its containers have ended: a sidecar in a loop holds its GPUs after training. A job that
    Kueue does not see starts past the quota. Without torchrun, each node trains alone on one GPU.

    ## How to recognize it
    The container has an endless loop or runs a known agent; the label is on the template only; `-np` differs from
    replicas x slots.

    ## What to do
    Make the sidecar an init container with `restartPolicy: Always`; put the label on the job; start torchrun.

    ## When it is wrong
    Ignore the finding if the main container ends the sidecar itself.
    """,
    reads="kubernetes",
    each="pods",
    about=lambda manifests, pod: [] if manifests.is_part else [(pod, pod.owner)],
    checks=(
        FieldCheck(
            at=lambda pod, one: [
                container["name"]
                for container in pod.containers
                if pod.kind in RUNS_TO_END
                and pod.kind != "Pod"
                and len(pod.containers) > 1
                and not pod.spec["shareProcessNamespace"].is_true
                and not container.gpu_count
                and pod.gpu_count
                and _goes_on(container)
            ],
            severity=HIGH,
            message="the sidecar {text} never ends: the pod never completes, and the job holds its GPUs after training",
            advice="make it an init container with restartPolicy: Always (a native sidecar)",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod, one: [
                field["name"]
                for field in pod.spec["initContainers"].elements
                if field["restartPolicy"].text != "Always" and _goes_on(Container(field))
            ],
            severity=HIGH,
            message="the init container {text} never ends: the pod's containers never start",
            advice="restartPolicy: Always makes it a sidecar, which runs next to them",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod, one: [
                value
                for key, value in pod.holder["metadata.labels"].items
                if key == "kueue.x-k8s.io/queue-name"
                and pod.kind in (*RUNS_TO_END, "RayJob", "RayCluster")
                and pod.kind not in ("Pod", "CronJob")
                and not one["metadata.labels"].at([key])
            ],
            severity=MEDIUM,
            message=(
                "Kueue reads the label queue-name of the job: on the pod template, queue {text} does not admit "
                "the job, which starts past the quota"
            ),
            advice="put kueue.x-k8s.io/queue-name under the metadata.labels of the job",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod, one: only(
                one["spec.startingDeadlineSeconds"],
                one["kind"].text == "CronJob" and 0 < one["spec.startingDeadlineSeconds"].amount < 10,
            ),
            severity=HIGH,
            message="startingDeadlineSeconds {text}: the controller looks every 10 s, and may never start the job",
            advice="startingDeadlineSeconds: 200",
        ),
        FieldCheck(
            at=lambda pod, one: [
                ReadPlace(word.line, f"-np {count}")
                for container in (pod.containers if one["kind"].text == "MPIJob" else ())
                for word in container.words[:1]
                if (match := re.search(r"mpirun\b.*?\s-(?:np|n)[= ](\d+)", container.text))
                and (count := int(match[1]))
                and (
                    slots := (one["spec.slotsPerWorker"].number or 1)
                    * one["spec.mpiReplicaSpecs.Worker.replicas"].amount
                )
                and count != slots
            ],
            severity=HIGH,
            message=(
                "{text} differs from the slots of the workers (replicas x slotsPerWorker): mpirun finds too few"
                " slots, or GPUs stay idle"
            ),
            advice="-np equal to replicas x slotsPerWorker",
        ),
    ),
)


PLAIN_TRAINER = table_rule(
    "plain-trainer",
    "a TrainJob starts python in place of torchrun",
    """## What it does
    Looks for a TrainJob of a torch runtime whose command is plain `python`.

    ## Why it costs
    The runtime sets `PET_*` variables, which only torchrun reads: `python` starts one process per node without a rank,
    and each node trains alone on one GPU and writes the same checkpoints.

    ## How to recognize it
    `numNodes` or `numProcPerNode` is above 1, and the command begins with `python`, without a launcher.

    ## What to do
    Start the script with torchrun: `command: [torchrun, train.py]`.

    ## When it is wrong
    Ignore the finding if the script reads the `PET_*` variables and starts its processes itself.
    """,
    reads="kubernetes",
    each="objects",
    checks=(
        FieldCheck(
            at=lambda one: [
                word
                for word in one["spec.trainer.command"].elements[:1]
                if one["kind"].text == "TrainJob"
                and re.match(r"python[\d.]*$", word.text or "")
                and max(one["spec.trainer.numNodes"].amount, one["spec.trainer.numProcPerNode"].amount) > 1
                and "torch" in (one["spec.runtimeRef.name"].text or "")
                and not re.search(
                    r"torch\.distributed|torchrun|accelerate|spawn|-c\b", " ".join(w.text or "" for w in _shown(one))
                )
            ],
            severity=HIGH,
            message=(
                "{text} starts one process per node and does not read the runtime's PET_ variables: each node "
                "trains alone, on one GPU"
            ),
            advice="command: [torchrun, ...]",
            confidence=LIKELY,
        ),
    ),
)
