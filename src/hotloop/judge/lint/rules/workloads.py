"""Checks of Kubernetes objects: jobs, servers, claims, services and autoscalers, alone and together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.lint import LintFinding, lint_rule
from hotloop.judge.lint.checks import HIGH, LIKELY, LOW, MEDIUM, FieldCheck, ReadPlace, only, table_rule
from hotloop.judge.lint.field_tables import GIVEN, judge_fields
from hotloop.judge.lint.formats.manifests import BUILT_IN, GPUS, Manifests, Pod, find_pods, quantity, read_all
from hotloop.judge.lint.yaml_fields import Field

REMOVED = frozenset(
    [
        "extensions/v1beta1",
        "apps/v1beta1",
        "apps/v1beta2",
        "batch/v1beta1",
        "batch/v2alpha1",
        "autoscaling/v2beta1",
        "autoscaling/v2beta2",
        "policy/v1beta1",
        "kubeflow.org/v1beta2",
        "kubeflow.org/v1beta1",
        "networking.k8s.io/v1beta1",
        "rbac.authorization.k8s.io/v1beta1",
    ]
)
"""API versions that Kubernetes 1.27 no longer serves."""
GROUPS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
    "Service": "v1",
    "ConfigMap": "v1",
    "Secret": "v1",
    "PersistentVolumeClaim": "v1",
    "PyTorchJob": "kubeflow.org/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "PodDisruptionBudget": "policy/v1",
}
_CORE = re.compile(r"(v1|(apps|batch|autoscaling|policy|extensions)/\w+)$")
NOTHING = Field(None, 0)
UNSCALED = ("Job", "CronJob", "Pod", "DaemonSet", "JobSet", "MPIJob", "TrainJob", "Service", "ConfigMap")
SEVERAL = {"ReadWriteMany", "ReadOnlyMany"}
"""Access modes of volumes that several nodes may mount."""
NONE = ("0", "0%")


@lint_rule(
    "unknown-field",
    "a field is unknown to its kind, missing, or holds a value of another type",
    reads="kubernetes",
    each="tables",
)
def unknown_field(manifests: Manifests, known: tuple[Field, str]) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of an object, down to its containers, with those of its kind: names, types, allowed values, and
    required fields.

    ## Why it costs
    kubectl refuses the object (strict since 1.27), or silently drops the field: for example a `restartPolicy` one level
    too high, a misspelled `nodeSelectors`, or a number where a quoted string is required.

    ## How to recognize it
    The rule uses the field tables of `hotloop launch` for the API version that the file names. The finding is `likely`
    if no known name is close, because a newer version may have the field.

    ## What to do
    Write the intended name, move the field to its level, or put the number in quotes. `kubectl apply --dry-run=server`
    asks the cluster.

    ## When it is wrong
    Ignore the finding if the cluster's version is newer than the tables, or the file is a patch.
    """
    yield from judge_fields(*known, is_part=manifests.is_based)


REMOVED_API_VERSION = table_rule(
    "removed-api-version",
    "an API version is no longer served, or does not have this kind",
    """## What it does
    Looks for API versions that Kubernetes has removed, and for kinds in a group that does not have them.

    ## Why it costs
    The API server responds "no matches for kind" and does not create the object.

    ## How to recognize it
    `apiVersion` was removed in 1.26 or earlier, or does not contain the kind.

    ## What to do
    Write a version that the cluster serves; `kubectl explain KIND` shows it.

    ## When it is wrong
    Ignore the finding if the cluster is so old that it still serves the version.
    """,
    reads="kubernetes",
    each="objects",
    checks=(
        FieldCheck(
            at=lambda one: only(
                one["apiVersion"],
                one["apiVersion"].text in REMOVED
                and not re.match(
                    r"(kubeflow|networking)\S* (?!\w+Job$|Ingress)", f"{one['apiVersion'].text} {one['kind'].text}"
                ),
            ),
            severity=HIGH,
            message="{text} is no longer served (no matches for kind): the object is refused",
            advice="apiVersion: apps/v1, batch/v1, autoscaling/v2, policy/v1, networking.k8s.io/v1 or kubeflow.org/v1",
        ),
        FieldCheck(
            at=lambda one: only(
                one["apiVersion"],
                _CORE.match(one["apiVersion"].text or "")
                and one["apiVersion"].text not in (*REMOVED, "autoscaling/v1")
                and GROUPS.get(one["kind"].text or "", one["apiVersion"].text) != one["apiVersion"].text,
            ),
            severity=HIGH,
            message="{text} does not serve this kind (no matches for kind): the object is refused",
            advice="kubectl explain KIND names its apiVersion",
        ),
    ),
)


def _jobs(one: Field) -> list[tuple[Field, Field]]:
    """The spec of the Job that an object is or creates, with that of its pods. A JobSet fills in its own defaults."""
    is_job = one["kind"].text == "Job" and (one["apiVersion"].text or "").startswith("batch/")
    jobs = [one["spec"]] if is_job else one.all("spec.jobTemplate.spec") if one["kind"].text == "CronJob" else []
    return [(job, job["template.spec"]) for job in jobs]


def _controllers(one: Field) -> bool:
    return one["kind"].text in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")


