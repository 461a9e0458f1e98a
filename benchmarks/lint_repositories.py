"""Checkouts of public repositories -> how many findings `hotloop lint` has there, and how many of them are false.

    python benchmarks/lint_repositories.py FOLDER [--clone] [--role ROLE]...

FOLDER holds a checkout ``owner+name`` of each repository of lint_repositories.toml at its commit; ``--clone`` makes
those that are missing. Each finding of severity high or medium was read in its source: results/lint/judged.json holds
the verdict and one line of reason. A finding that nobody has judged is printed. Writes results/lint/counts.json. Roles:
development (seen while the rules were written), blind and second (looked at once, before anything was mended), fresh
(looked at once, after it), drawn (by a rule that was stated before, looked at once with three more rules), example
(fetched to see a rule at work).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import passes
from passes import RESULTS, ROOT

from hotloop import __version__
from hotloop.core.lint import LintReport
from hotloop.judge.lint import LINT_RULES, lint_paths

LIST = ROOT / "benchmarks" / "lint_repositories.toml"
SERIOUS = ("high", "medium")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clone", action="store_true", help="clone what is missing from github.com")
    parser.add_argument("--role", action="append", help="only repositories of this role")
    arguments = parser.parse_args()
    verdicts = {key(row): row["verdict"] for row in json.loads((RESULTS / "lint" / "judged.json").read_text())["rows"]}
    rows, examples, missing = [], {}, []
    began = time.process_time()
    for one in tomllib.loads(LIST.read_text(encoding="utf-8"))["repository"]:
        if arguments.role and one["role"] not in arguments.role:
            continue
        checkout = arguments.folder / one["name"].replace("/", "+")
        if arguments.clone and not checkout.exists():
            clone(one["name"], one["commit"], checkout)
        if not checkout.exists():
            missing.append(one["name"])
            continue
        report, _ = lint_paths([str(checkout)], __version__)
        row, found = count(one, report, checkout, verdicts)
        rows.append(row)
        for rule, place in found.items():
            examples.setdefault(rule, place)
    cpu_s = time.process_time() - began
    summarize(rows, missing)
    content = {
        "schema": "hotloop.lint_counts/1",
        "commit": passes.describe_commit(),
        "date": date.today().isoformat(),
        "machine": passes.describe_machine(),
        "n": len(rows),
        "cpu_s": round(cpu_s, 1),
        "files_count": sum(sum(row["files"].values()) for row in rows),
        "rows": rows,
        "examples": dict(sorted(examples.items())),
        "without_example": sorted(set(LINT_RULES) - set(examples)),
    }
    if not arguments.role:
        (RESULTS / "lint" / "counts.json").write_text(passes.draw_raw(content), encoding="utf-8")
    return 0


def key(row: dict[str, Any]) -> tuple[str, str, int, str]:
    return row["repository"], row["file"], row["line"], row["rule"]


def count(
    one: dict[str, str], report: LintReport, checkout: Path, verdicts: dict[tuple[str, str, int, str], str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The repository's row, and the first place of each rule that found something."""
    by_verdict: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for found in report.findings:
        path = str(Path(found.file).relative_to(checkout))
        examples.setdefault(found.rule, f"{one['name']}@{one['commit'][:12]}:{path}:{found.line}")
        if found.severity.value in SERIOUS:
            verdict = verdicts.get((one["name"], path, found.line, found.rule), "not judged")
            by_verdict[verdict] += 1
            if verdict == "not judged":
                print(f"not judged: {examples[found.rule]} {found.rule}: {found.message}")
    row = {
        "repository": one["name"],
        "role": one["role"],
        "files": dict(report.files),
        "unread_count": len(report.unread),
        "severities": dict(Counter(found.severity.value for found in report.findings)),
        "rules": dict(Counter(found.rule for found in report.findings)),
        "verdicts": dict(by_verdict),
    }
    return row, examples


def summarize(rows: list[dict[str, Any]], missing: list[str]) -> None:
    for role in dict.fromkeys(row["role"] for row in rows):
        own = [row for row in rows if row["role"] == role]
        verdicts: Counter[str] = sum((Counter(row["verdicts"]) for row in own), Counter())
        print(f"{role}: {len(own)} repositories, serious findings: {dict(verdicts) or 'none'}")
    if missing:
        print(f"{len(missing)} have no checkout in the folder: {', '.join(missing[:5])} ...")


def clone(name: str, commit: str, checkout: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", f"https://github.com/{name}", str(checkout)], check=True)
    subprocess.run(["git", "-C", str(checkout), "checkout", "--quiet", commit], check=True)


def draw_passage(judged: Mapping[str, Any]) -> str:
    """What docs/lint.md says of the findings that were judged."""
    lines = ["| looked at | serious findings | false |", "|---|---|---|"]
    for look, words in judged["looks"].items():
        verdicts = [row["verdict"] for row in judged["rows"] if row["look"] == look]
        lines.append(f"| {look}: {words} | {len(verdicts)} | {verdicts.count('false')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
