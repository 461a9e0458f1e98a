"""unfiltered-context: the whole folder is sent to the builder, .git and data included."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.builds import DockerBuild, copies_everything

LARGE_BYTES = 1 << 30


@lint_rule(
    "unfiltered-context",
    "the whole folder is sent to the builder and copied, .git and data included",
    reads="dockerfile",
)
def unfiltered_context(build: DockerBuild) -> Iterator[LintFinding]:
    """## What it does
    Looks for `COPY . ...` where the context has no `.dockerignore`, and measures what is sent.

    ## Why it costs
    Logs, checkpoints, data and `.git` are sent to the builder and become part of the image; each change of one of them
    makes the layer and all later ones anew.

    ## How to tell
    No `.dockerignore` lies in the nearest folder that has everything which the Dockerfile copies. `medium` from 1 GiB
    of files that are there now, else `low`.

    ## What to do
    Write a `.dockerignore` with `.git`, data, checkpoints, logs and virtual environments, or copy named folders.

    ## When it is wrong
    If the build is started with another folder as its context.
    """
    copies = [one for stage in build.stages for one in stage.instructions if copies_everything(one)]
    if not copies or build.context is None:
        return
    measured = build.context.measure()
    size_bytes, largest = measured or (0, "")
    if build.context.ignores is not None and size_bytes < LARGE_BYTES:
        return
    shown = f": {size_bytes / 2**30:.1f} GiB now, most of it in {largest}" if size_bytes >= LARGE_BYTES else ""
    why = "no .dockerignore filters" if build.context.ignores is None else "the .dockerignore leaves much of"
    yield LintFinding(
        severity=Severity.MEDIUM if size_bytes >= LARGE_BYTES else Severity.LOW,
        line=copies[0].first_line,
        message=f"{why} what is sent and copied{shown}",
        advice="list .git, data, checkpoints and logs in .dockerignore, or copy named folders",
    )
