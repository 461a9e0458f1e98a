from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import report_samples as samples

from hotloop.core.errors import InvariantError
from hotloop.core.report import report_to_json
from hotloop.show.report import RENDERERS, render


def test_every_renderer_draws_every_sample() -> None:
    reports = (samples.input_bound_report(), samples.healthy_report(), samples.no_training_report())
    for renderer in RENDERERS.values():
        for report in reports:
            if not renderer.kinds:
                assert report.verdict.partition(" ")[0] in render(renderer.id, report)


def test_json_is_the_contract() -> None:
    report = samples.straggler_report()
    assert json.loads(render("json", report)) == report_to_json(report)


def test_json_refuses_numbers_that_are_not_finite() -> None:
    report = samples.input_bound_report()
    with pytest.raises(InvariantError, match="not finite"):
        render("json", replace(report, environment={"x": float("nan")}))


def test_importing_the_package_loads_no_drawing_library() -> None:
    code = "import sys, hotloop.show.report; print(sorted({'rich', 'jinja2', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
