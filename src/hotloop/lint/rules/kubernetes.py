"""The static checks of Kubernetes manifests."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.manifest_tables import TABLES, known_fields, read_types
from hotloop.core.save_notice import find_notice_s
from hotloop.lint.formats.manifests import Field, Manifests, Pod, find_specs, gpu_resources


@lint_rule(
    "fractional-gpu", "a fraction of a GPU is asked for, which no cluster grants", reads="kubernetes", each="pods"
)
def fractional_gpu(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Looks for a quantity of `nvidia.com/gpu` (or another vendor's GPUs) that is no whole number.

    ## Why it costs
    The API server refuses the object: extended resources are integers.

    ## How to tell
    The value is a fraction such as `0.25`, or has a unit of thousandths such as `500m`.

    ## What to do
    Ask for 1 and let the device plugin share it: time-slicing, MPS, or MIG's own resource names.

    ## When it is wrong
    If a webhook of the cluster rewrites the value first.
    """
    for container in pod.containers:
        for name, value in gpu_resources(container, "limits") + gpu_resources(container, "requests"):
            number = value.number
            thousandths = (value.text or "").endswith("m")
            if thousandths or (number is not None and number != int(number)):
                yield LintFinding(
                    severity=Severity.HIGH,
                    line=value.line,
                    message=f"{name}: {value.text} is refused: GPUs are whole numbers",
                    advice="ask for 1, and share it by time-slicing, MPS or MIG",
                )


