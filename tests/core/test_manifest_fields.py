"""A broken field is named by its path, whatever it holds; the tables name only types that exist."""

import tomllib
from typing import Any

import pytest

from hotloop.core.manifest_fields import find_field_faults
from hotloop.core.manifest_tables import FOLDER

POD = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a:1"}]}


def job(**pod: Any) -> dict[str, Any]:
    spec = {"template": {"spec": {**POD, **pod}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


@pytest.mark.parametrize(
    ("table", "document", "place"),
    [
        ("job", job(), None),
        ("job", {**job(), "metadata": {"name": "Train_1"}}, "metadata.name"),
        ("job", {**job(), "spec": {"template": {"spec": {}}}}, "spec.template.spec.containers"),
        ("job", {**job(), "apiVersion": "batch/v2"}, "apiVersion"),
        ("job", job(terminationGracePeriodSeconds="30s"), "spec.template.spec.terminationGracePeriodSeconds"),
        ("job", job(tolerations=[{"key": "a", "effect": "Evict"}]), "spec.template.spec.tolerations[0].effect"),
        ("job", job(nodeSelectors={}), "spec.template.spec.nodeSelectors"),
        ("skypilot", {"run": "a", "num_nodes": 0}, "num_nodes"),
        ("skypilot", {"run": "a", "envs": {"A": 1}}, "envs.A"),
        ("skypilot", {"run": "a", "resources": {"use_spot": "yes"}}, "resources.use_spot"),
        ("dstack", {"type": "job", "commands": ["a"]}, "type"),
    ],
)
def test_a_broken_field_is_named_by_its_path(table: str, document: Any, place: str | None) -> None:
    assert [one.where for one in find_field_faults(document, table)] == ([place] if place else [])


@pytest.mark.parametrize("value", [None, 3, "x", [], ["a"], {"a": None}, {"": {}}])
@pytest.mark.parametrize("table", sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "kubernetes"))
def test_nonsense_anywhere_is_described_and_never_an_exception(table: str, value: Any) -> None:
    for document in (value, {"spec": value}, {"spec": {"trainer": value, "metrics": value, "template": value}}):
        assert all(fault.text for fault in find_field_faults(document, table))


def test_every_table_states_source_version_and_date_and_names_only_types_that_exist() -> None:
    shared = tomllib.loads((FOLDER / "kubernetes.toml").read_text())["type"]
    for path in FOLDER.glob("*.toml"):
        table = tomllib.loads(path.read_text())
        types = {**(shared if table.get("kubernetes") else {}), **table["type"]}
        assert table["source"].startswith("https://")
        assert {"version", "read"} <= table.keys()
        for fields in table["type"].values():
            for kind in fields.values():
                for word in kind.replace("[", "").replace("]", "").split(", "):
                    assert not word.startswith("@") or word[1:] in types, (path.name, kind)