JOB_RESTART_POLICY = table_rule(
    "job-restart-policy",
    "a Job's pods have a restart policy that Jobs do not allow",
    """## What it does
    Looks for a Job, CronJob or JobSet whose pods have no `restartPolicy` or have `Always`, and for servers whose pods
    have a policy other than `Always`.

    ## Why it costs
    The API server refuses the object: a Job needs `Never` or `OnFailure`, and the default is `Always`.

    ## How to recognize it
    The pod template has containers with images, but not the required policy.

    ## What to do
    Use `restartPolicy: Never`, and `backoffLimit` for the number of restarts of a failed training run.

    ## When it is wrong
    Ignore the finding if the file is a patch that another file completes.
    """,
    reads="kubernetes",
    each="objects",
    checks=(
        FieldCheck(
            at=lambda one: [
                pod["restartPolicy"] or pod["containers"]
                for _, pod in _jobs(one)
                if pod["restartPolicy"].text in (None, "Always") and any(pod.all("containers.*.image"))
            ],
            severity=HIGH,
            message="the Job is refused: its restartPolicy is Always, which is the default",
            advice="restartPolicy: Never",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.template.spec.restartPolicy"],
                _controllers(one) and one["spec.template.spec.restartPolicy"].text in ("Never", "OnFailure"),
            ),
            severity=HIGH,
            message=(
                "restartPolicy {text} is refused here: pods of a Deployment, StatefulSet or DaemonSet always start "
                "again"
            ),
            advice="make it a Job, or remove restartPolicy",
        ),
    ),
)
EVICTED = {"137", "143"}
"""Exit codes of an evicted pod."""


def _evictions(job: Field) -> list[Field]:
    """Rules of a failure policy that treat an eviction as a failure of the Job, if no earlier rule ignores it."""
    rules = job["podFailurePolicy.rules"].elements
    first = next((at for at, rule in enumerate(rules) if rule["onPodConditions"]), len(rules))
    return [
        rule["onExitCodes"]
        for rule in rules[:first]
        if rule["action"].text == "FailJob"
        and bool(EVICTED & {*rule.texts("onExitCodes.values.*")}) is (rule["onExitCodes.operator"].text == "In")
    ]


def _asks_index(pod: Field) -> list[ReadPlace]:
    """Where a pod's containers read the index of an indexed Job."""
    words = pod.all("containers.*.command|args.*") + pod.all("containers.*.env.*.value")
    words += pod.all("containers.*.env.*.valueFrom.fieldRef.fieldPath")
    asked = re.compile(r"JOB_COMPLETION_INDEX|job-completion-index")
    found = [(word, match) for word in words if (match := asked.search(word.text or ""))]
    return [
        ReadPlace(word.first_line + (word.text or "").count("\n", 0, match.start()), match[0]) for word, match in found
    ]


def _is_rendezvous(pod: Field) -> bool:
    words = pod.texts("containers.*.command|args.*") + pod.texts("containers.*.env.*.name")
    return bool(re.search(r"nnodes|node[-_]rank|MASTER_ADDR|master[-_]addr|rdzv|WORLD_SIZE", " ".join(words)))


