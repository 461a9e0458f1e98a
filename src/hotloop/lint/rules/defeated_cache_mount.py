"""defeated-cache-mount: a cache is mounted for an installer that is told not to use it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.dockerfile import DockerStage, Instruction
from hotloop.core.findings import Severity
from hotloop.core.lint import LintEdit, LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild, list_pip_installs


@lint_rule("defeated-cache-mount", "a cache is mounted for an installer that is told not to use it", reads="dockerfile")
def defeated_cache_mount(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a `RUN` with a cache mount for pip whose command says `--no-cache-dir`, or whose stage sets
    `PIP_NO_CACHE_DIR`.

    ## Why it costs
    The mount stays empty. Each time the layer is made, every package is downloaded again.

    ## How to tell
    Both stand in the Dockerfile, and the mount's target is pip's cache.

    ## What to do
    Remove `--no-cache-dir` (`hotloop lint --fix` does) or the variable: what lies in a cache mount is not in the image.

    ## When it is wrong
    If the variable is unset again inside the command.
    """
    for stage in build.stages:
        for one in stage.instructions:
            if not any(m["type"] == "cache" and "pip" in m.get("target", m.get("dst", "")) for m in one.mounts):
                continue
            if not list_pip_installs(one):
                continue
            variable = _find_variable(build, stage, one)
            if "--no-cache-dir" in one.arguments:
                yield _describe(one, "--no-cache-dir leaves the mounted cache empty", "remove it", _remove(one))
            elif variable is not None:
                text = f"PIP_NO_CACHE_DIR (line {variable}) leaves the mounted cache empty"
                yield _describe(one, text, "unset it for this stage", ())


def _describe(one: Instruction, message: str, advice: str, edits: tuple[LintEdit, ...]) -> LintFinding:
    return LintFinding(severity=Severity.LOW, line=one.first_line, message=message, advice=advice, edits=edits)


def _find_variable(build: DockerBuild, stage: DockerStage, before: Instruction) -> int | None:
    for one in (one for each in build.dockerfile.lineage(stage) for one in each.instructions):
        if one.name == "ENV" and one.first_line < before.first_line:
            set_to = re.search(r"PIP_NO_CACHE_DIR[= ]\"?(\w+)", one.arguments)
            if set_to and set_to.group(1).lower() in ("1", "true", "yes", "on"):
                return one.first_line
    return None


def _remove(one: Instruction) -> tuple[LintEdit, ...]:
    return tuple(
        LintEdit(
            first_line=number,
            first_column=match.start() + 1,
            last_line=number,
            last_column=match.end() + 1,
            text="",
        )
        for number, line in one.lines
        for match in re.finditer(r" --no-cache-dir(?=\s|$)", line)
    )
