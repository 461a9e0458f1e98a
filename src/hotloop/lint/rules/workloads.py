"""The static checks of Kubernetes objects: jobs, servers, claims, services and autoscalers, alone and together."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, lint_rule
from hotloop.core.manifest_fields import find_field_faults
from hotloop.core.manifest_tables import TABLES, known_fields, read_types
from hotloop.lint.checks import FieldCheck, ReadPlace, only, run_checks
from hotloop.lint.formats.manifests import BUILT_IN, Manifests, Pod, find_pods, quantity, read_all
from hotloop.lint.yaml_fields import Field, read_value

HIGH, MEDIUM, LOW = Severity.HIGH, Severity.MEDIUM, Severity.LOW
LIKELY = Confidence.LIKELY
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
"""API versions that Kubernetes 1.27 serves no more."""
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
GIVEN = re.compile(r"[$<{]|^[A-Z][A-Z0-9]*_[A-Z0-9_]+$|YOUR|\.\.\.")
"""A value that a template fills in."""


@cache
def _find_owners(table: str) -> dict[str, str]:
    """Field -> a type of the table that has it."""
    return {name: owner for owner, fields in read_types(table).items() for name in known_fields(fields)}


def _find_table(one: Field) -> str | None:
    """The table of fields of an object; None where there is none for its kind and version."""
    kind, version = one["kind"].text or "", one["apiVersion"].text or ""
    if kind == "Job" and version.startswith("batch.volcano.sh/"):
        return "volcano"
    table = TABLES.get(kind)
    return table if table and read_types(table)["root"]["apiVersion!"] == version else None


@lint_rule(
    "unknown-field",
    "a field is unknown to its kind, missing, or holds a value of another type",
    reads="kubernetes",
    each="objects",
)
def unknown_field(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of an object, down to its containers, with those of its kind: names, types, words that are
    allowed, and what is required.

    ## Why it costs
    kubectl refuses the object (strict since 1.27), or the field is dropped without a word: a `restartPolicy` one level
    too high, a `nodeSelectors`, a number where a string has to be in quotes.

    ## How to tell
    The tables of fields are those of `hotloop launch`, for the version that the file names. `likely` where no known
    name is near: a newer version may know the field.

    ## What to do
    Write the name that is meant, indent the field where it belongs, put numbers in quotes. `kubectl apply
    --dry-run=server` asks the cluster.

    ## When it is wrong
    If the cluster's version is newer than the tables, or the file is a patch.
    """
    table = _find_table(one)
    types = read_types(table or "kubernetes")
    everywhere = _find_owners(table or "kubernetes")
    for fault in find_field_faults(read_value(one), table) if table else ():
        field, name = one.at(fault.path), str(fault.path[-1]) if fault.path else ""
        if (
            GIVEN.search(field.text or "")
            or re.match(r"<<|\$", name)
            or (fault.reason == "missing" and (manifests.is_based or field))
        ):
            continue
        near = difflib.get_close_matches(name, known_fields(types.get(fault.owner, {})), n=1, cutoff=0.75)
        yield LintFinding(
            severity=HIGH,
            line=field.line,
            message=f"{fault.text} ({name} of {one['kind'].text}): the object is refused, or the field does nothing",
            advice=near[0]
            if near
            else f"it belongs to: {everywhere[name]}"
            if fault.owner and name in everywhere
            else "see kubectl explain",
            confidence=LIKELY if fault.owner and not near and name not in everywhere else Confidence.CERTAIN,
        )


