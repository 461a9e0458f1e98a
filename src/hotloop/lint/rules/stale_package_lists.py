"""stale-package-lists: packages are installed by lists of an old layer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild

UPDATE = re.compile(r"\bapt(-get)?\s+(-\S+\s+)*update\b")
INSTALL = re.compile(r"\bapt(-get)?\s+(-\S+\s+)*(install|upgrade|dist-upgrade|build-dep)\b")


@lint_rule("stale-package-lists", "apt-get update and install stand in different layers", reads="dockerfile")
def stale_package_lists(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `apt-get update` in a `RUN` of its own, with `apt-get install` in a later one.

    ## Why it costs
    The layer with the lists is reused for months. When the other one changes, its packages are no longer on the mirror
    and the build fails, or an old version is installed.

    ## How to tell
    A `RUN` updates and does not install, and a later one of the stage installs without updating.

    ## What to do
    `RUN apt-get update && apt-get install -y ... && rm -rf /var/lib/apt/lists/*`, in one instruction.

    ## When it is wrong
    If builds never use a cache.
    """
    for stage in build.stages:
        runs = [one for one in stage.instructions if one.name == "RUN"]
        alone = [one for one in runs if UPDATE.search(one.script) and not INSTALL.search(one.script)]
        for update in alone[:1]:
            later = [one for one in runs if one.first_line > update.first_line and INSTALL.search(one.script)]
            if later and not UPDATE.search(later[0].script):
                yield LintFinding(
                    severity=Severity.LOW,
                    line=update.first_line,
                    message=f"line {later[0].first_line} installs by lists that this layer may have kept for months",
                    advice="update and install in one RUN",
                )
