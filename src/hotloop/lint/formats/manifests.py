"""A YAML file -> Manifests: its Kubernetes objects, their pods, containers and tasks, each value with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.shell import ShellScript
from hotloop.lint.tasks import IDLES, SERVES, TRAINS, Mount, Task, TaskVariable, read_notes, read_words
from hotloop.lint.yaml_fields import Field, read_documents

GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
TRAINING_KINDS = ("PyTorchJob", "TrainJob")
WIRED_KINDS = (
    "PyTorchJob",
    "TrainJob",
    "MPIJob",
    "RayJob",
    "RayCluster",
    "TFJob",
    "XGBoostJob",
    "TrainingRuntime",
    "ClusterTrainingRuntime",
    "LeaderWorkerSet",
    "RayService",
    "Workflow",
    "HyperPodPyTorchJob",
)
"""Kinds whose operator gives each pod its rank, or the address of the first."""
BUILT_IN = ("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "JobSet")
_WARNED = re.compile(r"(?i)sigterm|sigusr|preempt|graceful|on-signal")
RUNS_TO_END = ("Job", "CronJob", "Pod", "JobSet", "PyTorchJob", "MPIJob", "TrainJob")
_COUNTS = ("replicas", "parallelism", "size")
_SUFFIXES = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}
_TEMPLATE = re.compile(
    r"(?m)^\s*(- )?(image|replicas|name|namespace|claimName|storage|\S+/gpu|nodes|parallelism|completions"
    r"|instanceType|bucket\w*|[\w./-]+instance-type|serviceAccountName): *['\"]?[^\s'\"]*\$"
)
SPOT = re.compile(r"(?i)spot|preemptible")
SHARED = "/dev/shm"
MOST_BESIDE = 40
"""Files of a folder that are looked at together."""


class Amount(NamedTuple):
    """``number`` is in cores or bytes, ``part`` limits or requests."""

    line: int
    text: str
    part: str
    name: str
    number: float
    container: Container


@dataclass(frozen=True, kw_only=True)
class Container:
    """``words`` are its command and args; ``shell`` is what reads ``script``, empty without one."""

    field: Field
    is_initial: bool

    def __getitem__(self, key: str) -> Field:
        return self.field[key]

    @property
    def name(self) -> str:
        return self["name"].text or ""

    @cached_property
    def words(self) -> list[Field]:
        return self["command"].elements + self["args"].elements

    @cached_property
    def read(self) -> tuple[ShellScript, str]:
        return read_words(self.words)

    @cached_property
    def variables(self) -> tuple[TaskVariable, ...]:
        return tuple(
            TaskVariable(one["name"].text or "", one["value"].text, one["value"].line) for one in self["env"].elements
        )

    @cached_property
    def gpu_count(self) -> int:
        """The most GPUs of a vendor that it asks for."""
        return int(max((one.number for one in self.amounts if one.name in GPUS), default=0))

    @cached_property
    def mounts(self) -> list[tuple[str, str, Field]]:
        """Path, name of the volume and mount."""
        entries = self["volumeMounts"].elements
        return [((one["mountPath"].text or "").rstrip("/"), one["name"].text or "", one) for one in entries]

    @cached_property
    def amounts(self) -> list[Amount]:
        """What it asks for, where no template fills it in."""
        parts = [(part, *entry) for part in ("limits", "requests") for entry in self[f"resources.{part}"].items]
        return [
            Amount(value.line, f"{name}: {value.text}", part, name, number, self)
            for part, name, value in parts
            if (number := quantity(value)) is not None
        ]

    def amount(self, resource: str, part: str = "limits") -> float | None:
        """Cores or bytes; None where nothing is said."""
        return next((one.number for one in self.amounts if (one.name, one.part) == (resource, part)), None)

    @cached_property
    def text(self) -> str:
        return " ".join(word.text or "" for word in self.words)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod's spec within an object of ``kind``, of which ``count`` run at once. ``holder`` is its template, which has
    its labels, and ``replica`` what says how many there are."""

    kind: str
    spec: Field
    owner: Field
    """The object."""
    holder: Field
    count: int
    replica: Field

    @cached_property
    def containers(self) -> list[Container]:
        return [Container(field=one, is_initial=False) for one in self.spec["containers"].elements]

    @cached_property
    def every_container(self) -> list[Container]:
        initial = [Container(field=one, is_initial=True) for one in self.spec["initContainers"].elements]
        return initial + self.containers

    @cached_property
    def labels(self) -> dict[str, str | None]:
        return {name: value.text for name, value in self.holder["metadata.labels"].items}

    @cached_property
    def volumes(self) -> dict[str, Field]:
        templates = self.owner["spec.volumeClaimTemplates"].elements
        own = {one["metadata.name"].text or "": one for one in templates}
        return own | {one["name"].text or "": one for one in self.spec["volumes"].elements}

    @cached_property
    def amounts(self) -> list[Amount]:
        return [amount for one in self.every_container for amount in one.amounts]

    @cached_property
    def gpu_count(self) -> int:
        return sum(one.gpu_count for one in self.containers)

    def shared_memory(self, container: Container) -> tuple[float | None, int]:
        """Bytes of /dev/shm and the line that says so; None where it has no bound of its own."""
        mount = next(
            (mount for path, _, mount in container.mounts if path in (SHARED, "/dev")),
            Field(None, container["name"].line),
        )
        size = quantity(self.volumes.get(mount["name"].text or "", mount)["emptyDir.sizeLimit"])
        return (size if mount or self.spec["hostIPC"].is_true else 64 * 2.0**20), mount.line

    @cached_property
    def is_serving(self) -> bool:
        text = " ".join(f"{one.text} {one['image'].text}" for one in self.containers)
        return bool(SERVES.search(text)) or any(one["readinessProbe"] for one in self.containers)

    @cached_property
    def is_training(self) -> bool:
        if self.kind in TRAINING_KINDS or any(TRAINS.search(one.text) for one in self.containers):
            return not (self.is_serving and self.kind in ("Deployment", "StatefulSet", "DaemonSet"))
        shown = " ".join(f"{one.text} {one['image'].text}" for one in self.containers)
        return (
            self.kind in ("Job", "JobSet") and bool(self.gpu_count) and not self.is_serving and not IDLES.search(shown)
        )

    @property
    def job(self) -> Field:
        """The spec of the Job that makes it, or of its object."""
        return self.replica if self.kind in ("Job", "CronJob", "JobSet") else self.owner["spec"]

    @property
    def retries(self) -> bool:
        """Whether a pod that was evicted is made again."""
        if self.kind == "JobSet":
            return (self.owner["spec.failurePolicy.maxRestarts"].number or 0) > 0 or self.job[
                "backoffLimit"
            ].number != 0
        is_never = self.kind == "PyTorchJob" and self.replica["restartPolicy"].text == "Never"
        return self.kind != "Pod" and not is_never and self.job["backoffLimit"].number != 0

    @cached_property
    def spot(self) -> Field | None:
        """What selects nodes that may be taken away; None where nothing does."""
        selectors = [(f"{key} {value.text}", value) for key, value in self.spec["nodeSelector"].items]
        selectors += [(read_all(one), one) for one in node_requirements(self.spec) if one["operator"].text == "In"]
        chosen = [value for text, value in selectors if SPOT.search(text) and "on-demand" not in text.lower()]
        tolerated = [one for one in self.spec["tolerations"].elements if SPOT.search(read_all(one))]
        return next(iter(chosen + tolerated), None)


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """The objects of a file. ``save_s`` is how long a checkpoint takes, if that is known; ``near`` are the objects of
    its folder, its own too."""

    objects: tuple[Field, ...]
    save_s: float | None = None
    near: tuple[Field, ...] = ()
    notes: str = ""
    is_part: bool = False
    """Whether the file is a patch that kustomize merges into another."""
    is_based: bool = False
    """Whether kustomize may complete it: a kustomization is in its folder."""
    is_template: bool = False
    """Whether a program such as envsubst fills in ``$NAME`` first."""

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Every pod of every object, those in the templates of controllers and custom resources too."""
        return tuple(pod for one in self.objects for pod in find_pods(one))

    @cached_property
    def near_pods(self) -> tuple[Pod, ...]:
        return tuple(pod for one in self.near for pod in find_pods(one))

    @cached_property
    def _named(self) -> list[tuple[str | None, str | None, Field]]:
        return [(one["kind"].text, one["metadata.name"].text, one) for one in self.near]

    def find(self, kind: str, name: str | None = None) -> list[Field]:
        """Objects of the folder by kind; of a name those of the file, if it has any."""
        found = [one for known, own, one in self._named if known == kind and name in (None, own)]
        own = [one for one in found if name is not None and any(one.node is other.node for other in self.objects)]
        return own or found

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(self._make(pod, one) for pod in self.pods for one in pod.containers)

    def _make(self, pod: Pod, container: Container) -> Task:
        script, shell = container.read
        limit = pod.job["activeDeadlineSeconds"] or pod.spec["activeDeadlineSeconds"]
        shared, shared_line = pod.shared_memory(container)
        mates = [other for other in find_pods(pod.owner) if other.gpu_count or not pod.gpu_count]
        return Task(
            name=container.name,
            script=script,
            shell=shell,
            nodes=sum(other.count for other in mates),
            gpus=container.gpu_count,
            cpus=container.amount("cpu"),
            lines={"cpus": container["resources.limits.cpu"].line, "limit": limit.line, "shared": shared_line},
            trains=pod.is_training,
            shared_bytes=shared,
            variables=container.variables,
            mounts=tuple(_mounts(pod, container)),
            is_wired=pod.kind in WIRED_KINDS or bool(pod.owner["spec.plugins"]) or pod.kind not in BUILT_IN,
            is_warned=bool(_WARNED.search(container.text))
            or (pod.spec["terminationGracePeriodSeconds"].number or 0) > 30,
            spot_line=pod.spot.line if pod.spot is not None else None,
            retries=pod.retries,
            limit_s=limit.number,
            notes=self.notes,
            folder=container["workingDir"].text or "",
        )


def _mounts(pod: Pod, container: Container) -> Iterator[Mount]:
    others = [one for one in pod.every_container if one.name != container.name]
    shared = [mount["name"].text for other in others for mount in other["volumeMounts"].elements]
    for mount in container["volumeMounts"].elements:
        volume = pod.volumes.get(mount["name"].text or "", Field(None, mount.line))
        is_fixed = (
            mount["readOnly"].is_true
            or volume["persistentVolumeClaim.readOnly"].is_true
            or volume["configMap"]
            or volume["secret"]
        )
        is_scratch = volume["emptyDir"] and mount["name"].text not in shared
        is_pinned = pod.spec["nodeName"] or "hostname" in read_all(pod.spec["nodeSelector"])
        is_local = (
            volume["hostPath"]
            and not is_pinned
            and not re.search(r"nfs|lustre|shared|efs|fsx|gpfs|weka", read_all(volume["hostPath"]))
        )
        loss = (
            "is mounted read-only, so the first save fails"
            if is_fixed
            else "is an emptyDir, which is deleted with its pod"
            if is_scratch
            else "is a hostPath: a pod that starts again on another node does not find it"
            if is_local
            else ""
        )
        yield Mount(mount["mountPath"].text or "", loss, mount.line)


def parse_manifests(file: SourceFile, around: Surroundings) -> Manifests | None:
    """None for YAML that holds no Kubernetes object. Raises NotRead for a template or broken YAML."""
    folder = around.objects.get(os.path.dirname(file.path), {})
    found = folder[file.path] if file.path in folder else read_objects(file.text)
    if not found:
        return None
    beside = [objects for path, objects in folder.items() if path != file.path]
    return Manifests(
        objects=found,
        save_s=around.save_s,
        near=(*found, *(one for objects in beside[:MOST_BESIDE] for one in objects)),
        notes=read_notes(file.text),
        is_part=_is_patch(file.path),
        is_based=os.path.exists(os.path.join(os.path.dirname(file.path), "kustomization.yaml")) or _is_patch(file.path),
        is_template=_TEMPLATE.search(file.text) is not None,
    )


def read_objects(text: str) -> tuple[Field, ...]:
    """The objects of a file, those of a List too. Raises NotRead."""
    documents = read_documents(text)
    objects = [item for one in documents for item in (one["items"].elements if one["kind"].text == "List" else [one])]
    return tuple(one for one in objects if one["kind"].text and one["apiVersion"].text)


def _is_patch(path: str) -> bool:
    folder, name = os.path.split(path)
    try:
        with open(os.path.join(folder, "kustomization.yaml"), encoding="utf-8") as file:
            parts = re.split(r"(?m)^(?=\w)", file.read(1 << 16))
    except (OSError, ValueError):
        parts = []
    return "patch" in name or any(part.startswith("patch") and name in part for part in parts)


@lru_cache(4096)
def find_pods(one: Field) -> tuple[Pod, ...]:
    """Mappings with a list of containers, wherever they are; each once, so that aliases cost nothing."""
    seen: set[int] = set()
    waiting: list[tuple[Field, Field, Field, tuple[float, ...]]] = [(one, one, one["spec"], ())]
    kind = one["kind"].text or ""
    found = []
    while waiting:
        field, holder, replica, counts = waiting.pop()
        if field.node is None or id(field.node) in seen:
            continue
        seen.add(id(field.node))
        if field.is_mapping and any(c.is_mapping and c["name"].text for c in field["containers"].elements):
            count = max(1, int(min(prod(counts), 1e6))) if kind != "DaemonSet" else 1
            found.append(Pod(kind=kind, spec=field, owner=one, holder=holder, count=count, replica=replica))
            continue
        given = [field[name].number for name in _COUNTS if field[name].number is not None] if field.is_mapping else []
        counts = (*counts, *(number for number in given if number is not None))[:20]
        replica = field if given or field["template"] else replica
        waiting += [(child, field, replica, counts) for child in [value for _, value in field.items] + field.elements]
    return tuple(found)


def quantity(field: Field) -> float | None:
    """A quantity as a number of its unit: cores, bytes. None for what is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(m|k|[MGTP]i?|Ki)?", field.text or "")
    return float(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def node_requirements(spec: Field) -> list[Field]:
    """The match expressions of a required node affinity."""
    terms = spec["affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"]
    return [one for term in terms.elements for one in term["matchExpressions"].elements]


def read_all(field: Field) -> str:
    """Every scalar of a small mapping, keys too, in one text."""
    inner = [f"{key} {value.text or ' '.join(one.text or '' for one in value.elements)}" for key, value in field.items]
    return " ".join(inner)


_KIND, _VERSION = re.compile(rb"(?m)^ *kind:"), re.compile(rb"(?m)^ *apiVersion:")

KUBERNETES = LintFormat(
    id="kubernetes",
    title="Kubernetes manifest",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(
        _KIND.search(data) and _VERSION.search(data) and b"CustomResourceDefinition" not in data[:4000]
    ),
    parse=parse_manifests,
)
