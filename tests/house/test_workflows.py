"""CI, pre-commit, the GitHub Action and the changelog's fragments agree with the Makefile and the command line."""

import argparse
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotloop.cli.parser import build_parser

from .load_script import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FRAGMENT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.(added|changed|fixed|removed)\.md")


def read_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def make_targets(text: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))


def recipe_of(target: str) -> list[str]:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found.group(1).splitlines()]


def run_steps(workflow: Any) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def called_targets(steps: list[str]) -> set[str]:
    return {target for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step)}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_only_call_targets_of_the_makefile(path: Path) -> None:
    steps = run_steps(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert steps
    assert [one for one in steps if not one.startswith("make ")] == []
    assert called_targets(steps) - make_targets(MAKEFILE) == set()


def test_ci_runs_what_a_developer_runs() -> None:
    assert {"check", "test"} <= called_targets(run_steps(read_yaml(".github/workflows/ci.yml")))


def test_contributing_names_only_targets_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"check", "test", "new-rule", "new-technique"} <= called_targets([text]) <= make_targets(MAKEFILE)


def test_pre_commit_calls_the_commands_of_make_check() -> None:
    (repo,) = read_yaml(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repo["hooks"]] == recipe_of("check")


def options_of(command: str) -> set[str]:
    (subparsers,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return {option for action in subparsers.choices[command]._actions for option in action.option_strings}


def action_step() -> Any:
    action = read_yaml("action.yml")
    assert action["runs"]["using"] == "composite"
    return action, action["runs"]["steps"][-1]


def test_the_actions_inputs_are_options_of_hotloop_check_and_all_are_used() -> None:
    action, step = action_step()
    names = set(action["inputs"]) - {"run", "working-directory"}
    assert {f"--{name}" for name in names} <= options_of("check")
    assert set(re.findall(r"--[a-z]+", step["run"])) <= options_of("check") | options_of("report")
    used = {value for value in step["env"].values()} | {step["working-directory"]}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]}
    assert all(f"${name}" in step["run"] for name in step["env"])


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_action_passes_inputs_on_and_writes_the_summary(tmp_path: Path, code: int) -> None:
    _, step = action_step()
    program = tmp_path / "hotloop"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/words"\n'
        'if [ "$1" = report ]; then echo "## regression: step +9%"; exit 0; fi\n'
        f'echo "::error title=hotloop::slower"\n[ {code} = 2 ] || echo "{{}}" > "$4"\nexit {code}\n'
    )
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "INPUT_RUN": "ci 1\nci 2\n",
        "INPUT_BASELINE": "baseline.json",
        "INPUT_LIMITS": "",
        "INPUT_STRICT": "true",
        "INPUT_JUNIT": "check.xml",
    }
    assert set(step["env"]) <= set(environment)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    given = ["ci 1", "ci 2", "--baseline", "baseline.json", "--junit", "check.xml", "--strict"]
    result = str(tmp_path / "hotloop-check.json")
    drawn = [] if code == 2 else ["report", result, "--format", "markdown"]
    assert words == ["check", "--github", "--json", result, *given, *drawn]
    assert "::error title=hotloop::slower" in done.stdout
    summary = tmp_path / "summary.md"
    assert (summary.read_text() if summary.exists() else "") == ("" if code == 2 else "## regression: step +9%\n")


def test_every_file_of_changes_is_a_fragment_that_towncrier_reads() -> None:
    names = {path.name for path in (ROOT / "changes").iterdir()} - {"README.md", "template.md.jinja"}
    assert [name for name in sorted(names) if not FRAGMENT.fullmatch(name)] == []


def named_paths(text: str) -> set[str]:
    """Files and folders of the repository that a page names in backticks."""
    return set(re.findall(r"`((?:src|tests|docs|scripts|benchmarks|changes)/[\w./-]+)`", text))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/dev/architecture.md"])
def test_a_contributors_page_names_only_files_that_exist(name: str) -> None:
    examples = {"slow_collate.py", "test_slow_collate.py", "my_technique.py", "test_my_technique.py"}
    paths = named_paths((ROOT / name).read_text(encoding="utf-8"))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists() and Path(path).name not in examples] == []
