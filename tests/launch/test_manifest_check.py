"""Broken manifests are refused with the path of the field; the errors of the usual guides are named."""

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotloop.core.errors import UsageError
from hotloop.core.manifest_tables import FOLDER
from hotloop.launch import TARGETS
from hotloop.launch.manifest_check import check_manifest, find_schema, read_manifest

from .build_request import make_request

POD = ("spec", "template", "spec")
SET_POD = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec")
HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "train"},
    "spec": {
        "scaleTargetRef": {"kind": "Deployment", "name": "train"},
        "maxReplicas": 4,
        "metrics": [
            {
                "type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
            }
        ],
    },
}
DELETE = object()

BROKEN: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("trainjob", ("spec", "runtimeRef"), DELETE, "spec.runtimeRef: missing"),
    ("trainjob", ("spec", "trainer", "numNode"), 2, "spec.trainer.numNode: unknown field; did you mean 'numNodes'?"),
    ("trainjob", ("spec", "trainer", "numNodes"), "2", 'spec.trainer.numNodes: "2"; give a whole number'),
    ("trainjob", ("spec", "trainer", "numProcPerNode"), "auto", 'spec.trainer.numProcPerNode: "auto"'),
    (
        "trainjob",
        ("spec", "trainer", "env"),
        [{"name": "PET_NNODES", "value": "2"}],
        "spec.trainer.env[0].name: PET_NNODES is reserved",
    ),
    (
        "trainjob",
        ("spec", "trainer", "resourcesPerNode", "limits", "nvidia.com/gpu"),
        "0.25",
        "spec.trainer.resourcesPerNode.limits.nvidia.com/gpu: 0.25 is no whole number of devices",
    ),
    ("trainjob", ("spec", "podTemplateOverrides"), [], "spec.podTemplateOverrides: unknown field"),
    ("trainjob", ("apiVersion",), "kubeflow.org/v1", 'apiVersion: "kubeflow.org/v1"; give one of trainer.kubeflow.org'),
    ("trainjob", ("metadata", "name"), "Train_1", 'metadata.name: "Train_1"'),
    ("jobset", ("spec", "failurePolicy", "maxRestart"), 3, "spec.failurePolicy.maxRestart: unknown field"),
    ("jobset", ("spec", "failurePolicy", "restartStrategy"), "Never", "spec.failurePolicy.restartStrategy: "),
    ("jobset", ("spec", "failurePolicy", "rules", 0, "action"), "Restart", "spec.failurePolicy.rules[0].action: "),
    ("jobset", ("spec", "replicatedJobs", 0, "name"), DELETE, "spec.replicatedJobs[0].name: missing"),
    (
        "jobset",
        (*SET_POD, "restartPolicy"),
        "Always",
        'spec.replicatedJobs[0].template.spec.template.spec.restartPolicy: "Always"; a job needs Never',
    ),
    ("job", ("spec", "template", "spec", "containers"), DELETE, "spec.template.spec.containers: missing"),
    (
        "job",
        (*POD, "containers", 0, "resources", "limits", "nvidia.com/gpu"),
        0.25,
        "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: 0.25 is no whole number of devices",
    ),
    (
        "job",
        (*POD, "containers", 0, "resources", "limits"),
        {"gpu": 1},
        "spec.template.spec.containers[0].resources.limits.gpu: unknown resource",
    ),
    (
        "job",
        (*POD, "terminationGracePeriodSeconds"),
        "30s",
        'spec.template.spec.terminationGracePeriodSeconds: "30s"; give a whole number of 0 or more',
    ),
    ("job", (*POD, "tolerations"), [{"key": "a", "effect": "Evict"}], "spec.template.spec.tolerations[0].effect: "),
    ("job", (*POD, "containers", 0, "env", 0, "value"), 2, "spec.template.spec.containers[0].env[0].value: 2"),
    ("job", (*POD, "volumes"), [], 'spec.template.spec.containers[0].volumeMounts[0].name: "shm" is none of'),
    ("skypilot", ("num_node",), 2, "num_node: unknown field; did you mean 'num_nodes'?"),
    ("skypilot", ("num_nodes",), 0, "num_nodes: 0; give a whole number of 1 or more"),
    ("skypilot", ("resources", "use_spot"), "yes", 'resources.use_spot: "yes"; give true or false'),
    ("skypilot", ("resources", "accelerators"), 8, "resources.accelerators: 8; give a string"),
    ("skypilot", ("resources", "job_recovery"), {"max_restarts": 3}, "resources.job_recovery.max_restarts: unknown"),
    ("skypilot", ("envs",), {"A": 1}, "envs.A: 1; give a string"),
    ("dstack", ("type",), "job", 'type: "job"; give one of task'),
    ("dstack", ("nodes",), 0, "nodes: 0; give a whole number of 1 or more"),
    ("dstack", ("retry",), {"on_events": ["preemption"]}, 'retry.on_events[0]: "preemption"; give one of'),
    ("dstack", ("resources", "gpu"), {"nam": "H100"}, "resources.gpu.nam: unknown field"),
    (
        "hpa",
        ("spec", "metrics", 0, "resource", "name"),
        "gpu",
        "spec.metrics[0].resource.name: 'gpu' is no resource metric",
    ),
    ("hpa", ("spec", "maxReplicas"), DELETE, "spec.maxReplicas: missing"),
]