_CORE = re.compile(r"(v1|(apps|batch|autoscaling|policy|extensions)/\w+)$")
VERSIONS = (
    FieldCheck(
        at=lambda one: only(one["apiVersion"], one["apiVersion"].text in REMOVED),
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
)


@lint_rule(
    "removed-api-version",
    "an API version is no longer served, or does not have this kind",
    reads="kubernetes",
    each="objects",
)
def removed_api_version(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks for API versions that Kubernetes has removed, and for kinds in a group that does not have them.

    ## Why it costs
    The API server answers "no matches for kind": nothing of the object is made.

    ## How to tell
    `apiVersion` is one of those that were removed up to 1.26, or another than that of the kind.

    ## What to do
    Write the version that is served; `kubectl explain KIND` names it.

    ## When it is wrong
    If the cluster is older than the removal.
    """
    yield from run_checks(VERSIONS, one)


def _jobs(one: Field) -> Iterator[tuple[Field, Field]]:
    """The spec of the Job that an object is or makes, with that of its pods. A JobSet fills in defaults of its own."""
    kind, version = one["kind"].text, one["apiVersion"].text or ""
    if kind == "Job" and version.startswith("batch/"):
        yield one["spec"], one["spec.template.spec"]
    elif kind == "CronJob":
        yield one["spec.jobTemplate.spec"], one["spec.jobTemplate.spec.template.spec"]


RESTARTS = (
    FieldCheck(
        at=lambda one: [
            pod["restartPolicy"]
            for _, pod in _jobs(one)
            if pod["restartPolicy"].text == "Always" and any(each["image"].text for each in pod["containers"].elements)
        ],
        severity=HIGH,
        message="the Job is refused: restartPolicy is {text}",
        advice="restartPolicy: Never",
    ),
    FieldCheck(
        at=lambda one: [
            pod["containers"]
            for _, pod in _jobs(one)
            if not pod["restartPolicy"].text and any(each["image"].text for each in pod["containers"].elements)
        ],
        severity=HIGH,
        message="the Job is refused: restartPolicy is missing, and its default is Always",
        advice="restartPolicy: Never",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.template.spec.restartPolicy"],
            _controllers(one) and one["spec.template.spec.restartPolicy"].text in ("Never", "OnFailure"),
        ),
        severity=HIGH,
        message=(
            "restartPolicy {text} is refused here: pods of a Deployment, StatefulSet or DaemonSet always start again"
        ),
        advice="make it a Job, or remove restartPolicy",
    ),
)


@lint_rule(
    "job-restart-policy",
    "a Job's pods have a restart policy that Jobs do not allow",
    reads="kubernetes",
    each="objects",
)
def job_restart_policy(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks for a Job, CronJob or JobSet whose pods have no `restartPolicy`, or `Always`, and for servers whose pods have
    another one than `Always`.

    ## Why it costs
    The API server refuses the object: a Job needs `Never` or `OnFailure`, and the default is `Always`.

    ## How to tell
    The pod template has containers with images and no such policy.

    ## What to do
    `restartPolicy: Never`, and `backoffLimit` for how often a failed training is started again.

    ## When it is wrong
    If the file is a patch that another one completes.
    """
    yield from run_checks(RESTARTS, one)


def _rules(job: Field, pod: Field) -> list[Field]:
    return job["podFailurePolicy.rules"].elements


def _is_indexed(job: Field) -> bool:
    return job["completionMode"].text == "Indexed"


def _uses_index(pod: Field) -> Field | None:
    words = [word for one in pod["containers"].elements for key in ("command", "args") for word in one[key].elements]
    words += [
        value
        for one in pod["containers"].elements
        for each in one["env"].elements
        for value in (each["value"], each["valueFrom.fieldRef.fieldPath"])
    ]
    return next(
        (word for word in words if re.search(r"JOB_COMPLETION_INDEX|job-completion-index", word.text or "")), None
    )


JOB_CHECKS = (
    FieldCheck(
        at=lambda job, pod: only(
            job["podFailurePolicy"], job["podFailurePolicy"] and pod["restartPolicy"].text == "OnFailure"
        ),
        severity=HIGH,
        message="podFailurePolicy needs restartPolicy: Never, and the pods have OnFailure: the Job is refused",
        advice="restartPolicy: Never",
    ),
    FieldCheck(
        at=lambda job, pod: only(
            job["podReplacementPolicy"],
            job["podFailurePolicy"] and job["podReplacementPolicy"].text == "TerminatingOrFailed",
        ),
        severity=HIGH,
        message="podFailurePolicy needs podReplacementPolicy: Failed: the Job is refused",
        advice="podReplacementPolicy: Failed",
    ),
    FieldCheck(
        at=lambda job, pod: [
            one["onExitCodes.containerName"]
            for one in _rules(job, pod)
            if one["onExitCodes.containerName"].text
            not in (
                None,
                *(each["name"].text for key in ("containers", "initContainers") for each in pod[key].elements),
            )
        ],
        severity=HIGH,
        message="podFailurePolicy names the container {text}, which the pod does not have: the Job is refused",
        advice="name a container of the pod",
    ),
    FieldCheck(
        at=lambda job, pod: [
            one["onExitCodes.values"]
            for one in _rules(job, pod)
            if one["onExitCodes.operator"].text == "In"
            and "0" in [each.text for each in one["onExitCodes.values"].elements]
        ],
        severity=HIGH,
        message="exit code 0 in podFailurePolicy is refused: it is no failure",
        advice="remove 0 from values",
    ),
    FieldCheck(
        at=lambda job, pod: [
            one["onExitCodes"]
            for at, one in enumerate(_rules(job, pod))
            if one["action"].text == "FailJob"
            and {"137", "143"} & {each.text for each in one["onExitCodes.values"].elements}
            and one["onExitCodes.operator"].text == "In"
            and not any(earlier["onPodConditions"] for earlier in _rules(job, pod)[:at])
        ],
        severity=HIGH,
        message="exit codes 137 and 143 are those of an eviction: the first one fails the whole Job",
        advice="put a rule with action: Ignore and onPodConditions DisruptionTarget first",
    ),
    FieldCheck(
        at=lambda job, pod: [
            one["onExitCodes"]
            for at, one in enumerate(_rules(job, pod))
            if one["action"].text == "FailJob"
            and one["onExitCodes.operator"].text == "NotIn"
            and not {"137", "143"} & {each.text for each in one["onExitCodes.values"].elements}
            and not any(earlier["onPodConditions"] for earlier in _rules(job, pod)[:at])
        ],
        severity=HIGH,
        message="an eviction ends with exit code 137 or 143, which this rule takes for a failure of the Job",
        advice="put a rule with action: Ignore and onPodConditions DisruptionTarget first",
    ),
    FieldCheck(
        at=lambda job, pod: only(job["backoffLimitPerIndex"], not _is_indexed(job)),
        severity=HIGH,
        message="backoffLimitPerIndex needs completionMode: Indexed: the Job is refused",
        advice="completionMode: Indexed",
    ),
    FieldCheck(
        at=lambda job, pod: only(job["maxFailedIndexes"], not job["backoffLimitPerIndex"]),
        severity=HIGH,
        message="maxFailedIndexes needs backoffLimitPerIndex: the Job is refused",
        advice="set backoffLimitPerIndex",
    ),
    FieldCheck(
        at=lambda job, pod: only(job["successPolicy"], not _is_indexed(job)),
        severity=HIGH,
        message="successPolicy needs completionMode: Indexed: the Job is refused",
        advice="completionMode: Indexed",
    ),
    FieldCheck(
        at=lambda job, pod: only(job["completionMode"], _is_indexed(job) and not job["completions"]),
        severity=HIGH,
        message="completionMode: Indexed needs completions: the Job is refused",
        advice="completions equal to parallelism",
    ),
    FieldCheck(
        at=lambda job, pod: only(_uses_index(pod) or Field(None, 0), not _is_indexed(job)),
        severity=HIGH,
        message="JOB_COMPLETION_INDEX is only set with completionMode: Indexed: the rank stays empty",
        advice="completionMode: Indexed",
    ),
    FieldCheck(
        at=lambda job, pod: only(
            job["parallelism"] or job["completions"],
            _uses_index(pod)
            and (job["completions"].number or 1) > (job["parallelism"].number or 1)
            and _is_rendezvous(pod),
        ),
        severity=HIGH,
        message=(
            "fewer pods run at once (parallelism) than there are ranks (completions): those that run wait for the "
            "others, which never start"
        ),
        advice="parallelism equal to completions",
    ),
    FieldCheck(
        at=lambda job, pod: only(
            job["ttlSecondsAfterFinished"],
            (job["ttlSecondsAfterFinished"].number or 0) < 300 and "/gpu" in str(read_value(pod)),
        ),
        severity=MEDIUM,
        message=(
            "{text} s after its end the Job goes with its pods and their logs: a failure of the night leaves "
            "nothing to read"
        ),
        advice="ttlSecondsAfterFinished: 86400",
    ),
    FieldCheck(
        at=lambda job, pod: only(
            job["backoffLimit"], (job["backoffLimit"].number or 0) > 100 and pod["restartPolicy"].text == "Never"
        ),
        severity=LOW,
        message="a training that fails at once is started {text} times",
        advice="a smaller backoffLimit, and a podFailurePolicy that ignores DisruptionTarget",
    ),
)


def _is_rendezvous(pod: Field) -> bool:
    texts = [
        word.text or ""
        for one in pod["containers"].elements
        for key in ("command", "args")
        for word in one[key].elements
    ]
    texts += [each["name"].text or "" for one in pod["containers"].elements for each in one["env"].elements]
    return bool(re.search(r"nnodes|node[-_]rank|MASTER_ADDR|master[-_]addr|rdzv|WORLD_SIZE", " ".join(texts)))


@lint_rule(
    "job-policy",
    "policies of a Job exclude each other, or do not do what they seem to",
    reads="kubernetes",
    each="objects",
)
def job_policy(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Compares `completionMode`, `completions`, `parallelism`, `podFailurePolicy`, `successPolicy`, `backoffLimit` and
    `ttlSecondsAfterFinished` of a Job with each other and with its pods.

    ## Why it costs
    The API server refuses the Job, ranks wait for pods that are never started, an eviction fails the whole training, or
    its logs are gone.

    ## How to tell
    The rules of the API (batch/v1), and which variables the command reads.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If a webhook of the cluster changes the Job first.
    """
    for job, pod in _jobs(one):
        if not manifests.is_part:
            yield from run_checks(JOB_CHECKS, job, pod)


def _first_pod(one: Field) -> Pod | None:
    return next(iter(find_pods(one)), None)


def _trains(one: Field) -> bool:
    pod = _first_pod(one)
    return (
        pod is not None
        and pod.is_training
        and pod.gpu_count > 0
        and not any(each["ports"] or each["readinessProbe"] for each in pod.containers)
    )


def _controllers(one: Field) -> bool:
    return one["kind"].text in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")


def _is_queued(one: Field) -> bool:
    """Whether a queue is named, or another controller, that resumes a suspended job."""
    labels = f"{read_all(one['metadata.labels'])} {read_all(one['metadata.annotations'])}"
    return bool(one["spec.managedBy"]) or "queue" in labels


OBJECT_CHECKS = (
    FieldCheck(
        at=lambda one: only(
            one["kind"], one["kind"].text in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet") and _trains(one)
        ),
        severity=HIGH,
        message="a {text} starts the training again when it has succeeded, for ever: use a Job",
        advice="kind: Job with restartPolicy: Never",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(one["spec.podManagementPolicy"] or one["kind"], _starts_in_order(one)),
        severity=HIGH,
        message=(
            "podManagementPolicy OrderedReady starts pod 1 when pod 0 is ready, which waits for pod 1 at the "
            "rendezvous: a deadlock"
        ),
        advice="podManagementPolicy: Parallel",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.concurrencyPolicy"] or one["spec.schedule"],
            one["kind"].text == "CronJob" and one["spec.concurrencyPolicy"].text in (None, "Allow") and _uses_gpus(one),
        ),
        severity=MEDIUM,
        message=(
            "concurrencyPolicy: Allow (the default): a run that takes longer than the schedule meets the next one "
            "on the same GPUs and files"
        ),
        advice="concurrencyPolicy: Forbid",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.startingDeadlineSeconds"],
            one["kind"].text == "CronJob" and (one["spec.startingDeadlineSeconds"].number or 0) < 10,
        ),
        severity=MEDIUM,
        message="with startingDeadlineSeconds {text} the controller, which looks every 10 s, may never start it",
        advice="startingDeadlineSeconds: 300",
    ),
    FieldCheck(
        at=lambda one: [
            field
            for field in (one["spec.suspend"], one["spec.runPolicy.suspend"])
            if field.is_true and one["kind"].text != "CronJob" and not _is_queued(one)
        ],
        severity=HIGH,
        message="suspend: true and no queue that would resume it: no pod is ever made",
        advice="remove suspend, or add the label kueue.x-k8s.io/queue-name",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: [
            value
            for key, value in one["spec.selector.matchLabels"].items
            if _controllers(one)
            and one["spec.template"]
            and one["spec.template.metadata.labels"]._child(key).text != value.text
        ],
        severity=HIGH,
        message="the selector asks for {text}, which is not a label of the template: the object is refused",
        advice="make spec.selector.matchLabels equal to the labels of the template",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.strategy.rollingUpdate"],
            one["spec.strategy.type"].text == "Recreate" and one["spec.strategy.rollingUpdate"],
        ),
        severity=HIGH,
        message="rollingUpdate with type: Recreate is refused",
        advice="remove rollingUpdate",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.strategy.rollingUpdate.maxUnavailable"],
            _is_none(one["spec.strategy.rollingUpdate.maxUnavailable"])
            and _is_none(one["spec.strategy.rollingUpdate.maxSurge"]),
        ),
        severity=HIGH,
        message="maxSurge and maxUnavailable are both 0: the object is refused",
        advice="maxUnavailable: 1",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.strategy.rollingUpdate.maxUnavailable"],
            one["kind"].text == "Deployment"
            and _is_none(one["spec.strategy.rollingUpdate.maxUnavailable"])
            and _uses_gpus(one),
        ),
        severity=LOW,
        message="each update needs a free GPU first (maxUnavailable 0): without one it waits",
        advice="maxSurge: 0 and maxUnavailable: 1 where no GPU is spare",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.elasticPolicy.minReplicas"],
            (one["spec.elasticPolicy.minReplicas"].number or 0) > (one["spec.elasticPolicy.maxReplicas"].number or 1e9),
        ),
        severity=HIGH,
        message="elasticPolicy: minReplicas {text} is above maxReplicas",
        advice="minReplicas at most maxReplicas",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.pytorchReplicaSpecs.Worker.replicas"],
            one["spec.elasticPolicy.minReplicas"]
            and not (one["spec.elasticPolicy.minReplicas"].number or 0)
            <= (one["spec.pytorchReplicaSpecs.Worker.replicas"].number or 1)
            <= (one["spec.elasticPolicy.maxReplicas"].number or 1e9),
        ),
        severity=HIGH,
        message=(
            "{text} workers are outside of elasticPolicy's minReplicas and maxReplicas: the rendezvous never has "
            "its nodes"
        ),
        advice="choose replicas between minReplicas and maxReplicas",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.pytorchReplicaSpecs.Master.replicas"],
            (one["spec.pytorchReplicaSpecs.Master.replicas"].number or 1) > 1,
        ),
        severity=HIGH,
        message="{text} masters: a PyTorchJob has one, and is refused",
        advice="replicas: 1 for the Master, the others as Worker",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.minAvailable"], one["spec.tasks"] and _least(one) < _members(one) and _uses_gpus(one)
        ),
        severity=MEDIUM,
        message=(
            "minAvailable {text} is below the pods of the job: it starts with some of its ranks, which hold their "
            "GPUs and wait"
        ),
        advice="minAvailable equal to the sum of the replicas",
    ),
    FieldCheck(
        at=lambda one: only(one["spec.minAvailable"], one["spec.tasks"] and _least(one) > _members(one)),
        severity=HIGH,
        message="minAvailable {text} is above the pods of the job: it never starts",
        advice="minAvailable equal to the sum of the replicas",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.failurePolicy.maxRestarts"],
            one["kind"].text == "JobSet" and one["spec.failurePolicy.maxRestarts"].number == 0 and _spots(one),
        ),
        severity=HIGH,
        message="maxRestarts: 0 on spot nodes: the first interruption ends the training",
        advice="maxRestarts: 20, and a rule for disruptions",
    ),
    FieldCheck(
        at=lambda one: [
            one["spec.successPolicy.targetReplicatedJobs"]
            for name in one["spec.successPolicy.targetReplicatedJobs"].elements
            if name.text not in [each["name"].text for each in one["spec.replicatedJobs"].elements]
        ],
        severity=HIGH,
        message="successPolicy names a replicated job that is not there",
        advice="name one of spec.replicatedJobs",
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.volumeName"] or one["spec.storageClassName"],
            _is_claim(one)
            and re.search(_BLOCK_CLASSES, one["spec.storageClassName"].text or "")
            and {"ReadWriteMany", "ReadOnlyMany"} & _modes(one)
            and one["spec.volumeMode"].text != "Block",
        ),
        severity=HIGH,
        message="{text} is a block disk, which attaches to one node: a claim with ReadWriteMany stays pending",
        advice="a storage class of a shared file system (NFS, Filestore, EFS, FSx, CephFS)",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda one: only(
            one["spec.resources.requests.storage"],
            _is_claim(one) and 0 < (quantity(one["spec.resources.requests.storage"]) or 0) < 2**20,
        ),
        severity=HIGH,
        message="storage: {text} is next to nothing: the first checkpoint fills it",
        advice="write the amount in Gi",
    ),
)
_BLOCK_CLASSES = (
    r"(?i)^(premium-rwo|standard-rwo|gp[23]|io[12]|ebs-?\S*|pd-\S+|managed(-csi|-premium|-csi-premium)?|default"
    r"|do-block-storage|hyperdisk\S*|local-path|\S*-rwo|\S*-block|\S*rbd\S*|linode-block\S*|hcloud-volumes)$"
)


def _is_none(field: Field) -> bool:
    return field.text in ("0", "0%")


def _is_claim(one: Field) -> bool:
    return one["kind"].text == "PersistentVolumeClaim"


def _modes(one: Field) -> set[str]:
    return {mode.text or "" for mode in one["spec.accessModes"].elements}


def _spots(one: Field) -> bool:
    return any(pod.spot is not None for pod in find_pods(one))


def _uses_gpus(one: Field) -> bool:
    return any(pod.gpu_count for pod in find_pods(one))


def _least(one: Field) -> float:
    return one["spec.minAvailable"].number or 0


def _members(one: Field) -> float:
    return sum(task["replicas"].number or 1 for task in one["spec.tasks"].elements)


def _starts_in_order(one: Field) -> bool:
    pod = _first_pod(one)
    return (
        one["kind"].text == "StatefulSet"
        and one["spec.podManagementPolicy"].text != "Parallel"
        and pod is not None
        and pod.count > 1
        and any(each["readinessProbe"] for each in pod.containers)
        and _is_rendezvous(pod.spec)
    )


@lint_rule("workload-settings", "an object does not do what it is for", reads="kubernetes", each="objects")
def workload_settings(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks at trainings in a Deployment or StatefulSet, runs of a CronJob that overlap, suspended jobs without a queue,
    selectors, elastic and gang sizes, and storage classes.

    ## Why it costs
    A training in a Deployment begins again when it is done; ranks that start one after the other wait for ever; the
    others are refused or stay pending.

    ## How to tell
    Fields of the one object that exclude each other or its purpose.

    ## What to do
    What the finding says; then lint the file again.

    ## When it is wrong
    If a controller of your own runs the object.
    """
    if not manifests.is_part:
        yield from run_checks(OBJECT_CHECKS, one)


def _target(manifests: Manifests, one: Field) -> list[Field]:
    """What an autoscaler scales, where it is in the folder."""
    reference = one["spec.scaleTargetRef"] or one["spec.targetRef"]
    return (
        manifests.find(reference["kind"].text or "Deployment", reference["name"].text) if reference["name"].text else []
    )


def _resources(one: Field) -> list[Field]:
    """The resource parts of an autoscaler's metrics."""
    metrics = [each for each in one["spec.metrics"].elements if each["type"].text in ("Resource", "ContainerResource")]
    return [each["resource"] or each["containerResource"] for each in metrics]


def _unrequested(manifests: Manifests, one: Field) -> list[Field]:
    """Utilization of a resource that a container of the target requests nothing of."""
    asked = [(part["name"].text or "", part["target.averageUtilization"]) for part in _resources(one)]
    asked += [("cpu", one["spec.targetCPUUtilizationPercentage"])]
    containers = [each for target in _target(manifests, one) for pod in find_pods(target) for each in pod.containers]
    return [
        field
        for name, field in asked
        if any(each.amount(name, "requests") is None and each.amount(name) is None for each in containers)
    ]


def _rivals(manifests: Manifests, one: Field, *kinds: str) -> list[Field]:
    """Other autoscalers of the same target."""
    name = (one["spec.scaleTargetRef.name"] or one["spec.targetRef.name"]).text
    others = [each for each in manifests.objects if each["kind"].text in kinds and each.node is not one.node]
    return [each for each in others if name and each["spec.scaleTargetRef.name"].text == name]


UNSCALED = ("Job", "CronJob", "Pod", "DaemonSet", "JobSet", "MPIJob", "TrainJob", "Service", "ConfigMap")
SCALER_CHECKS = (
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.scaleTargetRef.kind"], one["spec.scaleTargetRef.kind"].text in UNSCALED
        ),
        severity=MEDIUM,
        message="a {text} has no scale subresource: the autoscaler (HPA) reports FailedGetScale and never scales",
        advice="remove the autoscaler; a Job runs as many pods as parallelism says",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            part["name"] for part in _resources(one) if part["name"].text not in (None, "cpu", "memory")
        ],
        severity=HIGH,
        message="{text} is no resource metric (those are cpu and memory): this autoscaler never scales by it",
        advice="a Pods or External metric that an adapter serves, such as DCGM_FI_DEV_GPU_UTIL",
    ),
    FieldCheck(
        at=_unrequested,
        severity=MEDIUM,
        message=(
            "Utilization is a share of the request (cpu or memory), and a container of the target has no such "
            "request: the autoscaler never scales"
        ),
        advice="add resources.requests (cpu) to each container of the target",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            least
            for least, most in (
                (one["spec.minReplicas"], one["spec.maxReplicas"]),
                (one["spec.minReplicaCount"], one["spec.maxReplicaCount"]),
            )
            if (least.number or 0) > (most.number or 1e9)
        ],
        severity=HIGH,
        message="the least number of replicas, {text}, is above the most: the autoscaler is refused",
        advice="make minReplicas at most maxReplicas",
    ),
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.minReplicas"],
            one["kind"].text == "HorizontalPodAutoscaler"
            and one["spec.minReplicas"].text == "0"
            and not any(each["type"].text in ("External", "Object") for each in one["spec.metrics"].elements),
        ),
        severity=HIGH,
        message=(
            "minReplicas: 0 is refused by an HPA without an Object or External metric: no pod, no metric to scale up by"
        ),
        advice="minReplicas: 1, or KEDA, which scales to zero",
    ),
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.maxReplicas"], one["spec.maxReplicas"].text == (one["spec.minReplicas"].text or "1")
        ),
        severity=MEDIUM,
        message="minReplicas and maxReplicas are both {text}: there is nothing to scale",
        advice="raise maxReplicas, or remove the autoscaler",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            target["spec.replicas"]
            for target in _target(manifests, one)
            if one["kind"].text != "VerticalPodAutoscaler"
            and any(target.node is each.node for each in manifests.objects)
        ],
        severity=MEDIUM,
        message="replicas: {text} and an autoscaler: each apply of the file sets the number back",
        advice="remove spec.replicas from the target",
    ),
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.scaleTargetRef.name"] or one["spec.targetRef.name"],
            not _target(manifests, one)
            and any(map(_controllers, manifests.objects))
            and not manifests.is_part
            and not GIVEN.search(read_all(one["spec.scaleTargetRef"])),
        ),
        severity=HIGH,
        message=(
            "nothing here is named {text} and of the kind that is to be scaled: the autoscaler has no target and "
            "never scales"
        ),
        advice="name the kind and name of the object to scale",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.scaleTargetRef.name"],
            one["kind"].text != "VerticalPodAutoscaler"
            and _rivals(manifests, one, "HorizontalPodAutoscaler", "ScaledObject"),
        ),
        severity=MEDIUM,
        message="two autoscalers set the replicas of {text}: they undo each other",
        advice="one autoscaler with both metrics",
    ),
    FieldCheck(
        at=lambda manifests, one: only(
            one["spec.targetRef.name"],
            one["spec.updatePolicy.updateMode"].text not in ("Off", "Initial")
            and any(
                {"cpu", "memory"} & {part["name"].text for part in _resources(each)}
                for each in _rivals(manifests, one, "HorizontalPodAutoscaler")
            ),
        ),
        severity=MEDIUM,
        message="VPA and HPA work on the same metric of {text}: the one changes the request that the other divides by",
        advice="VPA with updateMode: Off, or an HPA by another metric",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            field
            for way in ("scaleUp", "scaleDown")
            for field in [one[f"spec.behavior.{way}.stabilizationWindowSeconds"]]
            if (field.number or 0) > 3600
        ],
        severity=HIGH,
        message="stabilizationWindowSeconds: {text} is refused: it is at most 3600",
        advice="stabilizationWindowSeconds: 3600",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            part["container"]
            for part in _resources(one)
            for target in _target(manifests, one)
            if part["container"].text not in [each.name for pod in find_pods(target) for each in pod.containers]
        ],
        severity=HIGH,
        message="the target has no container {text}: the autoscaler has no metric and never scales",
        advice="name a container of the target",
    ),
)


