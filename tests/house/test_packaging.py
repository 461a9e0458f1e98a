"""What a release and a visitor need: the workflow, the templates of issues, and the wheel's own contents."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from .load_script import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_is_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    ids = [part["id"] for part in form["body"]]
    assert len(ids) == len(set(ids)) >= 2
    assert {part["type"] for part in form["body"]} <= {"textarea", "input", "dropdown"}
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_there_is_a_form_for_each_kind_of_issue() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "wrong-diagnosis"]


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["build"]
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert not [step for step in publish["steps"] if "password" in step.get("with", {})]


def test_pytest_finds_the_plugin_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module = project["entry-points"]["pytest11"]["hotloop"]
    assert (ROOT / "src" / f"{module.replace('.', '/')}.py").is_file()
