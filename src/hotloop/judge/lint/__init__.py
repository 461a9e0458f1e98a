"""Files -> findings, without running them. A rule is one function in rules/; each reads one kind of parsed file."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

from hotloop.core.catalogue import Catalogue
from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding, LintReport, LintRule, Unread
from hotloop.core.settings import Settings

from .files import LINT_FORMATS, NotRead, SourceFile, Surroundings, find_files, find_ignored
from .survey import survey

__all__ = ["LINT_RULES", "lint_file", "lint_paths"]

LINT_RULES: Catalogue[LintRule] = Catalogue(LintRule, "hotloop.judge.lint.rules")
"""Every rule by its id; the modules are imported on first use."""

SURE = list(Confidence)
MANY = 256
"""The least files for several processes: fewer are checked before a second process has started."""
TRIAL = re.compile(
    r"(?i)(^|/)((unit_?|integration_?)?tests?|e2e|bench(mark)?s?|profil(e|ing)|debug(ging)?)(/|$)"
    r"|(^|/)((\w*_)?(bench(mark)?s?|profil(e|er|ing)|debug)|(\w*_)?(bench(mark)?|debug|profile|test)_\w*)\.(py|json|ya?ml)$"
)
"""A path of tests, benchmarks or debugging, whose runs are short: of no finding of these formats is the cost high."""
UNUSED = re.compile(r"(?i)(^|/)((unit_?|integration_?)?tests?|e2e|ci|\.github)/")
"""Folders of tests and CI, whose images and manifests train nothing."""
ORDER = {severity: at for at, severity in enumerate(Severity)}


def lint_paths(
    paths: Sequence[str],
    tool_version: str,
    *,
    save_s: float | None = None,
    rules: Iterable[LintRule] | None = None,
    confidence: Confidence = Confidence.LIKELY,
    processes: int = 1,
    settings: Settings | None = None,
) -> tuple[LintReport, dict[str, bytes]]:
    """The report, and the bytes of each file with findings, as they were read.

    ``save_s`` is how long a checkpoint takes, if the caller knows it; ``confidence`` is the least confidence of a
    reported finding; with more than one of ``processes``, several check many files if all rules are selected.
    ``settings`` exclude files and turn rules off. Raises UsageError for an unknown path.
    """
    settings = settings or Settings()
    entries = [
        one for one in find_files(paths) if not settings.excludes(one.path if isinstance(one, SourceFile) else one.file)
    ]
    files = list({one.path: one for one in entries if isinstance(one, SourceFile)}.values())
    unread = [one for one in entries if isinstance(one, Unread)]
    around = survey(files, save_s)
    judge = partial(lint_file, rules=None if rules is None else tuple(rules), around=around)
    if processes > 1 and len(files) > MANY and rules is None:
        with ProcessPoolExecutor(processes, get_context("spawn"), gc.disable) as pool:
            judged = list(pool.map(judge, files, chunksize=MANY // 8))
    else:
        was_on = gc.isenabled()
        gc.disable()  # trees have no cycles, and searching for them takes as long as the rules
        try:
            judged = [judge(one) for one in files]
        finally:
            if was_on:
                gc.enable()
    counts = dict.fromkeys(LINT_FORMATS, 0)
    findings: list[LintFinding] = []
    read: dict[str, bytes] = {}
    suppressed = 0
    for file, (found, ignored_count, reasons) in zip(files, judged, strict=True):
        unread += reasons
        if any(one.failed for one in reasons):
            continue
        counts[file.kind] += 1
        kept = [finding for finding in found if not settings.turns_off(finding.rule, file.path)]
        suppressed += ignored_count + len(found) - len(kept)
        found = [finding for finding in kept if SURE.index(finding.confidence) <= SURE.index(confidence)]
        findings += found
        read[file.path] = file.data if found else b""
    return (
        LintReport(
            tool_version=tool_version,
            paths=tuple(paths),
            files=counts,
            findings=tuple(findings),
            unread=tuple(unread),
            suppressed_count=suppressed,
            titles={known.id: known.title for known in LINT_FORMATS.values()},
        ),
        {path: data for path, data in read.items() if data},
    )


def lint_file(
    file: SourceFile, rules: Sequence[LintRule] | None, around: Surroundings
) -> tuple[list[LintFinding], int, list[Unread]]:
    """The findings of one file in order of lines, how many its comments turn off, and what was not judged: the file
    if it cannot be read, or a rule that failed on it. Without ``rules``, all."""
    unread: list[Unread] = []
    try:
        parsed = LINT_FORMATS[file.kind].parse(file, around)
    except Exception as error:  # no file may end the run
        reason = str(error) if isinstance(error, NotRead) else f"lint cannot read it ({error!r:.120})"
        return [], 0, [Unread(file=file.path, reason=reason, failed=True)]
    found: list[LintFinding] = []
    for rule in () if parsed is None else LINT_RULES.values() if rules is None else rules:
        try:
            found += rule.judge(parsed) if file.kind in rule.reads.split() else ()
        except Exception as error:
            unread.append(Unread(file=file.path, reason=f"the rule {rule.id} failed on it ({error!r:.120})"))
    is_training = file.kind in ("python", "deepspeed", "accelerate", "lightning")
    is_cheap = (TRIAL if is_training else UNUSED).search(file.path)
    least = Severity.LOW if is_cheap else Severity.HIGH
    found = [replace(one, file=file.path, severity=max(one.severity, least, key=ORDER.__getitem__)) for one in found]
    ignored = find_ignored(file.text)
    kept = [
        one
        for one in dict.fromkeys(found)
        if (off := ignored.get(one.line, frozenset())) is not None and one.rule not in off
    ]
    return sorted(kept, key=lambda one: (one.line, ORDER[one.severity], one.rule)), len(found) - len(kept), unread
