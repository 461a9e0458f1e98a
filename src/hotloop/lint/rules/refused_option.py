"""refused-option: sbatch refuses a line of the script, and with it the job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.sbatch_options import LONG, OF_SRUN, RENAMED, SHORT, find_long
from hotloop.lint.batch import Batch, BatchOption

TEMPLATE = re.compile(r"[${}<>%@\\]")
OF_PLUGINS = ("container-", "no-container-")
"""What the plugin for containers that most clusters with GPUs have calls its options."""


@lint_rule("refused-option", "an #SBATCH line holds what sbatch does not know", reads="sbatch")
def refused_option(batch: Batch) -> Iterator[LintFinding]:
    """## What it does
    Compares the `#SBATCH` lines with the options of sbatch: misspelt ones, one dash for two, options of srun, words
    that belong to no option.

    ## Why it costs
    sbatch refuses the job. With one dash it may take it and read something else: `-output=log` writes to `utput=log`.

    ## How to tell
    The name is neither an option of sbatch (22.05, and those added up to 25.05) nor an abbreviation of a single one.
    `high` where a known name is near or srun has the option, `medium` where older versions had it, else `low`: a plugin
    of the cluster may add it.

    ## What to do
    Write the option that is named, or give it to srun.

    ## When it is wrong
    If a plugin of the cluster adds an option whose name is near to one of sbatch's.
    """
    for one in batch.options:
        if TEMPLATE.search(one.written):
            continue  # filled in before the file is submitted
        severity, message, advice = _judge(one)
        if severity is not None:
            yield LintFinding(severity=severity, line=one.line, message=message, advice=advice)


def _judge(one: BatchOption) -> tuple[Severity | None, str, str]:
    word, name = one.written, one.name
    if not word.startswith("-"):
        message = f"sbatch refuses {word!r}, which belongs to no option"
        return Severity.HIGH, message, "quote values with blanks, and begin comments with #"
    if not word.startswith("--"):
        long = word[1:].partition("=")[0]
        fix = f"--{word[1:]}" if len(long) > 2 and long in LONG else ""
        if word[1:2] not in SHORT:
            return Severity.HIGH, f"sbatch has no -{word[1:2]}", fix or f"its letters: {''.join(sorted(SHORT))}"
        if fix:
            return Severity.HIGH, f"sbatch reads {word} as -{word[1]} with the value {word[2:]!r}", fix
        return None, "", ""
    meant = find_long(name)
    if len(meant) == 1 or name.startswith(OF_PLUGINS):
        return None, "", ""
    if meant:
        return Severity.HIGH, f"sbatch refuses --{name}: it may be any of {len(meant)} options", f"--{meant[0]}"
    if name in RENAMED:
        return Severity.MEDIUM, f"sbatch has no --{name} any more", f"--{RENAMED[name]}"
    if name in OF_SRUN:
        return Severity.HIGH, f"sbatch refuses --{name}, an option of srun", f"srun --{name}"
    near = difflib.get_close_matches(name, sorted(LONG), n=1, cutoff=0.8)
    if near:
        return Severity.HIGH, f"sbatch refuses --{name}", f"--{near[0]}"
    return Severity.LOW, f"sbatch refuses --{name} unless a plugin of the cluster adds it", "see sbatch --help there"
