"""A YAML file -> Manifests: its Kubernetes objects, their pods, containers and tasks, each value with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import NamedTuple

from hotloop.core.manifest_tables import TABLES, read_types
from hotloop.judge.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.judge.lint.shell import ShellScript
from hotloop.judge.lint.tasks import (
    IDLES,
    SERVES,
    TRAINS,
    WORKS,
    Mount,
    Task,
    TaskVariable,
    read_notes,
    read_variables,
    read_words,
)
from hotloop.judge.lint.yaml_fields import Field, read_documents

GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
TRAINING_KINDS = ("PyTorchJob", "TrainJob")
BUILT_IN = ("Job", "CronJob", "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "JobSet")
"""Kinds without an operator that gives each pod its rank, or the address of the first pod."""
_SHARED_DISK = re.compile(r"nfs|lustre|shared|efs|fsx|gpfs|weka")
_WARNED = re.compile(r"(?i)sigterm|sigusr|preempt|graceful|on-signal")
RUNS_TO_END = ("Job", "CronJob", "Pod", "JobSet", "PyTorchJob", "MPIJob", "TrainJob")
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
CLAIMS = (
    "spec.volumeClaimTemplates.*",
    "spec.leaderWorkerTemplate.volumeClaimTemplates.*",
    "spec.volumeClaimPolicies.*.templates.*",
    "spec.template.spec.volumeClaimPolicies.*.templates.*",
)
"""Places in an object for claims that its controller makes a volume of each pod."""
NODE_RULES = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms.*.matchExpressions.*"
)
"""Places in a pod's spec that limit the nodes on which it may run."""
MIB, GIB = 2.0**20, 2.0**30
MOST_BESIDE = 40
"""The most files of a folder that are checked together."""
FINITE = re.compile(r"--[\w.-]*(max|total|num|train)?[-_.]*(steps|epochs|iters|iterations|timesteps|updates)[= ]")
LAUNCHER = re.compile(r"torchrun|accelerate launch|deepspeed")


class Amount(NamedTuple):
    """``number`` is in cores or bytes; ``part`` is limits or requests."""

    line: int
    text: str
    part: str
    name: str
    number: float
    container: Container