JOB_POLICY = table_rule(
    "job-policy",
    "a Job's policies exclude each other, or do not work as intended",
    """## What it does
    Compares `completionMode`, `completions`, `parallelism`, `podFailurePolicy`, `successPolicy`, `backoffLimit` and
    `ttlSecondsAfterFinished` of a Job with each other and with its pods.

    ## Why it costs
    The API server refuses the Job, ranks wait for pods that are never started, an eviction fails the entire job, or the
    job's logs are gone.

    ## How to recognize it
    The rule knows the constraints of the batch/v1 API, and looks at the variables that the command reads.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if a webhook in the cluster first changes the Job.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: [] if manifests.is_part else _jobs(one),
    checks=(
        FieldCheck(
            at=lambda job, pod: only(
                job["podFailurePolicy"], job["podFailurePolicy"] and pod["restartPolicy"].text == "OnFailure"
            ),
            severity=HIGH,
            message="podFailurePolicy needs restartPolicy: Never, but the pods have OnFailure: the Job is refused",
            advice="restartPolicy: Never",
        ),
        FieldCheck(
            at=lambda job, pod: _evictions(job),
            severity=HIGH,
            message="exit codes 137 and 143 also come from an eviction: the first one fails the entire Job",
            advice="put a rule with action: Ignore and onPodConditions DisruptionTarget first",
        ),
        FieldCheck(
            at=lambda job, pod: (
                [
                    *job.all("backoffLimitPerIndex|successPolicy"),
                    *_asks_index(pod)[:1],
                ]
                if job["completionMode"].text != "Indexed"
                else []
            ),
            severity=HIGH,
            message=(
                "backoffLimitPerIndex, successPolicy and JOB_COMPLETION_INDEX need completionMode: Indexed: the Job is "
                "refused, or the rank stays empty"
            ),
            advice="completionMode: Indexed",
        ),
        FieldCheck(
            at=lambda job, pod: only(
                job["completionMode"], job["completionMode"].text == "Indexed" and not job["completions"]
            ),
            severity=HIGH,
            message="completionMode: Indexed needs completions: the Job is refused",
            advice="completions equal to parallelism",
        ),
        FieldCheck(
            at=lambda job, pod: only(
                job["parallelism"] or job["completions"],
                (job["completions"].number or 1) > (job["parallelism"].number or 1)
                and _asks_index(pod)
                and _is_rendezvous(pod),
            ),
            severity=HIGH,
            message=(
                "fewer pods run at once (parallelism) than the Job has ranks (completions): running pods wait for the "
                "others, which never start"
            ),
            advice="parallelism equal to completions",
        ),
        FieldCheck(
            at=lambda job, pod: only(
                job["ttlSecondsAfterFinished"],
                job["ttlSecondsAfterFinished"].amount < 300
                and not re.search(
                    r"\bsleep\b", " ".join(pod.texts("containers.*.command|args.*") + pod.texts("containers.*.image"))
                )
                and any("/gpu" in read_all(part) for part in pod.all("containers.*.resources.limits")),
            ),
            severity=MEDIUM,
            message=(
                "{text} s after its end, the Job is deleted with its pods and logs: a failure overnight leaves no "
                "logs to read"
            ),
            advice="ttlSecondsAfterFinished: 86400",
        ),
    ),
)


def _is_queued(one: Field) -> bool:
    """Whether the job names a queue or another controller that resumes it."""
    labels = f"{read_all(one['metadata.labels'])} {read_all(one['metadata.annotations'])}"
    return bool(one["spec.managedBy"]) or "queue" in labels


def _uses_gpus(one: Field) -> bool:
    return any(pod.gpu_count for pod in find_pods(one))


def _trains(pod: Pod) -> bool:
    """Whether a pod does nothing but train on GPUs."""
    ports = pod.spec.all("containers.*.ports|readinessProbe")
    return pod.is_training and pod.gpu_count > 0 and (not ports or pod.is_finite_training)


def _members(one: Field) -> float:
    """Pods of a Volcano job; none for other objects."""
    return sum(task["replicas"].number or 1 for task in one["spec.tasks"].elements)


def _uneven(one: Field) -> list[Field]:
    """Numbers of ranks per node passed to an operator that differ from the pod's number of GPUs."""
    limits = one["spec.trainer.resourcesPerNode.limits"].items
    counts = {value.amount for name, value in limits if name in GPUS}
    counts |= {pod.gpu_count for pod in find_pods(one) if pod.gpu_count}
    asked = one.all("spec.nprocPerNode|slotsPerWorker") + one.all("spec.trainer.numProcPerNode")
    return [field for field in asked if field.number and counts and field.number not in counts]


CONTAINERS = {"PyTorchJob": "pytorch", "TFJob": "tensorflow", "XGBoostJob": "xgboost", "JAXJob": "jax"}
"""Kinds whose operator sets only the environment of the container with that name, and refuses pods without it."""
BLOCK_CLASSES = re.compile(
    r"(?i)(premium-rwo|standard-rwo|gp[23]|io[12]|ebs-?\S*|pd-\S+|managed(-csi|-premium|-csi-premium)?|default"
    r"|do-block-storage|hyperdisk\S*|local-path|\S*-rwo|\S*-block|\S*rbd\S*|linode-block\S*|hcloud-volumes)$"
)
WORKLOAD_SETTINGS = table_rule(
    "workload-settings",
    "an object cannot serve its purpose",
    """## What it does
    Looks for training in a Deployment or StatefulSet, overlapping runs of a CronJob, and suspended jobs without a
    queue. Also checks selectors, container names, ranks per node, elastic and gang sizes, and storage classes.

    ## Why it costs
    A Deployment starts training again when it is done; ranks that start one after the other wait forever; other objects
    are refused or stay pending.

    ## How to recognize it
    Fields of the object contradict each other or the object's purpose.

    ## What to do
    Follow the advice of the finding, then lint the file again.

    ## When it is wrong
    Ignore the finding if your own controller runs the object.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: [] if manifests.is_part else [(one,)],
    checks=(
        FieldCheck(
            at=lambda one: only(one["kind"], _controllers(one) and any(map(_trains, find_pods(one)[:1]))),
            severity=HIGH,
            message="a {text} restarts training forever, even after it succeeds: use a Job",
            advice="kind: Job with restartPolicy: Never",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda one: [
                one["spec.podManagementPolicy"] or one["kind"]
                for pod in find_pods(one)
                if pod.kind == "StatefulSet"
                and pod.count > 1
                and one["spec.podManagementPolicy"].text != "Parallel"
                and pod.spec.all("containers.*.readinessProbe")
                and _is_rendezvous(pod.spec)
            ],
            severity=HIGH,
            message=(
                "podManagementPolicy OrderedReady starts pod 1 when pod 0 is ready, but pod 0 waits for pod 1 at the "
                "rendezvous: a deadlock"
            ),
            advice="podManagementPolicy: Parallel",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda one: [
                pod["name"]
                for replica in one.all("spec.*.*.template.spec")
                for pod in replica["containers"].elements[:1]
                if CONTAINERS.get(one["kind"].text or "", "") not in {"", *replica.texts("containers.*.name")}
            ],
            severity=HIGH,
            message=(
                "no container has the name that the operator looks for (pytorch in a PyTorchJob), only {text}: the job "
                "is refused, or its ranks get no environment"
            ),
            advice="name the container pytorch (tensorflow, xgboost, jax in those jobs)",
        ),
        FieldCheck(
            at=_uneven,
            severity=HIGH,
            message="{text} ranks per node do not match its GPUs: some GPUs stay idle, or ranks have none",
            advice="nprocPerNode, numProcPerNode or slotsPerWorker equal to the GPUs of a pod",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.concurrencyPolicy"] or one["spec.schedule"],
                one["kind"].text == "CronJob"
                and one["spec.concurrencyPolicy"].text in (None, "Allow")
                and _uses_gpus(one),
            ),
            severity=MEDIUM,
            message=(
                "concurrencyPolicy: Allow (the default): a run that is still going when the next one starts shares "
                "its GPUs and files"
            ),
            advice="concurrencyPolicy: Forbid",
        ),
        FieldCheck(
            at=lambda one: [
                field
                for field in (one["spec.suspend"], one["spec.runPolicy.suspend"])
                if field.is_true and one["kind"].text != "CronJob" and not _is_queued(one)
            ],
            severity=HIGH,
            message="suspend: true without a queue that would resume it: no pod is ever created",
            advice="remove suspend, or add the label kueue.x-k8s.io/queue-name",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda one: [
                value
                for key, value in one["spec.selector.matchLabels"].items
                if _controllers(one)
                and one["spec.template"]
                and one["spec.template.metadata.labels"].at([key]).text != value.text
            ],
            severity=HIGH,
            message="the selector asks for {text}, which is not a label of the template: the object is refused",
            advice="make spec.selector.matchLabels equal to the labels of the template",
        ),
        FieldCheck(
            at=lambda one: only(one["spec.strategy.rollingUpdate"], one["spec.strategy.type"].text == "Recreate"),
            severity=HIGH,
            message="rollingUpdate with type: Recreate is refused",
            advice="remove rollingUpdate",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.strategy.rollingUpdate.maxUnavailable"],
                one["spec.strategy.rollingUpdate.maxUnavailable"].text in NONE
                and one["kind"].text == "Deployment"
                and _uses_gpus(one),
            ),
            severity=LOW,
            message="each update first needs a free GPU (maxUnavailable 0): without one, it waits",
            advice="maxSurge: 0 and maxUnavailable: 1 if you have no spare GPU",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.pytorchReplicaSpecs.Worker.replicas"],
                one["spec.elasticPolicy"]
                and not one["spec.elasticPolicy.minReplicas"].amount
                <= (one["spec.pytorchReplicaSpecs.Worker.replicas"].number or 1)
                <= (one["spec.elasticPolicy.maxReplicas"].number or 1e9),
            ),
            severity=HIGH,
            message=(
                "{text} workers are outside elasticPolicy's minReplicas and maxReplicas: the rendezvous never has "
                "its nodes"
            ),
            advice="choose replicas between minReplicas and maxReplicas",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.pytorchReplicaSpecs.Master.replicas"],
                one["spec.pytorchReplicaSpecs.Master.replicas"].amount > 1,
            ),
            severity=HIGH,
            message="{text} masters: a PyTorchJob has one, and is refused",
            advice="replicas: 1 for the Master, the others as Worker",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.minAvailable"], one["spec.minAvailable"].amount < _members(one) and _uses_gpus(one)
            ),
            severity=MEDIUM,
            message=(
                "minAvailable {text} is below the pods of the job: it starts with only some ranks, which hold their "
                "GPUs and wait"
            ),
            advice="minAvailable equal to the sum of the replicas",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.minAvailable"], one["spec.minAvailable"].amount > _members(one) and one["spec.tasks"]
            ),
            severity=HIGH,
            message="minAvailable {text} is above the job's number of pods: it never starts",
            advice="minAvailable equal to the sum of the replicas",
        ),
        FieldCheck(
            at=lambda one: only(
                one["spec.storageClassName"],
                one["kind"].text == "PersistentVolumeClaim"
                and BLOCK_CLASSES.match(one["spec.storageClassName"].text or "")
                and SEVERAL & {*one.texts("spec.accessModes.*")}
                and one["spec.volumeMode"].text != "Block",
            ),
            severity=HIGH,
            message="{text} is a block disk, which attaches to one node: a claim with ReadWriteMany stays pending",
            advice="use a storage class of a shared file system (NFS, Filestore, EFS, FSx, CephFS)",
            confidence=LIKELY,
        ),
    ),
)


def _target(manifests: Manifests, one: Field) -> list[Field]:
    """The object that an autoscaler scales, if it is in the folder."""
    reference = one["spec.scaleTargetRef"] or one["spec.targetRef"]
    name = reference["name"].text
    return manifests.find(reference["kind"].text or "Deployment", name) if name else []


def _shares(one: Field) -> list[tuple[str, Field, Field]]:
    """Resources that an autoscaler watches: name, place, and the target share of the request."""
    metrics = one.all("spec.metrics.*.resource|containerResource")
    shares = [(part["name"].text or "", part["name"], part["target.averageUtilization"]) for part in metrics]
    shares += [("cpu", field, field) for field in one.all("spec.targetCPUUtilizationPercentage")]
    return shares + [(field.text or "", field, NOTHING) for field in one.all("spec.triggers.*.type")]


IDLE_AUTOSCALER = table_rule(
    "idle-autoscaler",
    "an autoscaler cannot work",
    """## What it does
    Compares HorizontalPodAutoscalers, VerticalPodAutoscalers and ScaledObjects with the objects that they scale: the
    target's kind, name and requests, the metrics, and the bounds.

    ## Why it costs
    The autoscaler reports an error in its events and never scales, or it watches the CPU while the work is on the GPU:
    requests wait while GPUs are free, or GPUs are held although there is no work.

    ## How to recognize it
    The rule checks the target and the metric sources against the API's definitions, and looks up the target in the
    folder.

    ## What to do
    Follow the advice of the finding; `kubectl describe hpa` shows the autoscaler's conditions.

    ## When it is wrong
    Ignore the finding if the cluster has a metrics server that serves other resources, or the target is in another
    repository.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: (
        [(manifests, one, _target(manifests, one))]
        if one["kind"].text in ("HorizontalPodAutoscaler", "ScaledObject", "VerticalPodAutoscaler")
        else []
    ),
    checks=(
        FieldCheck(
            at=lambda manifests, one, targets: only(
                one["spec.scaleTargetRef.kind"], one["spec.scaleTargetRef.kind"].text in UNSCALED
            ),
            severity=MEDIUM,
            message="a {text} has no scale subresource: the autoscaler (HPA) reports FailedGetScale and never scales",
            advice="remove the autoscaler; a Job runs the number of pods in parallelism",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: [
                name for name in one.all("spec.metrics.*.resource.name") if name.text not in ("cpu", "memory")
            ],
            severity=HIGH,
            message="{text} is not a resource metric (only cpu and memory are): this autoscaler never scales by it",
            advice="use a Pods or External metric that an adapter serves, such as DCGM_FI_DEV_GPU_UTIL",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: [
                place
                for name, place, share in _shares(one)
                for target in targets
                if share
                and target is targets[0]
                and all(
                    any(
                        container.amount(name, "requests") is None and container.amount(name) is None
                        for pod in find_pods(each)
                        for container in pod.containers
                    )
                    for each in targets
                )
            ],
            severity=MEDIUM,
            message=(
                "Utilization is a share of the request (cpu or memory), but a container of the target has no such "
                "request: the autoscaler never scales"
            ),
            advice="add resources.requests (cpu) to each container of the target",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: [
                place
                for name, place, _ in _shares(one)
                if name in ("cpu", "memory")
                and one["spec.scaleTargetRef.kind"].text not in UNSCALED
                and any(map(_uses_gpus, targets))
                and {shown for shown, _, _ in _shares(one)} <= {"cpu", "memory"}
                and {*one.texts("spec.metrics.*.type")} <= {"Resource", "ContainerResource"}
            ],
            severity=MEDIUM,
            message=(
                "the work is on the GPU, but this scales by {text} use, which does not show its load: requests wait, "
                "or GPUs are held although there is no work"
            ),
            advice="scale by waiting requests or GPU utilization: a Pods or External metric, or KEDA",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: [
                least
                for least, most in (
                    (one["spec.minReplicas"], one["spec.maxReplicas"]),
                    (one["spec.minReplicaCount"], one["spec.maxReplicaCount"]),
                )
                if least.amount > (most.number or 1e9)
            ],
            severity=HIGH,
            message="the minimum of replicas, {text}, is above the maximum: the autoscaler is refused",
            advice="make minReplicas at most maxReplicas",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: only(
                one["spec.minReplicas"],
                one["kind"].text == "HorizontalPodAutoscaler"
                and one["spec.minReplicas"].text == "0"
                and not {"External", "Object"} & {*one.texts("spec.metrics.*.type")},
            ),
            severity=HIGH,
            message=(
                "minReplicas: 0 is refused without an Object or External metric: with no pods, it has no metric to "
                "scale up by"
            ),
            advice="use minReplicas: 1, or KEDA, which scales to zero",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: only(
                one["spec.maxReplicas"], one["spec.maxReplicas"].text == (one["spec.minReplicas"].text or "1")
            ),
            severity=MEDIUM,
            message="minReplicas and maxReplicas are both {text}: it has nothing to scale",
            advice="raise maxReplicas, or remove the autoscaler",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: [
                target["spec.replicas"]
                for target in targets
                if one["kind"].text != "VerticalPodAutoscaler"
                and any(target.node is other.node for other in manifests.objects)
            ],
            severity=MEDIUM,
            message="replicas: {text} and an autoscaler: each apply of the file resets the number",
            advice="remove spec.replicas from the target",
        ),
        FieldCheck(
            at=lambda manifests, one, targets: only(
                one["spec.scaleTargetRef.name"] or one["spec.targetRef.name"],
                not targets
                and any(map(_controllers, manifests.objects))
                and not manifests.is_part
                and not GIVEN.search(read_all(one["spec.scaleTargetRef"])),
            ),
            severity=HIGH,
            message=(
                "no object here has the name {text} and the kind to be scaled: the autoscaler has no target and "
                "never scales"
            ),
            advice="name the kind and name of the object to scale",
            confidence=LIKELY,
        ),
    ),
)


def _selected(manifests: Manifests, one: Field) -> list[Pod]:
    """Pods in the folder that a selector matches."""
    wanted = [(key, value.text) for key, value in (one["spec.selector.matchLabels"] or one["spec.selector"]).items]
    pods = [pod for near in manifests.near for pod in find_pods(near)]
    return [pod for pod in pods if wanted and all(pod.labels.get(key) == text for key, text in wanted)]


def _kept(manifests: Manifests, budget: Field) -> float:
    """The replicas that a budget protects, at least those that an autoscaler keeps."""
    pods = [pod for pod in _selected(manifests, budget) if _controllers(pod.owner)]
    scalers = manifests.find("HorizontalPodAutoscaler") + manifests.find("ScaledObject")
    owners = [pod.owner.node for pod in pods]
    mine = [one for one in scalers if any(target.node in owners for target in _target(manifests, one))]
    most = [one["spec.minReplicas"].amount for one in mine] + [one["spec.minReplicaCount"].amount for one in mine]
    return max([*(pod.count for pod in pods), *most], default=1e9)


BLOCKING_BUDGET = table_rule(
    "blocking-budget",
    "a disruption budget does not allow any eviction",
    """## What it does
    Compares `minAvailable` and `maxUnavailable` of a PodDisruptionBudget with the replicas that it protects.

    ## Why it costs
    Draining a node waits for a pod that may never be evicted: node upgrades and scale-downs hang until they are forced.

    ## How to recognize it
    The budget has `maxUnavailable: 0`, `minAvailable: 100%`, or a `minAvailable` that equals the number of replicas.

    ## What to do
    Use `maxUnavailable: 1`, or no budget if there is a single replica.

    ## When it is wrong
    Ignore the finding if the budget should stop people who drain nodes by hand.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: [(manifests, one)] if one["kind"].text == "PodDisruptionBudget" else [],
    checks=(
        FieldCheck(
            at=lambda manifests, one: [
                *only(one["spec.maxUnavailable"], one["spec.maxUnavailable"].text in NONE),
                *only(
                    one["spec.minAvailable"],
                    one["spec.minAvailable"].text == "100%" or one["spec.minAvailable"].amount >= _kept(manifests, one),
                ),
            ],
            severity=MEDIUM,
            message="the budget ({text}) does not allow any eviction: drains and node upgrades hang",
            advice="maxUnavailable: 1",
        ),
    ),
)


def _claims(manifests: Manifests, pod: Pod) -> Iterator[tuple[Pod, Field, Field, float]]:
    """Each claim that a pod names, its object in the folder, and how many pods use it at once."""
    scalers = manifests.find("HorizontalPodAutoscaler") + manifests.find("ScaledObject")
    mine = [one for one in scalers if pod.owner.node in [target.node for target in _target(manifests, one)]]
    for name in pod.spec.all(_CLAIMS):
        users = [other.count for other in find_pods(pod.owner) if name.text in other.spec.texts(_CLAIMS)]
        count = max(sum(users), *(one["spec.maxReplicas"].amount for one in mine), 0)
        yield from ((pod, name, claim, count) for claim in manifests.find("PersistentVolumeClaim", name.text)[:1])


_CLAIMS = "volumes.*.persistentVolumeClaim.claimName"


def _is_single(claim: Field) -> bool:
    """Whether only one node may mount a claim."""
    return bool(claim["spec.accessModes"]) and not SEVERAL & {*claim.texts("spec.accessModes.*")}


SINGLE_NODE_VOLUME = table_rule(
    "single-node-volume",
    "pods on several nodes use a volume that attaches to only one node",
    """## What it does
    Compares the access modes of a claim (in the same folder) with the number of pods that mount it, and looks for
    claims in another namespace.

    ## Why it costs
    A ReadWriteOnce volume attaches to one node: pods on other nodes stay in ContainerCreating ("Multi-Attach error"),
    and the running ranks wait for them. A claim in another namespace leaves the pod pending.

    ## How to recognize it
    `parallelism` or `replicas` is greater than one, or a rolling update runs two pods for a while (medium).

    ## What to do
    Use a ReadWriteMany storage class, one claim per pod (`volumeClaimTemplates`), or `strategy: Recreate`.

    ## When it is wrong
    Ignore the finding if all pods are placed on one node.
    """,
    reads="kubernetes",
    each="pods",
    about=_claims,
    checks=(
        FieldCheck(
            at=lambda pod, name, claim, users: only(name, _is_single(claim) and users > 1),
            severity=HIGH,
            message=(
                "the claim {text} is ReadWriteOnce, which attaches to one node: pods on other nodes stay in "
                "ContainerCreating (Multi-Attach)"
            ),
            advice="use a ReadWriteMany storage class, or one claim per pod",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod, name, claim, users: only(
                name,
                _is_single(claim)
                and users == 1
                and pod.kind == "Deployment"
                and pod.owner["spec.strategy.type"].text != "Recreate"
                and pod.owner["spec.strategy.rollingUpdate.maxSurge"].text not in NONE,
            ),
            severity=MEDIUM,
            message=(
                "the claim {text} is ReadWriteOnce, and a rolling update starts the new pod first: on another node it "
                "waits for the volume forever"
            ),
            advice="strategy: {{type: Recreate}}",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda pod, name, claim, users: only(name, _is_elsewhere(claim, pod.owner)),
            severity=HIGH,
            message="the claim {text} is in another namespace, where the pod cannot mount it: it stays pending",
            advice="put both in one namespace",
        ),
    ),
)


def _is_elsewhere(one: Field, other: Field) -> bool:
    """Whether both name a namespace, and not the same one."""
    return (
        None not in (spaces := {one["metadata.namespace"].text, other["metadata.namespace"].text}) and len(spaces) > 1
    )


def _untaken(one: Field, pods: tuple[Pod, ...]) -> list[Field]:
    """Port numbers and names of a Service that no container of its pods has."""
    is_headless = one["spec.clusterIP"].text == "None"
    ports = [] if is_headless else [port["targetPort"] or port["port"] for port in one["spec.ports"].elements]
    return [port for port in ports if pods and all(pod.lacks_port(port, is_spoken=False) for pod in pods)]


def _unselected(manifests: Manifests, one: Field) -> list[Field]:
    """The selector of a Service that matches no pod here, although pods have labels of these names."""
    wanted = dict(one["spec.selector"].items)
    keys = {key for pod in manifests.pods for key in pod.labels}
    jobs = [pod.owner["metadata.name"].text for pod in manifests.pods if pod.kind in ("Job", "PyTorchJob", "JobSet")]
    names = [value for key, value in wanted.items() if key.endswith("job-name") and jobs and value.text not in jobs]
    servers = [pod.owner["metadata.name"].text for pod in manifests.pods if _controllers(pod.owner)]
    is_added = any("/" in key and not key.startswith("app.kubernetes.io") for key in wanted)
    is_named = one["metadata.name"].text in servers and not is_added
    is_missed = (
        bool(wanted) and "k8s-app" not in wanted and (keys >= {*wanted} or is_named) and not _selected(manifests, one)
    )
    return names or [one["spec.selector"]] * is_missed


ADDRESS = re.compile(r"(?:MASTER_ADDR|master[-_]addr|rdzv[-_]endpoint|main_process_ip)[=\s]+([a-z0-9][\w.-]*)")


def _meetings(manifests: Manifests, one: Field) -> Iterator[tuple[Pod, ReadPlace, Field, Field, Field]]:
    """Where the pods of a job meet: a pod, the host (the master address), the subdomain of the pods, and the Services
    in the folder that are named like the subdomain and the host's first part."""
    services = {service["metadata.name"].text: service for service in manifests.find("Service")}
    for pod in find_pods(one):
        texts = [(f"{given.name}={given.value}", given.line) for each in pod.containers for given in each.variables]
        texts += [(word.text or "", word.line) for each in pod.containers for word in each.words]
        hosts = [ReadPlace(line, match[1]) for text, line in texts if (match := ADDRESS.search(text))]
        domain = one["spec.serviceName"] if pod.kind == "StatefulSet" else pod.spec["subdomain"]
        is_own = pod.count > 1 and pod.kind in BUILT_IN and pod.kind != "JobSet"
        for host in [host for host in hosts[:1] if is_own and not re.fullmatch(r"[\d.]+|localhost", host.text)]:
            named = services.get(host.text.partition(".")[0], NOTHING)
            yield pod, host, domain, services.get(domain.text, NOTHING), named


def _job(host: ReadPlace) -> str:
    """The job that the first part of a host names, before its index; empty if it is not a pod's name."""
    return (re.match(r"([^.]+)-\d+(\.|$)", host.text) or ["", ""])[1]


UNREACHABLE_SERVICE = table_rule(
    "unreachable-service",
    "a service or address does not reach any pod",
    """## What it does
    Compares the selector and ports of a Service with the pods in the folder, and the subdomain, serviceName and master
    address of a job with its Services and its pods' host names.

    ## Why it costs
    Pod names (`job-0.service`) exist only under a headless Service with the subdomain's name. Without it, the ranks
    wait until their timeout for an address that does not exist; a Service that selects nothing never responds.

    ## How to recognize it
    The rule compares names and labels in the folder. The finding is `likely`, because an object may be created
    elsewhere.

    ## What to do
    Set `clusterIP: None`, select the pods' labels, and make `subdomain` equal to the Service's name.

    ## When it is wrong
    Ignore the finding if another tool creates the Service or the pods.
    """,
    reads="kubernetes",
    each="objects",
    about=lambda manifests, one: [] if manifests.is_part else [(manifests, one)],
    checks=(
        FieldCheck(
            at=lambda manifests, one: _unselected(manifests, one) if one["kind"].text == "Service" else [],
            severity=HIGH,
            message="the Service's selector ({text}) matches no pod here: it reaches nothing",
            advice="select the labels of the pod template",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: (
                _untaken(one, tuple(_selected(manifests, one)))
                if one["kind"].text == "Service" and not manifests.is_based
                else []
            ),
            severity=HIGH,
            message="the Service sends to port {text}, which none of its pods' containers has: connections are refused",
            advice="targetPort: a name or number of the containers' ports",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                service["spec"]
                for _, _, _, service, _ in _meetings(manifests, one)
                if service and service["spec.clusterIP"].text != "None"
            ],
            severity=HIGH,
            message=(
                "the subdomain's Service is not headless: pods have no names under it, and the master address is "
                "not found"
            ),
            advice="clusterIP: None",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                domain for _, _, domain, service, _ in _meetings(manifests, one) if domain and not service
            ],
            severity=HIGH,
            message="no headless Service {text} exists here: pod names under this subdomain are not found",
            advice="add a Service of this name with clusterIP: None",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                host
                for pod, host, domain, _, named in _meetings(manifests, one)
                if _job(host) and not named and (not domain or host.text.split(".")[1:2] != [domain.text])
            ],
            severity=HIGH,
            message=(
                "the master address {text} is not found: pods are named NAME.SUBDOMAIN, where spec.subdomain names "
                "a headless Service"
            ),
            advice="set subdomain, and write NAME-0.SUBDOMAIN",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                host
                for pod, host, _, _, named in _meetings(manifests, one)
                if _job(host) not in ("", one["metadata.name"].text or "")
                and not named
                and pod.kind in ("Job", "StatefulSet")
            ],
            severity=HIGH,
            message=(
                "the master address {text} is not found: pods are named after their job or StatefulSet, with -0, -1 "
                "and so on"
            ),
            advice="write the name of the job, -0, and the subdomain",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                host
                for _, host, _, _, named in _meetings(manifests, one)
                if not _job(host) and not named and manifests.find("Service")
            ],
            severity=HIGH,
            message="no Service exists here for the master address {text}: the ranks do not find it",
            advice="write the name of the Service",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one: [
                host
                for _, host, _, _, named in _meetings(manifests, one)
                if named
                and not _job(host)
                and not re.search(r"index|role|rank|pod-name|master", read_all(named["spec.selector"]))
            ],
            severity=HIGH,
            message="the Service {text} leads to any of the pods, not to rank 0: the ranks do not meet",
            advice="use the name of the first pod under a headless Service: NAME-0.SUBDOMAIN",
            confidence=LIKELY,
        ),
    ),
)
RESERVED = {
    "PyTorchJob": r"(MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK)$",
    "TrainJob": "PET_",
    "TrainingRuntime": "PET_",
    "ClusterTrainingRuntime": "PET_",
}
RESERVED_VARIABLE = table_rule(
    "reserved-variable",
    "a job sets variables that its operator sets itself",
    """## What it does
    Looks for `PET_*` variables in a TrainJob or its runtime, and for `MASTER_ADDR`, `WORLD_SIZE` and `RANK` in a
    PyTorchJob.

    ## Why it costs
    The operator sets these variables for each pod. If a job sets them, Kubeflow's trainer refuses the job, or the nodes
    disagree about the address of the rendezvous.

    ## How to recognize it
    A TrainJob, a runtime with a `torch` policy or a PyTorchJob has such a name in a container's `env`.

    ## What to do
    Remove the variables, and set `trainer.numNodes` and `trainer.numProcPerNode`, or the replicas.

    ## When it is wrong
    Ignore the finding if the runtime does not start torchrun.
    """,
    reads="kubernetes",
    each="objects",
    checks=(
        FieldCheck(
            at=lambda one: [
                name
                for holder in (
                    one["spec.trainer"],
                    *(field for pod in find_pods(one) for field in pod.spec.all("containers.*")),
                )
                for name in holder.all("env.*.name")
                if re.match(RESERVED.get(one["kind"].text or "", "(?!)"), name.text or "")
                and ("Runtime" not in (one["kind"].text or "") or one["spec.mlPolicy.torch"])
            ],
            severity=MEDIUM,
            message="{text} is reserved: the operator sets it for each pod",
            advice="remove it; set the number of nodes and of processes per node instead",
        ),
    ),
)


