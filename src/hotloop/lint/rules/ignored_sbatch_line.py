"""ignored-sbatch-line: an #SBATCH line stands behind the first command and is ignored."""

from __future__ import annotations

from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("ignored-sbatch-line", "an #SBATCH line stands behind the first command and is ignored", reads="sbatch")
def ignored_sbatch_line(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `#SBATCH` lines behind the first command of a batch script.

    ## Why it costs
    sbatch stops reading options at the first line that is neither empty nor a comment. The job runs with the cluster's
    defaults instead: other limits, other devices, no signal before the end.

    ## How to tell
    A command, an assignment or `set -e` stands above the line. Lines inside of heredocs are left out.

    ## What to do
    Move all `#SBATCH` lines up, right below the first line.

    ## When it is wrong
    If the line is kept as a note; write `##SBATCH` then.
    """
    if batch.late and batch.options:
        lines = ", ".join(str(line) for line, _ in batch.late[1:6])
        more = f" (also line {lines})" if lines else ""
        yield LintFinding(
            severity=Severity.MEDIUM,
            line=batch.late[0][0],
            message=f"sbatch does not read this line: line {batch.commands[0].line} above it is a command{more}",
            advice="move #SBATCH lines above the first command",
        )
