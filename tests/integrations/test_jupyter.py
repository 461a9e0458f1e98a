"""%%hotloop in the real IPython: a shell in a process of its own, and a kernel that nbclient drives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

LOAD = "%load_ext hotloop.integrations.jupyter"
CELL = """%%hotloop --name cell
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(8)
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4):
    model(batch).sum().backward()
    optimizer.step()
"""
SHELL = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell({LOAD!r}).raise_error()
shell.run_cell({CELL!r}).raise_error()
report = shell.user_ns["hotloop_report"]
print("steps", report.step.count, [one.rule for one in report.findings if one.severity.value == "high"])
wrong = shell.run_cell("%%hotloop --text\\n1 / 0")
print("error", type(wrong.error_in_exec).__name__)
shell.run_cell("%%hotloop --heigth 3\\npass")
"""


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOTLOOP_")}


def test_in_a_shell_the_report_is_text_and_a_name(tmp_path: Path) -> None:
    environment = {**clean_environment(), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, "-c", SHELL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "steps 30 ['input-bound']" in done.stdout
    assert "[input-bound]" in done.stdout  # the report that was drawn
    assert "division by zero" in done.stdout
    assert "error ZeroDivisionError" in done.stdout
    assert "unrecognized arguments: --heigth" in done.stdout + done.stderr
    assert [path.name for path in (tmp_path / ".hotloop").iterdir() if path.is_dir()] == ["cell"]


def test_in_a_kernel_the_page_is_inline_and_an_error_fails_the_cell(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(text) for text in (LOAD, CELL, "hotloop_report.step.count", "%%hotloop\n1 / 0")
        ]
    )
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        client.execute(env=clean_environment())
    (page,) = [one for one in notebook.cells[1].outputs if one.output_type == "display_data"]
    assert page.data["text/html"].startswith('<div><iframe srcdoc="&lt;!doctype html&gt;')
    assert "input-bound" in page.data["text/html"]
    assert "[input-bound]" in page.data["text/plain"]
    assert notebook.cells[2].outputs[0].data["text/plain"] == "30"