def _queues(manifests: Manifests, one: Field) -> Iterator[tuple[Manifests, Field, Field, Field, Field]]:
    """A Kueue job with the label that names its queue, and the queues in its file to which it leads."""
    locals_here = [other for other in manifests.objects if other["kind"].text == "LocalQueue"]
    for name in [one["metadata.labels"].at(["kueue.x-k8s.io/queue-name"])] if locals_here else []:
        local = next((other for other in locals_here if other["metadata.name"].text == name.text), NOTHING)
        cluster = manifests.find("ClusterQueue", local["spec.clusterQueue"].text or "")
        yield manifests, one, name, local, (cluster or [NOTHING])[0]


def _quota(cluster: Field, resource: str) -> float:
    """The most of a resource that one flavor of a queue has."""
    shares = cluster.all("spec.resourceGroups.*.flavors.*.resources.*")
    return max((quantity(share["nominalQuota"]) or 0 for share in shares if share["name"].text == resource), default=0)


def _repelled(manifests: Manifests, pod: Pod, cluster: Field) -> list[str]:
    """The taints of a flavor, if each flavor of a queue has a taint that a pod does not tolerate."""
    names = cluster.texts("spec.resourceGroups.*.flavors.*.name")
    flavors = [(manifests.find("ResourceFlavor", name) or [NOTHING])[0] for name in names]
    repelling = [
        [
            taint["key"].text or ""
            for taint in flavor.all("spec.nodeTaints.*")
            if taint["effect"].text != "PreferNoSchedule"
            and not any(
                rule["key"].text in (None, taint["key"].text)
                and (rule["operator"].text == "Exists" or rule["value"].text == taint["value"].text)
                for rule in pod.spec.all("tolerations.*") + flavor.all("spec.tolerations.*")
            )
        ]
        for flavor in flavors
    ]
    return repelling[0] if repelling and all(repelling) else []


