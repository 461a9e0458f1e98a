from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import report_samples as samples

from hotloop.core.errors import InvariantError
from hotloop.show.report import render


def test_json_refuses_numbers_that_are_not_finite() -> None:
    report = samples.input_bound_report()
    with pytest.raises(InvariantError, match="not finite"):
        render("json", replace(report, environment={"x": float("nan")}))


def test_importing_the_package_loads_no_drawing_library() -> None:
    code = "import sys, hotloop.show.report; print(sorted({'rich', 'jinja2', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