@dataclass(frozen=True)
class Container:
    """``words`` are its command and args; ``read`` is the script in them with the shell that runs it, or none."""

    field: Field

    def __getitem__(self, key: str) -> Field:
        return self.field[key]

    @property
    def name(self) -> str:
        return self["name"].text or ""

    @cached_property
    def words(self) -> list[Field]:
        return self.field.all("command|args.*")

    @cached_property
    def read(self) -> tuple[ShellScript, str]:
        return read_words(self.words)

    @cached_property
    def variables(self) -> tuple[TaskVariable, ...]:
        return tuple(read_variables(self["env"]))

    @cached_property
    def gpu_count(self) -> int:
        """The most GPUs of one vendor that it asks for."""
        return ceil(max((one.number for one in self.amounts if one.name in GPUS), default=0))

    @cached_property
    def mounts(self) -> list[tuple[str, str, Field]]:
        """The path, the volume's name and the mount."""
        return [
            ((mount["mountPath"].text or "").rstrip("/"), mount["name"].text or "", mount)
            for mount in self["volumeMounts"].elements
        ]

    @cached_property
    def amounts(self) -> list[Amount]:
        """Its requests, if no template fills them in."""
        parts = [(part, *entry) for part in ("limits", "requests") for entry in self[f"resources.{part}"].items]
        return [
            Amount(value.line, f"{name}: {value.text}", part, name, number, self)
            for part, name, value in parts
            if (number := quantity(value)) is not None
        ]

    def amount(self, resource: str, part: str = "limits") -> float | None:
        """Cores or bytes; None if unstated."""
        return next((one.number for one in self.amounts if (one.name, one.part) == (resource, part)), None)

    @cached_property
    def text(self) -> str:
        return " ".join(word.text or "" for word in self.words)


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod's spec within an object of ``kind``, of which ``count`` run at once. ``holder`` is its template with its
    labels, and ``replica`` the part that sets their number."""

    kind: str
    spec: Field
    owner: Field
    """The object."""
    holder: Field
    count: int
    replica: Field

    @cached_property
    def containers(self) -> list[Container]:
        return [Container(field) for field in self.spec.all("containers.*")]

    @cached_property
    def every_container(self) -> list[Container]:
        return [Container(field) for field in self.spec.all("initContainers|containers.*")]

    @cached_property
    def labels(self) -> dict[str, str | None]:
        return {name: value.text for name, value in self.holder["metadata.labels"].items}

    @cached_property
    def volumes(self) -> dict[str, Field]:
        volumes = [volume for path in CLAIMS for volume in self.owner.all(path)] + self.spec.all("volumes.*")
        return {(volume["metadata.name"] or volume["name"]).text or "": volume for volume in volumes}

    def lacks_port(self, port: Field, *, is_spoken: bool) -> bool:
        """Whether no container declares or mentions a port; ``is_spoken``: a number counts as missing only if the
        containers' commands mention the port that they declare."""
        names = [
            field.text or "" for one in self.every_container for field in one.field.all("ports.*.name|containerPort")
        ]
        declared = [name for name in names if name.isdecimal()]
        text = " ".join(one.text for one in self.every_container)
        if not port.text or "$" in port.text or port.text in names:
            return False
        is_other = len(declared) == 1 and port.text not in text and (declared[0] in text or not is_spoken)
        return not port.text.isdecimal() or is_other

    @cached_property
    def amounts(self) -> list[Amount]:
        return [amount for one in self.every_container for amount in one.amounts]

    @cached_property
    def gpu_count(self) -> int:
        return sum(one.gpu_count for one in self.containers)

    def shared_memory(self, container: Container) -> tuple[float | None, int]:
        """Bytes of /dev/shm and the line that sets them; None if it has no limit of its own."""
        mounts = [mount for path, _, mount in container.mounts if path in (SHARED, "/dev")]
        mount = mounts[0] if mounts else container["volumeMounts"]
        size = quantity(self.volumes.get(mount["name"].text or "", mount)["emptyDir.sizeLimit"])
        return (size if mounts or self.spec["hostIPC"].is_true else 64 * MIB), mount.line

    @cached_property
    def is_finite_training(self) -> bool:
        """Whether the pod starts a launcher with a number of steps or epochs, so that it ends."""
        text = " ".join(one.text for one in self.containers)
        return self.gpu_count > 0 and bool(FINITE.search(text)) and bool(LAUNCHER.search(text))

    @cached_property
    def is_training(self) -> bool:
        shown = " ".join(f"{one.text} {one['image'].text}" for one in self.containers)
        is_serving = bool(SERVES.search(shown)) or any(one["readinessProbe"] for one in self.containers)
        if self.kind in TRAINING_KINDS or any(TRAINS.search(one.text) for one in self.containers):
            return not (is_serving and self.kind in ("Deployment", "StatefulSet", "DaemonSet"))
        is_queue = self.job["completions"].amount > (self.job["parallelism"].number or 1)
        is_other = is_serving or is_queue or IDLES.search(shown) or WORKS.search(shown)
        return self.kind in ("Job", "JobSet") and bool(self.gpu_count) and not is_other

    @property
    def job(self) -> Field:
        """The spec of the Job that creates it, or of its object."""
        return self.replica if self.kind in ("Job", "CronJob", "JobSet") else self.owner["spec"]

    @property
    def retries(self) -> bool:
        """Whether an evicted pod is created again."""
        is_never = self.kind == "PyTorchJob" and self.replica["restartPolicy"].text == "Never"
        is_limited = self.job["backoffLimit"].number == 0 and not self.owner["spec.failurePolicy.maxRestarts"].amount
        return self.kind != "Pod" and not is_never and not is_limited

    @cached_property
    def spot(self) -> Field | None:
        """The selector of nodes that may be taken away; None if there is none."""
        asked = [(f"{key} {value.text}", value) for key, value in self.spec["nodeSelector"].items]
        asked += [(read_all(rule), rule) for rule in self.spec.all(NODE_RULES) if rule["operator"].text == "In"]
        asked += [(read_all(rule), rule) for rule in self.spec["tolerations"].elements]
        chosen = [value for text, value in asked if SPOT.search(text) and "on-demand" not in text.lower()]
        return chosen[0] if chosen else None


