"""uncached-install: each new layer downloads torch again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild, list_pip_installs

LARGE = re.compile(r"(?<![\w-])(torch|tensorflow|vllm|deepspeed)(?![\w-])|-r\s|--requirement|-e\s|\s\.(\[|\s|$)")


@lint_rule("uncached-install", "each new layer downloads its packages again", reads="dockerfile")
def uncached_install(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `pip install` of torch or of a whole list of packages without a cache mount.

    ## Why it costs
    When the list changes by one line, the layer is made anew and all packages, gigabytes with CUDA, are downloaded
    again.

    ## How to tell
    The `RUN` has no `--mount=type=cache`. What it costs is measured by a build, so this is `info`.

    ## What to do
    `RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt`, without `--no-cache-dir`.

    ## When it is wrong
    If builds always start on a fresh machine, where a cache mount is empty.
    """
    for stage in build.stages:
        for one in stage.instructions:
            if any(m["type"] == "cache" for m in one.mounts):
                continue
            if any(LARGE.search(f" {text}") for text in list_pip_installs(one)):
                yield LintFinding(
                    severity=Severity.INFO,
                    line=one.first_line,
                    message="a change of this layer downloads all of its packages again",
                    advice="RUN --mount=type=cache,target=/root/.cache/pip, without --no-cache-dir",
                )