def make_manifest(name: str) -> Any:
    if name == "hpa":
        return copy.deepcopy(HPA)
    return list(yaml.safe_load_all(TARGETS[name].write(make_request())))[-1]


def change(manifest: Any, path: tuple[Any, ...], value: Any) -> Any:
    at = manifest
    for key in path[:-1]:
        at = at[key]
    if value is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return manifest


@pytest.mark.parametrize(("name", "path", "value", "message"), BROKEN, ids=[f"{one[0]}-{one[1][-1]}" for one in BROKEN])
def test_a_broken_manifest_is_refused_with_its_field(
    name: str, path: tuple[Any, ...], value: Any, message: str
) -> None:
    manifest = make_manifest(name)
    assert check_manifest(manifest) == [], "it was whole before"

    found = check_manifest(change(manifest, path, value), "dstack" if name == "dstack" else None)

    assert any(line.startswith(message) for line in found), found


@pytest.mark.parametrize("value", [None, 3, "x", [], ["a"], {"a": None}, {"": {}}])
@pytest.mark.parametrize("schema", sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "kubernetes"))
def test_nonsense_anywhere_is_described_and_never_an_exception(schema: str, value: Any) -> None:
    for manifest in (value, {"spec": value}, {"spec": {"trainer": value, "metrics": value, "template": value}}):
        assert all(isinstance(line, str) for line in check_manifest(manifest, schema))


def test_json_and_several_documents_are_read(tmp_path: Path) -> None:
    assert read_manifest(json.dumps({"a": 1}), "x") == [{"a": 1}]
    assert read_manifest("a: 1\n---\nb: 2\n---\n", "x") == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("text", ["a: [", "", "---\n"])
def test_what_is_no_manifest_is_one_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"^x "):
        read_manifest(text, "x")


def test_an_unknown_kind_is_one_error() -> None:
    with pytest.raises(UsageError, match="did you mean 'TrainJob'"):
        find_schema({"kind": "TrainJobs"})
    with pytest.raises(UsageError, match="a manifest is a table of fields"):
        find_schema([1])


def test_every_table_states_source_version_and_date_and_names_only_types_that_exist() -> None:
    shared = tomllib.loads((FOLDER / "kubernetes.toml").read_text())["type"]
    for path in FOLDER.glob("*.toml"):
        table = tomllib.loads(path.read_text())
        types = {**(shared if table.get("kubernetes") else {}), **table["type"]}
        assert table["source"].startswith("https://")
        assert table["version"]
        assert table["read"] in ("2026-11-23", "2026-11-28")
        for fields in table["type"].values():
            for kind in fields.values():
                for word in kind.replace("[", "").replace("]", "").split(", "):
                    assert not word.startswith("@") or word[1:] in types, (path.name, kind)