@lint_rule("idle-autoscaler", "an autoscaler cannot work", reads="kubernetes", each="objects")
def idle_autoscaler(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Reads HorizontalPodAutoscalers, VerticalPodAutoscalers and ScaledObjects with what they scale: the target's kind and
    name, its requests, the metrics, the bounds, and other autoscalers of the same target.

    ## Why it costs
    The autoscaler reports an error in its events and never scales, or two controllers undo each other: requests wait
    while GPUs are free, or GPUs are held for nobody.

    ## How to tell
    The target and the metric sources as the API defines them. The target is looked up in the folder.

    ## What to do
    What the finding says; `kubectl describe hpa` shows its conditions.

    ## When it is wrong
    If the cluster has a metrics server that serves other resources, or the target is in another repository.
    """
    if one["kind"].text in ("HorizontalPodAutoscaler", "ScaledObject", "VerticalPodAutoscaler"):
        yield from run_checks(SCALER_CHECKS, manifests, one)


def _selected(manifests: Manifests, one: Field) -> list[Pod]:
    """Pods of the folder that a selector takes."""
    wanted = [(key, value.text) for key, value in (one["spec.selector.matchLabels"] or one["spec.selector"]).items]
    return [pod for pod in manifests.near_pods if wanted and all(pod.labels.get(key) == value for key, value in wanted)]


BUDGET_CHECKS = (
    FieldCheck(
        at=lambda manifests, one: only(one["spec.maxUnavailable"], one["spec.minAvailable"]),
        severity=HIGH,
        message="minAvailable and maxUnavailable together are refused",
        advice="keep one of them",
    ),
    FieldCheck(
        at=lambda manifests, one: [
            *only(one["spec.maxUnavailable"], _is_none(one["spec.maxUnavailable"])),
            *only(
                one["spec.minAvailable"],
                one["spec.minAvailable"].text == "100%"
                or (one["spec.minAvailable"].number or 0)
                >= max([pod.count for pod in _selected(manifests, one) if _controllers(pod.owner)], default=1e9),
            ),
        ],
        severity=MEDIUM,
        message="the budget ({text}) lets no pod be evicted: drains and upgrades of the nodes hang",
        advice="maxUnavailable: 1",
    ),
)


@lint_rule("blocking-budget", "a disruption budget lets no pod go", reads="kubernetes", each="objects")
def blocking_budget(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Compares `minAvailable` and `maxUnavailable` of a PodDisruptionBudget with the replicas that it protects.

    ## Why it costs
    A drain waits for a pod that may never go: node upgrades and scale-downs hang, and are forced in the end.

    ## How to tell
    `maxUnavailable: 0`, `minAvailable: 100%`, or as many as there are replicas.

    ## What to do
    `maxUnavailable: 1`, or no budget for a single replica.

    ## When it is wrong
    If somebody drains the nodes by hand and wants to be stopped.
    """
    if one["kind"].text == "PodDisruptionBudget":
        yield from run_checks(BUDGET_CHECKS, manifests, one)


def _claims(manifests: Manifests, pod: Pod) -> Iterator[tuple[Field, Field, int]]:
    """Each claim that a pod names, the object of the folder, and how many pods use it at once."""
    scalers = [each for kind in ("HorizontalPodAutoscaler", "ScaledObject") for each in manifests.find(kind)]
    mine = [
        each["spec.maxReplicas"].number
        for each in scalers
        if pod.owner.node in [target.node for target in _target(manifests, each)]
    ]
    names = [volume["persistentVolumeClaim.claimName"] for volume in pod.volumes.values()]
    for name in names:
        mates = [
            other for other in manifests.pods if other.owner.node is pod.owner.node and name.text in read_claims(other)
        ]
        found = manifests.find("PersistentVolumeClaim", name.text) if name.text else []
        users = sum(other.count for other in mates)
        yield name, (found or [Field(None, 0)])[0], max(users, int(max([one or 0 for one in mine], default=0)))


def read_claims(pod: Pod) -> list[str | None]:
    """Names of the claims that a pod mounts."""
    return [volume["persistentVolumeClaim.claimName"].text for volume in pod.volumes.values()]


def _near_claim(manifests: Manifests, name: Field) -> bool:
    """Whether a claim of the folder has nearly this name, not only another number."""
    known = [one["metadata.name"].text or "" for one in manifests.find("PersistentVolumeClaim")]
    near = difflib.get_close_matches(name.text or "", known, n=1, cutoff=0.8)
    return bool(near) and re.sub(r"\d", "", near[0]) != re.sub(r"\d", "", name.text or "")


def _is_single(claim: Field) -> bool:
    return bool(_modes(claim)) and not _modes(claim) & {"ReadWriteMany", "ReadOnlyMany"}


def _rolls(pod: Pod) -> bool:
    strategy = pod.owner["spec.strategy"]
    return (
        pod.kind == "Deployment"
        and strategy["type"].text != "Recreate"
        and not _is_none(strategy["rollingUpdate.maxSurge"])
    )


CLAIM_CHECKS = (
    FieldCheck(
        at=lambda manifests, pod, claims: [
            name for name, claim, users in claims if _is_single(claim) and users > 1 and pod.gpu_count * users > 8
        ],
        severity=HIGH,
        message=(
            "the claim {text} is ReadWriteOnce, which attaches to one node: pods on other nodes stay in "
            "ContainerCreating (Multi-Attach)"
        ),
        advice="a ReadWriteMany storage class, or a claim for each pod",
    ),
    FieldCheck(
        at=lambda manifests, pod, claims: [
            name for name, claim, users in claims if _is_single(claim) and users > 1 and pod.gpu_count * users <= 8
        ],
        severity=HIGH,
        message=(
            "the claim {text} is ReadWriteOnce, which attaches to one node: pods on other nodes stay in "
            "ContainerCreating (Multi-Attach)"
        ),
        advice="a ReadWriteMany storage class, or a claim for each pod",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod, claims: [
            name for name, claim, users in claims if _is_single(claim) and users == 1 and _rolls(pod)
        ],
        severity=MEDIUM,
        message=(
            "the claim {text} is ReadWriteOnce, and a rolling update starts the new pod first: on another node it "
            "waits for the volume for ever"
        ),
        advice="strategy: {{type: Recreate}}",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod, claims: [
            name for name, claim, _ in claims if not claim and _near_claim(manifests, name)
        ],
        severity=HIGH,
        message="there is no claim {text} (persistentvolumeclaim not found): the pod stays pending",
        advice="write the name of the claim",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod, claims: [
            name
            for name, claim, _ in claims
            if claim["metadata.namespace"].text
            and pod.owner["metadata.namespace"].text not in (None, claim["metadata.namespace"].text)
        ],
        severity=HIGH,
        message="the claim {text} is in another namespace, where the pod cannot mount it: it stays pending",
        advice="put both into one namespace",
    ),
)


@lint_rule(
    "single-node-volume",
    "a volume that attaches to one node is used by pods on several",
    reads="kubernetes",
    each="pods",
)
def single_node_volume(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Compares the access modes of a claim (of the same folder) with the number of pods that mount it, and looks for
    claims whose name is misspelt or that are in another namespace.

    ## Why it costs
    A ReadWriteOnce volume attaches to one node: pods on other nodes stay in ContainerCreating ("Multi-Attach error"),
    and the ranks that run wait for them. A claim that is not there leaves the pod pending.

    ## How to tell
    `parallelism` or `replicas` above one, or a rolling update, which runs two pods for a while (medium).

    ## What to do
    A ReadWriteMany storage class, one claim for each pod (`volumeClaimTemplates`), or `strategy: Recreate`.

    ## When it is wrong
    If all pods are placed on one node.
    """
    yield from run_checks(CLAIM_CHECKS, manifests, pod, list(_claims(manifests, pod)))


def _ports(manifests: Manifests, one: Field) -> list[Field]:
    """Ports of a Service that no container of its pods has or speaks of."""
    containers = [container for pod in _selected(manifests, one) for container in pod.every_container]
    ports = [
        each[key].text
        for container in containers
        for each in container["ports"].elements
        for key in ("name", "containerPort")
    ]
    spoken = " ".join([*(container.text for container in containers), *(each or "" for each in ports)])
    targets = [
        port["targetPort"] or port["port"]
        for port in one["spec.ports"].elements
        if one["spec.clusterIP"].text != "None"
    ]
    return [
        each
        for each in targets
        if containers
        and each.text not in ports
        and (not (each.text or "0").isdecimal() or (len(ports) in (1, 2) and (each.text or "") not in spoken))
    ]


def _unselected(manifests: Manifests, one: Field) -> list[Field]:
    """The selector of a Service that takes no pod here, though pods have labels of such names."""
    wanted = one["spec.selector"].items
    keys = {key for pod in manifests.pods for key in pod.labels}
    jobs = [pod.owner["metadata.name"].text for pod in manifests.pods if pod.kind in ("Job", "PyTorchJob", "JobSet")]
    wrong = [
        value
        for key, value in wanted
        if key in ("job-name", "batch.kubernetes.io/job-name") and jobs and value.text not in jobs
    ]
    is_missed = {key for key, _ in wanted} <= keys and not _selected(manifests, one)
    return wrong or [one["spec.selector"]] * (is_missed and bool(wanted))


SERVICE_CHECKS = (
    FieldCheck(
        at=_unselected,
        severity=HIGH,
        message="the selector of the Service ({text}) fits no pod here: it reaches nothing",
        advice="select the labels of the pod template",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=_ports,
        severity=HIGH,
        message="the Service sends to port {text}, which no container of its pods has: connections are refused",
        advice="targetPort: a name or number of the containers' ports",
        confidence=LIKELY,
    ),
)
ADDRESS = re.compile(r"(?:MASTER_ADDR|master[-_]addr|rdzv[-_]endpoint|main_process_ip)[=\s]+([a-z0-9][\w.-]*)")
_ORDINAL = re.compile(r"(.+)-\d+$")


class Meeting(NamedTuple):
    """Where the pods of a job meet: host (the master address) and what stands there, their subdomain, and whether a
    Service of that name, or of the host's first part, is in the folder and headless."""

    host: str
    place: ReadPlace
    domain: Field
    job: str
    domain_service: Field
    host_service: Field


def _meetings(manifests: Manifests, pod: Pod) -> list[Meeting]:
    texts = [(f"{one.name}={one.value}", one.line) for each in pod.containers for one in each.variables]
    texts += [(word.text or "", word.line) for each in pod.containers for word in each.words]
    services = {each["metadata.name"].text or "": each for each in manifests.find("Service")}
    domain = pod.owner["spec.serviceName"] if pod.kind == "StatefulSet" else pod.spec["subdomain"]
    hosts = [(match[1], line) for text, line in texts if (match := ADDRESS.search(text)) is not None]
    return [
        Meeting(
            host,
            ReadPlace(line, host),
            domain,
            pod.owner["metadata.name"].text or "",
            services.get(domain.text or "", Field(None, 0)),
            services.get(host.partition(".")[0], Field(None, 0)),
        )
        for host, line in hosts[:1]
        if pod.count > 1
        and pod.kind in BUILT_IN
        and pod.kind != "JobSet"
        and not re.fullmatch(r"[\d.]+|localhost", host)
    ]


def _is_headless(service: Field) -> bool:
    return service["spec.clusterIP"].text == "None"


def _is_one(service: Field) -> bool:
    """Whether a service takes one pod of several, by its index or role."""
    return bool(re.search(r"index|role|rank|pod-name|master", read_all(service["spec.selector"])))


ADDRESS_CHECKS = (
    FieldCheck(
        at=lambda manifests, pod: [
            one.domain_service["spec"]
            for one in _meetings(manifests, pod)
            if one.domain_service and not _is_headless(one.domain_service)
        ],
        severity=HIGH,
        message=(
            "the Service of the subdomain is not headless: pods have no names under it, and the master address is "
            "not found"
        ),
        advice="clusterIP: None",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod: [
            one.domain for one in _meetings(manifests, pod) if one.domain and not one.domain_service
        ],
        severity=HIGH,
        message="there is no headless Service {text} here: names of pods under this subdomain are not found",
        advice="a Service of this name with clusterIP: None",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod: [
            one.place
            for one in _meetings(manifests, pod)
            if _ORDINAL.match(one.host.partition(".")[0])
            and not one.host_service
            and (not one.domain or "." not in one.host or one.host.split(".")[1] != one.domain.text)
        ],
        severity=HIGH,
        message=(
            "the master address {text} is not found: pods have the name NAME.SUBDOMAIN, where spec.subdomain is "
            "that of a headless Service"
        ),
        advice="set subdomain, and write NAME-0.SUBDOMAIN",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod: [
            one.place
            for one in _meetings(manifests, pod)
            if (match := _ORDINAL.match(one.host.partition(".")[0]))
            and match[1] != one.job
            and not one.host_service
            and pod.kind in ("Job", "StatefulSet")
        ],
        severity=HIGH,
        message=(
            "the master address {text} is not found: the pods are named like their job or StatefulSet, with -0, -1 "
            "and so on"
        ),
        advice="write the name of the job, -0, and the subdomain",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod: [
            one.place
            for one in _meetings(manifests, pod)
            if not _ORDINAL.match(one.host.partition(".")[0]) and not one.host_service and manifests.find("Service")
        ],
        severity=HIGH,
        message="there is no Service for the master address {text} here: the ranks do not find it",
        advice="write the name of the Service",
        confidence=LIKELY,
    ),
    FieldCheck(
        at=lambda manifests, pod: [
            one.place
            for one in _meetings(manifests, pod)
            if one.host_service and not _ORDINAL.match(one.host.partition(".")[0]) and not _is_one(one.host_service)
        ],
        severity=HIGH,
        message="the Service {text} stands for any of the pods, not for rank 0: the ranks do not meet",
        advice="the name of the first pod under a headless Service: NAME-0.SUBDOMAIN",
        confidence=LIKELY,
    ),
)


@lint_rule("unreachable-service", "a service or address reaches no pod", reads="kubernetes", each="objects")
def unreachable_service(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Compares the selector and ports of a Service with the pods of the folder, and the subdomain, the serviceName and the
    master address of a job with its Services and its pods' host names.

    ## Why it costs
    Names of pods (`job-0.service`) exist only under a headless Service of the subdomain's name. Without it the ranks
    wait for an address that nobody has until their timeout; a Service that selects nothing answers nobody.

    ## How to tell
    Names and labels as they stand in the folder. `likely`, as an object may be made elsewhere.

    ## What to do
    `clusterIP: None`, the selector of the pods' labels, and `subdomain` equal to the Service's name.

    ## When it is wrong
    If the Service or the pods are made by another tool.
    """
    if one["kind"].text == "Service" and not manifests.is_part:
        yield from run_checks(SERVICE_CHECKS, manifests, one)
    for pod in find_pods(one) if not manifests.is_part else ():
        yield from run_checks(ADDRESS_CHECKS, manifests, pod)


RESERVED = {
    "PyTorchJob": r"(MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK)$",
    "TrainJob": "PET_",
    "TrainingRuntime": "PET_",
    "ClusterTrainingRuntime": "PET_",
}


def _reserved(one: Field) -> list[Field]:
    entries = one["spec.trainer.env"].elements
    entries += [each for pod in find_pods(one) for container in pod.containers for each in container["env"].elements]
    is_other = "Runtime" in (one["kind"].text or "") and not one["spec.mlPolicy.torch"]
    pattern = "(?!)" if is_other else RESERVED.get(one["kind"].text or "", "(?!)")
    return [each["name"] for each in entries if re.match(pattern, each["name"].text or "")]


OWN_CHECKS = (
    FieldCheck(
        at=_reserved,
        severity=MEDIUM,
        message="{text} is reserved: the operator sets it for each pod",
        advice="remove it; set the number of nodes and of processes per node",
    ),
)


@lint_rule(
    "reserved-variable", "a job sets variables that its operator sets itself", reads="kubernetes", each="objects"
)
def reserved_variable(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks for `PET_*` variables in a TrainJob or its runtime, and for `MASTER_ADDR`, `WORLD_SIZE` and `RANK` in a
    PyTorchJob.

    ## Why it costs
    The operator gives them to each pod itself. Kubeflow's trainer refuses a job that sets them, or the nodes disagree
    on where they meet.

    ## How to tell
    A TrainJob, a runtime with a `torch` policy or a PyTorchJob has such a name in a container's `env`.

    ## What to do
    Remove them, and set `trainer.numNodes` and `trainer.numProcPerNode`, or the replicas.

    ## When it is wrong
    With a runtime that does not start torchrun.
    """
    yield from run_checks(OWN_CHECKS, one)
