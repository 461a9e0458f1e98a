"""examples/train_lm.py under ``hotloop run`` with two gloo ranks -> a diagnosis, an HTML page, and whether it is right.

Exit code 0 when the first fault names the planted cause and the page exists, else 1. An opportunity may stand above
it: where the CPU computes bfloat16 fast, autocast saves more than the fault costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "demo-report.html"
SCRIPT = Path("examples") / "train_lm.py"
EXPECTED_RULE = "input-bound"
"""Every window is cut from an article that __getitem__ tokenises anew, and the loader has no workers."""


def main() -> int:
    binaries = ROOT / ".venv" / "bin"
    PAGE.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "report.json"
        command = ["torchrun", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
        shown = ["hotloop", "run", "--deep", "--html", PAGE.name, "--", *command]
        print(f"$ {' '.join(shown)}\n", flush=True)
        # torchrun sets one thread per rank by itself, but with a warning of six lines.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
        words = [str(binaries / "hotloop"), "run", "--deep", "--html", str(PAGE), "--json", str(record), "--", *command]
        code = subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode
        if code:
            print(f"\ndemo: the training ended with exit code {code}", file=sys.stderr)
            return 1
        report = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    problems = find_problems(report, SCRIPT.name)
    if not PAGE.exists():
        problems.append(f"no report was written to {PAGE}")
    for problem in problems:
        print(f"demo: {problem}", file=sys.stderr)
    if problems:
        return 1
    places = [f"{Path(one['file']).name}:{one['line']} in {one['function']}" for one in first_fault(report)["where"]]
    print(f"\nThe first fault is the right one: {EXPECTED_RULE}, {'; '.join(places)}")
    print(f"The report as a page: {PAGE}")
    return 0


def first_fault(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The report's first finding that is a fault; empty where it has none."""
    return next((one for one in report.get("findings", ()) if one["kind"] == "fault"), {})


def find_problems(report: Mapping[str, Any], script: str) -> list[str]:
    """What is wrong with the demo's report: nothing, when it names the planted cause in ``script`` on both ranks."""
    first = first_fault(report)
    if not first:
        return ["the report has no fault"]
    problems = []
    if first["rule"] != EXPECTED_RULE:
        problems.append(f"the first fault is {first['rule']}, expected {EXPECTED_RULE}: {first['title']}")
    if not any(Path(w["file"]).name == script and w["function"].endswith("__getitem__") for w in first["where"]):
        problems.append(f"the first fault does not name __getitem__ in {script}: {first['where']}")
    if [rank["rank"] for rank in report["ranks"]] != [0, 1]:
        problems.append(f"the report has {len(report['ranks'])} ranks, expected ranks 0 and 1")
    return problems


if __name__ == "__main__":
    sys.exit(main())
