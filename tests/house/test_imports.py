"""What importing hotloop brings along: nothing heavy, so that a command line answers at once."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "rich", "jinja2")


def heavy_modules_after(statement: str, heavy: tuple[str, ...] = HEAVY) -> list[str]:
    """The heavy modules that a fresh interpreter has loaded after ``statement``."""
    code = f"{statement}\nimport json, sys\nprint('\\n' + json.dumps([m for m in {heavy!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "import hotloop",
        "import hotloop; hotloop.HotloopError, hotloop.Report, hotloop.Finding",
        "import hotloop.cli.parser; hotloop.cli.parser.build_parser().format_help()",
        "import hotloop.cli; hotloop.cli.main(['rule', 'input-bound'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(statement: str) -> None:
    assert heavy_modules_after(statement) == []


def test_importing_watch_loads_no_torch() -> None:
    assert "torch" not in heavy_modules_after("from hotloop import watch, Monitor, profile")


def test_a_run_is_reported_without_the_analysis_of_traces() -> None:
    traces = ("hotloop.pipeline.traces", "hotloop.evidence.analyze.timeline.anatomy")
    assert heavy_modules_after("import hotloop.pipeline.runs", traces) == []