UNADMITTED_JOB = table_rule(
    "unadmitted-job",
    "a Kueue queue never admits a job",
    """## What it does
    Follows a job's label `kueue.x-k8s.io/queue-name` to the LocalQueue, ClusterQueue and flavors in the folder, and
    compares the job's requests with their resources.

    ## Why it costs
    The workload stays suspended, and no pod is ever created: `kubectl get workloads` shows it pending, and nothing
    fails.

    ## How to recognize it
    The ClusterQueue does not cover a resource or has less quota than the job needs; every flavor has a taint that the
    pods do not tolerate; or the queue does not exist or is in another namespace.

    ## What to do
    Cover the resource, raise the quota, add the toleration, or name the intended queue.

    ## When it is wrong
    Ignore the finding if Kueue is configured to ignore resources (`excludeResourcePrefixes`), or the queue is created
    elsewhere.
    """,
    reads="kubernetes",
    each="objects",
    about=_queues,
    checks=(
        FieldCheck(
            at=lambda manifests, one, name, local, cluster: only(name, not local),
            severity=HIGH,
            message="no LocalQueue {text} exists here: the job is never admitted",
            advice="write the name of the LocalQueue",
            confidence=LIKELY,
        ),
        FieldCheck(
            at=lambda manifests, one, name, local, cluster: only(name, _is_elsewhere(local, one)),
            severity=HIGH,
            message="the LocalQueue {text} is in another namespace: the job is never admitted",
            advice="use a LocalQueue in the job's namespace",
        ),
        FieldCheck(
            at=lambda manifests, one, name, local, cluster: [
                amount
                for pod in find_pods(one)
                for amount in pod.amounts
                if cluster["spec.resourceGroups"]
                and amount.name in (*GPUS, "cpu", "memory", "ephemeral-storage")
                and amount.name not in cluster.texts("spec.resourceGroups.*.coveredResources.*")
            ],
            severity=HIGH,
            message="the ClusterQueue does not cover the resource {text}: the job is never admitted",
            advice="add it to coveredResources, with a quota, or do not ask for it",
        ),
        FieldCheck(
            at=lambda manifests, one, name, local, cluster: [
                amount
                for pod in find_pods(one)
                for amount in pod.amounts
                if not cluster.all("spec.cohort|cohortName")
                and amount.number * pod.count > _quota(cluster, amount.name) > 0
            ],
            severity=HIGH,
            message="{text} in each pod of the job exceeds the ClusterQueue's quota: the job is never admitted",
            advice="raise nominalQuota, or ask for less",
        ),
        FieldCheck(
            at=lambda manifests, one, name, local, cluster: [
                ReadPlace((pod.spec["tolerations"] or pod.spec["containers"]).line, taint)
                for pod in find_pods(one)
                for taint in _repelled(manifests, pod, cluster)
            ],
            severity=HIGH,
            message="the flavors of the queue have the taint {text}, which the pods do not tolerate: never admitted",
            advice="add a toleration of that taint",
        ),
    ),
)
