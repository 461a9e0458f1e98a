"""torch-twice: the image holds two installations of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.dockerfile import DockerStage
from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild, list_pip_installs

PINNED = re.compile(r"(?<![\w.-])torch\s*==\s*([\d.]+(?:\+cu\d+)?)")
BASE = re.compile(r"(?:^|/)pytorch/pytorch:(\d+\.\d+(?:\.\d+)?)(?:-cuda(\d+)\.(\d+))?")
NVIDIA = re.compile(r"nvcr\.io/nvidia/pytorch:")


@lint_rule("torch-twice", "the image holds two installations of torch", reads="dockerfile")
def torch_twice(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a pinned `pip install torch==X` above a base or layer that already has another version of torch.

    ## Why it costs
    Layers are never made smaller: the first installation stays in the image, gigabytes that nobody uses, and both are
    downloaded. On NVIDIA's images the build that was tuned for them is replaced as well.

    ## How to tell
    The base's tag (`pytorch/pytorch:2.1.0-...`, `nvcr.io/nvidia/pytorch:...`), or an earlier `RUN` of the same image,
    names a torch that is not the pinned one, or one for another CUDA (`+cu117` on `-cuda11.6-`).

    ## What to do
    Choose the base by its version of torch, or begin with a plain CUDA runtime image; install torch once.

    ## When it is wrong
    If the earlier layer is in a stage from which nothing but files is copied; such stages are not compared.
    """
    for stage in build.stages:
        if any(other.base.lower() == stage.name for other in build.stages if stage.name):
            continue  # judged with the stage that is built on it
        yield from _judge(build, stage)


def _judge(build: DockerBuild, stage: DockerStage) -> Iterator[LintFinding]:
    lineage = build.dockerfile.lineage(stage)
    base = lineage[0].base
    named = BASE.search(base)
    known = "NVIDIA's own build" if NVIDIA.search(base) else None
    if named:
        known = f"{named[1]}+cu{named[2]}{named[3]}" if named[2] else named[1]
    where = "the base image"
    for one in (one for each in lineage for one in each.instructions):
        if one.name == "RUN" and re.search(r"uninstall\b[^;&|]*\btorch\b", one.script):
            continue
        texts = [text for text in list_pip_installs(one) if "--target" not in text]
        versions = {match.group(1) for text in texts for match in PINNED.finditer(text)}
        if len(versions) != 1:
            known = known if not versions else None  # a command that chooses among several
            continue
        version = versions.pop()
        if known is not None and not _same(known, version):
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=one.first_line,
                message=f"torch {version} comes on top of {known} in {where}: the image holds both",
                advice="choose a base with this torch, or one without any, and install torch once",
            )
            return
        known, where = version, f"line {one.first_line}"


def _same(one: str, other: str) -> bool:
    """Whether two versions agree as far as both are given: their numbers, and the CUDA they are built for."""
    (a, _, cuda_a), (b, _, cuda_b) = one.partition("+"), other.partition("+")
    numbers_agree = all(x == y for x, y in zip(a.split("."), b.split("."), strict=False))
    return numbers_agree and (not cuda_a or not cuda_b or cuda_a == cuda_b)
