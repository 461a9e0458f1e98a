"""source-before-install: every edit of the source installs all packages again."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild, copies_everything, installs


@lint_rule("source-before-install", "every edit of the source installs all packages again", reads="dockerfile")
def source_before_install(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `COPY . ...` in front of an instruction that installs packages.

    ## Why it costs
    A layer is reused only if everything before it is unchanged. Any edit of any file of the context runs the
    installation again: minutes and gigabytes for torch.

    ## How to tell
    In one stage the whole context is copied before a `pip install`, `conda env create`, `apt-get install` or the like.
    How long it takes is measured by a build, so this is never above `low`.

    ## What to do
    Copy only the list of packages (`COPY requirements.txt .`), install, and copy the source after that.

    ## When it is wrong
    If the installation needs the whole source, as `pip install .` does: then install its dependencies first.
    """
    for stage in build.stages:
        copy = next((one for one in stage.instructions if copies_everything(one)), None)
        late = [one for one in stage.instructions if copy and one.first_line > copy.first_line and installs(one)]
        if copy is not None and late:
            yield LintFinding(
                severity=Severity.LOW,
                line=copy.first_line,
                message=f"any edit of the source repeats the installation in line {late[0].first_line}",
                advice="copy the list of packages alone, install, then copy the source",
            )
