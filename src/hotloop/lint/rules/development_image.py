"""development-image: the image that runs holds CUDA's compilers and headers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild

COMPILES = re.compile(
    r"(?i)nvcc|deepspeed|flash[-_]?attn|apex|setup\.py|--no-build-isolation|CUDA_HOME|ninja|make\b|cutlass|triton"
)


@lint_rule("development-image", "the image that runs holds CUDA's compilers and headers", reads="dockerfile")
def development_image(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for a last stage on a `-devel` image of CUDA or PyTorch.

    ## Why it costs
    Compilers, headers and static libraries are several gigabytes that each node pulls before the first step.

    ## How to tell
    The base's tag ends in `-devel` or has it before the system's name, and nothing in the stage compiles CUDA code.
    How long a pull takes depends on the network, so this is never above `low`.

    ## What to do
    Build what needs compiling in a first stage, and copy it into one on the `-runtime` image of the same version.

    ## When it is wrong
    If something compiles for CUDA while it runs, as some extensions of DeepSpeed do.
    """
    stage = build.final
    if stage is None:
        return
    lowest = build.dockerfile.lineage(stage)
    base = lowest[0].base
    image = base.rpartition("/")[2]
    if "-devel" not in image or not re.search(r"cuda|pytorch", base):
        return
    text = "\n".join(one.script for each in lowest for one in each.instructions)
    if not COMPILES.search(text):
        yield LintFinding(
            severity=Severity.LOW,
            line=lowest[0].first_line,
            message=f"{image} brings compilers and headers into the image that runs",
            advice="compile in a first stage; run on the -runtime image of the same version",
        )
