"""unexpanded-variable: a shell variable in an #SBATCH line stays as it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.lint.batch import Batch


@lint_rule("unexpanded-variable", "a shell variable in an #SBATCH line stays as it is written", reads="sbatch")
def unexpanded_variable(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Looks for `$NAME` and `${NAME}` in the values of `#SBATCH` lines.

    ## Why it costs
    sbatch reads these lines itself, without a shell: the job's output goes to a file or folder that is really called
    `$HOME`, or the job fails at once because that folder does not exist.

    ## How to tell
    A value holds a dollar sign and a name.

    ## What to do
    Write the path, use sbatch's own patterns (`%x` name, `%j` id, `%u` user), or give the option on the command line.

    ## When it is wrong
    If another program fills in the variables before the file is submitted.
    """
    for one in batch.options:
        if one.name and re.search(r"\$\{?[A-Za-z_]\w*", one.value):
            yield LintFinding(
                severity=Severity.MEDIUM,
                line=one.line,
                message=f"sbatch does not expand {one.value} in --{one.name}",
                advice="write the value, use %x, %j or %u, or give the option on sbatch's command line",
            )