@dataclass(frozen=True, kw_only=True)
class Manifests:
    """The objects of a file. ``save_s`` is how long a checkpoint takes, if known; ``near`` are the objects of its
    folder, including its own."""

    objects: tuple[Field, ...]
    save_s: float | None = None
    near: tuple[Field, ...] = ()
    notes: str = ""
    is_part: bool = False
    """Whether the file is a patch that is merged into another: by its name or folder, or as no container has an
    image."""
    is_based: bool = False
    """Whether kustomize may complete it: a kustomization is in its folder."""
    is_template: bool = False
    """Whether a program such as envsubst fills in ``$NAME`` first."""

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Every pod of every object, including those in the templates of controllers and custom resources."""
        return tuple(pod for one in self.objects for pod in find_pods(one))

    def find(self, kind: str, name: str | None = None) -> list[Field]:
        """Objects of the folder by kind; for a name, those of the file if it has any."""
        named = [one for one in self.near if one["kind"].text == kind and name in (None, one["metadata.name"].text)]
        own = {id(one.node) for one in self.objects}
        return (name is not None and [one for one in named if id(one.node) in own]) or named

    @cached_property
    def tables(self) -> list[tuple[Field, str]]:
        """The objects to compare with a table of fields: those whose kind and version have a table."""
        named = [(one, find_table(one["kind"].text or "", one["apiVersion"].text or "")) for one in self.objects]
        return [(one, table) for one, table in named if table]

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
            mounts=tuple(
                mount
                for other in (find_pods(pod.owner) if pod.kind == "MPIJob" else (pod,))  # mpirun starts it in all pods
                for one in (other.containers if other is not pod else (container,))
                for mount in _mounts(other, one)
            ),
            is_wired=pod.kind not in BUILT_IN or bool(pod.owner["spec.plugins"]),
            is_warned=bool(_WARNED.search(container.text))
            or (pod.spec["terminationGracePeriodSeconds"].number or 0) > 30,
            spot_line=pod.spot.line if pod.spot is not None else None,
            retries=pod.retries,
            limit_s=limit.number,
            notes=self.notes,
            folder=container["workingDir"].text or "",
            image=container["image"].text or "",
        )


def _mounts(pod: Pod, container: Container) -> Iterator[Mount]:
    others = [name for one in pod.every_container if one.name != container.name for _, name, _ in one.mounts]
    is_pinned = pod.spec["nodeName"] or "hostname" in read_all(pod.spec["nodeSelector"])
    for path, name, mount in container.mounts:
        volume = pod.volumes.get(name, Field(None, mount.line))
        is_fixed = mount["readOnly"].is_true or volume["persistentVolumeClaim.readOnly"].is_true
        losses = {
            "is mounted read-only, so the first save fails": is_fixed or volume["configMap"] or volume["secret"],
            "is an emptyDir, which is deleted with its pod": volume["emptyDir"] and name not in others,
            "is a hostPath: a pod that starts again on another node does not find it": volume["hostPath"]
            and not is_pinned
            and not _SHARED_DISK.search(read_all(volume["hostPath"])),
        }
        loss = next((loss for loss, is_so in losses.items() if is_so), "")
        yield Mount(path, loss, mount.line)


def parse_manifests(file: SourceFile, around: Surroundings) -> Manifests | None:
    """None for YAML without a Kubernetes object. Raises NotRead for a template or broken YAML."""
    folder = around.objects.get(os.path.dirname(file.path), {})
    found = folder.get(file.path) or read_objects(file.text)
    if not found:
        return None
    images = [bool(container["image"]) for one in found for pod in find_pods(one) for container in pod.containers]
    named = "/".join(file.path.split("/")[-2:])
    is_alone = all(one["kind"].text == "Pod" for one in found)  # without containers: the template of an operator
    is_part = "patch" in named or not any(images or [not is_alone])
    beside = [objects for path, objects in folder.items() if path != file.path]
    return Manifests(
        objects=found,
        save_s=around.save_s,
        near=(*found, *(one for objects in beside[:MOST_BESIDE] for one in objects)),
        notes=read_notes(file.text),
        is_part=is_part,
        is_based=is_part or os.path.exists(os.path.join(os.path.dirname(file.path), "kustomization.yaml")),
        is_template=_TEMPLATE.search(file.text) is not None,
    )


def read_objects(text: str) -> tuple[Field, ...]:
    """The objects of a file, including those of a List. Raises NotRead."""
    documents = read_documents(text)
    objects = [item for one in documents for item in (one.all("items.*") if one["kind"].text == "List" else [one])]
    return tuple(one for one in objects if one["kind"].text and one["apiVersion"].text)


@lru_cache(4096)
def find_pods(one: Field) -> tuple[Pod, ...]:
    """Mappings with a list of containers, wherever they are; each once, so that aliases cost nothing."""
    seen: set[int] = set()
    waiting = [(one, one, one["spec"], 1.0)]
    kind = one["kind"].text or ""
    pods = []
    while waiting:
        field, holder, replica, count = waiting.pop()
        if not field or id(field.node) in seen:
            continue
        seen.add(id(field.node))
        if field.texts("containers.*.name"):
            count = max(count, 1) if kind != "DaemonSet" else 1
            pods.append(Pod(kind=kind, spec=field, owner=one, holder=holder, count=int(count), replica=replica))
            continue
        sizes = [float(size) for size in field.texts("replicas|parallelism|size") if size.isdecimal()]
        replica = field if sizes or field["template"] else replica
        waiting += [(child, field, replica, min(count * prod(sizes), 1e6)) for child in field.children]
    return tuple(pods)


def find_table(kind: str, version: str) -> str | None:
    """The table of fields of such objects; None if there is none."""
    table = "volcano" if kind == "Job" and version.startswith("batch.volcano.sh/") else TABLES.get(kind)
    is_known = table == "volcano" or (table and read_types(table)["root"]["apiVersion!"] == version)
    return table if is_known else None


def quantity(field: Field) -> float | None:
    """A quantity as a number in its unit: cores, bytes. None if it is not a quantity."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(m|k|[MGTP]i?|Ki)?", field.text or "")
    return float(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def read_all(field: Field) -> str:
    """Every scalar of a small mapping, including keys, in one text."""
    return " ".join(f"{key} {' '.join([value.text or '', *value.texts('*')])}" for key, value in field.items)


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
