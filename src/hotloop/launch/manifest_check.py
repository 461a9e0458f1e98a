"""A manifest -> the fields in it that its kind does not know, lacks, or holds another kind of value in.

The tables of fields, and how a kind is written in them: core/manifest_tables.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

from hotloop.core.errors import UsageError, suggest_known
from hotloop.core.manifest_fields import describe, find_field_faults
from hotloop.core.manifest_tables import TABLES

from .training_command import LAYOUT_VARIABLES

_DEVICE = re.compile(r"(gpu|nvidia\.com/gpu|amd\.com/gpu)")


def read_manifest(text: str, name: str) -> list[Any]:
    """The documents of a YAML or JSON text. Raises UsageError."""
    with contextlib.suppress(ValueError):
        return [json.loads(text)]
    import yaml

    try:
        found = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    if not found:
        raise UsageError(f"{name} holds no document")
    return found


def find_schema(document: Any) -> str:
    """The table that fits: by kind in Kubernetes, by type in dstack, else SkyPilot. Raises UsageError."""
    if not isinstance(document, dict):
        raise UsageError(f"a manifest is a table of fields, not {describe(document)}")
    if "kind" in document or "apiVersion" in document:
        kind = document.get("kind")
        if kind not in TABLES:
            raise UsageError(f"kind: {kind!r} is not checked{suggest_known(str(kind), TABLES)}")
        return TABLES[kind]
    if "type" in document:
        return "dstack"
    return "skypilot"


def check_manifest(document: Any, schema: str | None = None) -> list[str]:
    """What is wrong, one line each that begins with the path of the field; empty where nothing is."""
    table = schema or find_schema(document)
    faults = [fault.text for fault in find_field_faults(document, table)]
    return [*faults, *_check_meaning(document, table)]


# What a table of fields cannot say.


def _check_meaning(document: Any, schema: str) -> Iterator[str]:
    if schema == "trainjob":
        trainer = _get(document, "spec", "trainer")
        for at, entry in enumerate(_rows(trainer, "env")):
            if _get(entry, "name") in LAYOUT_VARIABLES:
                yield f"spec.trainer.env[{at}].name: {entry['name']} is reserved, because Kubeflow sets it"
        yield from _check_devices(_get(trainer, "resourcesPerNode"), "spec.trainer.resourcesPerNode")
    if schema == "job":
        yield from _check_job(_get(document, "spec"), "spec")
    if schema == "jobset":
        for at, one in enumerate(_rows(document, "spec", "replicatedJobs")):
            where = f"spec.replicatedJobs[{at}].template.spec"
            yield from _check_job(_get(one, "template", "spec"), where)
    if schema == "autoscaler":
        for at, metric in enumerate(_rows(document, "spec", "metrics")):
            name = _get(metric, "resource", "name")
            if isinstance(name, str) and name not in ("cpu", "memory"):
                yield (
                    f"spec.metrics[{at}].resource.name: {name!r} is no resource metric: those are cpu and memory; a "
                    "training scales by its queue, such as --queue NAME of Kueue, not by utilisation"
                )


def _check_job(spec: Any, path: str) -> Iterator[str]:
    pod = _get(spec, "template", "spec")
    where = f"{path}.template.spec"
    if isinstance(pod, dict) and pod.get("restartPolicy") not in ("Never", "OnFailure"):
        yield f"{where}.restartPolicy: {describe(pod.get('restartPolicy'))}; a job needs Never or OnFailure"
    if _get(spec, "podFailurePolicy") is not None and _get(pod, "restartPolicy") == "OnFailure":
        yield f"{where}.restartPolicy: 'OnFailure' with podFailurePolicy; give Never"
    mounts_of = [_get(volume, "name") for volume in _rows(pod, "volumes")]
    for at, container in enumerate(_rows(pod, "containers")):
        yield from _check_devices(_get(container, "resources"), f"{where}.containers[{at}].resources")
        for mount_at, mount in enumerate(_rows(container, "volumeMounts")):
            if _get(mount, "name") not in mounts_of:
                named = f"{where}.containers[{at}].volumeMounts[{mount_at}].name"
                yield f"{named}: {describe(_get(mount, 'name'))} is none of the pod's volumes"


def _check_devices(resources: Any, path: str) -> Iterator[str]:
    """Devices are whole: a fraction, which guides show, is refused by the API server."""
    for part in ("limits", "requests"):
        amounts = _get(resources, part)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if not _DEVICE.fullmatch(str(name)):
                continue
            where = f"{path}.{part}.{name}"
            if name == "gpu":
                yield f"{where}: unknown resource; a device's name has its vendor: nvidia.com/gpu"
            elif not re.fullmatch(r"[1-9]\d*", str(amount)):
                yield f"{where}: {amount} is no whole number of devices; to share one: --target gpu-sharing"
            if part == "requests" and str(_get(resources, "limits", name)) != str(amount):
                yield f"{path}.requests.{name}: {amount}, but limits differ; devices need limits that equal requests"


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _rows(value: Any, *path: str) -> list[Any]:
    found = _get(value, *path)
    return found if isinstance(found, list) else []