@lint_rule(
    "gpu-as-resource-metric",
    "an autoscaler watches a resource metric that does not exist",
    reads="kubernetes",
    each="objects",
)
def gpu_as_resource_metric(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks for a HorizontalPodAutoscaler with a metric of type `Resource` that is neither `cpu` nor `memory`.

    ## Why it costs
    The metrics server knows these two alone. The autoscaler reports an unknown metric and never scales.

    ## How to tell
    `spec.metrics[].type` is `Resource`, and its name is, for example, `gpu` or `nvidia.com/gpu`.

    ## What to do
    Export utilisation (dcgm-exporter), offer it by a metrics adapter, and use the type `Pods` or `External`.

    ## When it is wrong
    If the cluster has a metrics server of its own that serves this name.
    """
    if one["kind"].text != "HorizontalPodAutoscaler":
        return
    for metric in one["spec.metrics"].elements:
        name = metric["resource.name"]
        if metric["type"].text in ("Resource", "ContainerResource") and name.text not in (None, "cpu", "memory"):
            yield LintFinding(
                severity=Severity.HIGH,
                line=name.line,
                message=f"{name.text} is no resource metric, so this autoscaler never scales by it",
                advice="use a Pods or External metric that an adapter serves, such as DCGM_FI_DEV_GPU_UTIL",
            )


@lint_rule(
    "gpu-without-limit", "GPUs are requested without a limit of the same number", reads="kubernetes", each="pods"
)
def gpu_without_limit(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Compares GPUs under `resources.requests` with those under `resources.limits`.

    ## Why it costs
    For extended resources both have to be equal. The API server refuses an object whose request has no limit.

    ## How to tell
    A request names a GPU, and the limit is missing or another number.

    ## What to do
    Write the number under `limits`; the request then follows by itself.

    ## When it is wrong
    If a webhook of the cluster adds the limit, or a patch in another file does.
    """
    for container in pod.containers:
        limits = {name: value.text for name, value in gpu_resources(container, "limits")}
        for name, value in gpu_resources(container, "requests"):
            if limits.get(name) != value.text and value.text is not None and not value.text.startswith("$"):
                has = f"the limit is {limits[name]}" if limits.get(name) else "there is no limit"
                yield LintFinding(
                    severity=Severity.HIGH if name not in limits else Severity.MEDIUM,
                    line=value.line,
                    message=f"a request of {value.text} {name} is refused: {has}",
                    advice=f"write {name}: {value.text} under limits",
                )


@lint_rule(
    "job-restart-policy", "a Job's pods have a restart policy that Jobs do not allow", reads="kubernetes", each="pods"
)
def job_restart_policy(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Looks for `kind: Job` or `CronJob` whose pods have no `restartPolicy`, or `Always`.

    ## Why it costs
    The API server refuses the object: a Job needs `Never` or `OnFailure`, and the default is `Always`.

    ## How to tell
    The pod template has containers with images and no such policy.

    ## What to do
    `restartPolicy: Never`, and `backoffLimit` for how often a failed training is started again.

    ## When it is wrong
    If the file is a patch that another one completes.
    """
    if pod.kind not in ("Job", "CronJob") or not (pod.owner["apiVersion"].text or "").startswith("batch/"):
        return
    policy = pod.spec["restartPolicy"]
    if policy.text not in ("Never", "OnFailure") and any(one["image"].text for one in pod.containers):
        says = (
            f"restartPolicy is {policy.text}" if policy.text else "restartPolicy is missing, and its default is Always"
        )
        yield LintFinding(
            severity=Severity.HIGH,
            line=policy.line if policy else pod.spec["containers"].line,
            message=f"the Job is refused: {says}",
            advice="restartPolicy: Never",
        )


@lint_rule(
    "reserved-variable", "a TrainJob sets variables that the trainer sets itself", reads="kubernetes", each="objects"
)
def reserved_variable(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Looks for `PET_*` variables (`PET_NNODES`, `PET_MASTER_ADDR`, ...) in a TrainJob or its runtime.

    ## Why it costs
    Kubeflow's trainer gives them to torchrun itself. It refuses a job that sets them, or the nodes disagree on where
    they meet.

    ## How to tell
    A TrainJob, or a runtime with a `torch` policy, has such a name in a container's `env`.

    ## What to do
    Remove them, and set `trainer.numNodes` and `trainer.numProcPerNode`.

    ## When it is wrong
    With a runtime that does not start torchrun.
    """
    kind = one["kind"].text
    is_runtime = kind in ("TrainingRuntime", "ClusterTrainingRuntime") and bool(one["spec.mlPolicy.torch"])
    if kind != "TrainJob" and not is_runtime:
        return
    entries = one["spec.trainer.env"].elements
    entries += [each for spec in find_specs(one) for c in spec["containers"].elements for each in c["env"].elements]
    for each in entries:
        name = each["name"].text or ""
        if name.startswith("PET_"):
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=each["name"].line,
                message=f"{name} is reserved: the trainer sets it for torchrun",
                advice="remove it; set trainer.numNodes and trainer.numProcPerNode",
            )


@lint_rule("shared-memory-on-disk", "/dev/shm is a folder on the node's disk", reads="kubernetes", each="pods")
def shared_memory_on_disk(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Looks for an `emptyDir` without `medium: Memory` that is mounted at `/dev/shm`.

    ## Why it costs
    Batches that workers hand over are then written to the node's disk, and may fill it.

    ## How to tell
    The mount at `/dev/shm` names a volume whose `emptyDir` has no medium.

    ## What to do
    `emptyDir: {medium: Memory}`. Its size counts as memory of the container.

    ## When it is wrong
    If the node's disk is a memory file system already.
    """
    volumes = {one["name"].text: one for one in pod.spec["volumes"].elements}
    for container in pod.containers:
        for mount in container["volumeMounts"].elements:
            volume = volumes.get(mount["name"].text)
            if (mount["mountPath"].text or "").rstrip("/") != "/dev/shm" or volume is None:
                continue
            if volume["emptyDir"] and volume["emptyDir.medium"].text is None:
                yield LintFinding(
                    severity=Severity.LOW,
                    line=volume["emptyDir"].line,
                    message="what workers hand over in /dev/shm goes to the node's disk",
                    advice="emptyDir: {medium: Memory}",
                )


def _sleep_s(container: Field) -> float | None:
    """Seconds that a preStop hook sleeps; None without a plain sleep."""
    hook = container["lifecycle.preStop"]
    if hook["sleep.seconds"].number is not None:
        return hook["sleep.seconds"].number
    words = " ".join(one.text or "" for one in hook["exec.command"].elements).split()
    following = words[words.index("sleep") + 1 :] if "sleep" in words else []
    return float(following[0]) if following and following[0].isdecimal() else None


@lint_rule("short-grace", "a pod is killed before its last save can end", reads="kubernetes", each="pods")
def short_grace(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Compares `terminationGracePeriodSeconds` (30 if it is not set) with what has to happen in it: the sleep of a
    `preStop` hook, and a checkpoint, if `--save-seconds` says how long one takes.

    ## Why it costs
    The whole time, the hook included, counts from the moment of eviction. Then the pod is killed, in the middle of the
    save: steps are lost, and perhaps the file.

    ## How to tell
    The hook sleeps at least as long as the grace period, or a training's save takes longer.

    ## What to do
    Set `terminationGracePeriodSeconds` above hook and save together. Spot nodes may end sooner all the same.

    ## When it is wrong
    If the training saves nothing when it is stopped.
    """
    grace = pod.spec["terminationGracePeriodSeconds"]
    grace_s = 30.0 if grace.number is None else grace.number
    hooks = [_sleep_s(one) for one in pod.containers]
    hook_s = max([each for each in hooks if each is not None], default=0.0)
    save_s = manifests.save_s if manifests.save_s is not None and pod.is_training else 0.0
    if (hook_s and hook_s >= grace_s) or (save_s and hook_s + save_s > grace_s):
        parts = [f"the preStop hook sleeps {hook_s:g} s"] if hook_s else []
        parts += [f"a save takes {save_s:g} s"] if save_s else []
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=grace.line if grace else pod.spec["containers"].line,
            message=f"killed {grace_s:g} s after the eviction, but {' and '.join(parts)}",
            advice=f"terminationGracePeriodSeconds: {round(hook_s) + (find_notice_s(save_s) if save_s else 30)}",
        )


@lint_rule("small-shared-memory", "a training has 64 MiB of shared memory", reads="kubernetes", each="pods")
def small_shared_memory(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Looks for training containers with GPUs and no volume at `/dev/shm`.

    ## Why it costs
    A container's `/dev/shm` has 64 MiB. DataLoader workers hand batches over in it, and NCCL connects the GPUs of a
    node through it: a worker ends by a bus error, or NCCL with "No space left on device".

    ## How to tell
    The pod trains (by its kind or its command), a container asks for GPUs, and neither an `emptyDir` is mounted at
    `/dev/shm` nor `hostIPC` set. `medium` with two or more GPUs, else `low`: with one it depends on the workers.

    ## What to do
    A volume `emptyDir: {medium: Memory, sizeLimit: 8Gi}`, mounted at `/dev/shm`.

    ## When it is wrong
    If the loader has no workers, or the container runtime gives more.
    """
    if not pod.is_training or pod.spec["hostIPC"].text == "true":
        return
    for container in pod.containers:
        counts = [value.number or 0 for _, value in gpu_resources(container, "limits")]
        mounted = [one["mountPath"].text or "" for one in container["volumeMounts"].elements]
        if counts and max(counts) >= 1 and not any(path.rstrip("/") in ("/dev/shm", "/dev") for path in mounted):
            yield LintFinding(
                severity=Severity.MEDIUM if max(counts) >= 2 else Severity.LOW,
                line=container["name"].line,
                message=f"{container['name'].text} trains on {max(counts):g} GPUs with 64 MiB in /dev/shm",
                advice="mount an emptyDir with medium: Memory at /dev/shm",
            )


SPOT = (
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("cloud.google.com/gke-preemptible", "true"),
    ("eks.amazonaws.com/capacitytype", "spot"),
    ("eks.amazonaws.com/capacityType", "spot"),
    ("karpenter.sh/capacity-type", "spot"),
)


@lint_rule(
    "spot-without-toleration",
    "a pod selects spot nodes whose taint it does not tolerate",
    reads="kubernetes",
    each="pods",
)
def spot_without_toleration(manifests: Manifests, pod: Pod) -> Iterator[LintFinding]:
    """## What it does
    Looks for a node selector for spot nodes without a toleration.

    ## Why it costs
    On Azure all spot nodes have the taint `kubernetes.azure.com/scalesetpriority=spot:NoSchedule`: the pod stays
    pending for ever. Elsewhere it does if the nodes were given such a taint.

    ## How to tell
    `nodeSelector` names spot capacity, and `tolerations` hold nothing about it. `medium` on Azure, where the taint is
    always there, else `info`.

    ## What to do
    Add the toleration of your provider beside the selector.

    ## When it is wrong
    If an admission webhook adds the toleration, as some clusters do.
    """
    tolerated = [one for one in pod.spec["tolerations"].elements]
    for key, value in pod.spec["nodeSelector"].items:
        if (key, (value.text or "").lower()) not in SPOT:
            continue
        if any(one["key"].text in (key, None) or "spot" in (one["key"].text or "").lower() for one in tolerated):
            continue
        yield LintFinding(
            severity=Severity.MEDIUM if "azure" in key else Severity.INFO,
            line=value.line,
            message=f"selects spot nodes ({key}) and does not tolerate a taint of theirs",
            advice=f"add a toleration with key {key}",
        )


KINDS = ("Job", "JobSet", "TrainJob")
Types = Mapping[str, Mapping[str, str]]


@lint_rule("unknown-field", "a manifest has a field that its kind does not know", reads="kubernetes", each="objects")
def unknown_field(manifests: Manifests, one: Field) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of a Job, JobSet or TrainJob, down to its containers, with those of its kind.

    ## Why it costs
    kubectl refuses the object (since 1.27, and with `--validate=strict`), or the field is dropped without a word: a
    `restartPolicy` one level too high, a `nodeSelectors`.

    ## How to tell
    The tables of fields are those of `hotloop launch`, for the version that the file names. `medium` where a known name
    is near or the field belongs to another level, else `low`: a newer version may know it.

    ## What to do
    Write the name that is meant, or indent the field where it belongs. `kubectl apply --dry-run=server` asks the
    cluster.

    ## When it is wrong
    If the cluster's version is newer than the tables.
    """
    kind = one["kind"].text or ""
    types = read_types(TABLES[kind]) if kind in KINDS else None
    if types is None or types["root"]["apiVersion!"] != one["apiVersion"].text:
        return
    everywhere = {name: owner for owner, fields in types.items() for name in known_fields(fields)}
    for name, field, owner in _find_unknown(one, "@root", types, set()):
        near = difflib.get_close_matches(name, known_fields(types[owner]), n=1, cutoff=0.8)
        elsewhere = everywhere.get(name)
        advice = f"{near[0]}" if near else f"it belongs to: {elsewhere}" if elsewhere else "see kubectl explain"
        yield LintFinding(
            severity=Severity.MEDIUM if near or elsewhere else Severity.LOW,
            line=field.line,
            message=f"{name} is no field of this {kind if owner == 'root' else owner}",
            advice=advice,
        )


def _find_unknown(
    field: Field, kind: str, types: Types, seen: set[tuple[int, str]]
) -> Iterator[tuple[str, Field, str]]:
    """Name, value and type of each field that its type does not know; what an alias repeats is read once."""
    if (id(field.node), kind) in seen:
        return
    seen.add((id(field.node), kind))
    for choice in kind.split(", "):
        if choice.startswith("@") and field.is_mapping:
            known = known_fields(types[choice[1:]])
            for name, value in field.items:
                if name in known:
                    yield from _find_unknown(value, known[name], types, seen)
                elif name != "<<":
                    yield name, value, choice[1:]
        elif choice.startswith("["):
            for one in field.elements:
                yield from _find_unknown(one, choice[1:-1], types, seen)
        elif choice.startswith("{"):
            for _, value in field.items:
                yield from _find_unknown(value, choice[1:-1], types, seen)
