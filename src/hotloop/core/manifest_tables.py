"""The fields of manifests by kind: our own notes, one table of ``manifest_types/`` each, with source and date.

In a table ``[type.NAME]`` each key is a field and its value one of

    "string" "bool" "int" "int>=0" "quantity" "object" "any" "strings" (a map of strings) "a|b|c" (one of these words)
    "/REGEX/"      a string that fits          "@NAME"  an object of that type     "[KIND]" a list of that kind
    "{KIND}"       a map with such values      "KIND, KIND"  one of several

and a trailing "!" on the key says that it is required.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("manifest_types")
SHARED = "kubernetes"
"""The table whose types every Kubernetes kind may name."""
TABLES = {
    "TrainJob": "trainjob",
    "JobSet": "jobset",
    "Job": "job",
    "Service": "service",
    "ConfigMap": "configmap",
    "HorizontalPodAutoscaler": "autoscaler",
    "Deployment": "deployment",
    "StatefulSet": "statefulset",
    "DaemonSet": "daemonset",
    "Pod": "pod",
    "CronJob": "cronjob",
    "PersistentVolumeClaim": "claim",
    "PodDisruptionBudget": "disruption",
    "PyTorchJob": "pytorchjob",
}
"""A Kubernetes kind -> its table. A Job of another group has its own table."""


@cache
def read_types(table: str) -> Mapping[str, Mapping[str, str]]:
    """The types of a table by name, including those that it shares; ``root`` is the complete object."""
    content = tomllib.loads((FOLDER / f"{table}.toml").read_text(encoding="utf-8"))
    types: dict[str, Mapping[str, str]] = dict(content["type"])
    return {**read_types(SHARED), **types} if content.get("kubernetes") else types


def known_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Field -> kind of a type, without the marks for required fields."""
    return {name.removesuffix("!"): kind for name, kind in fields.items()}
