"""torch.compile in its forms: hotloop adds no graph break, no recompile, no warning, and still sees the steps."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from .training import Ran, run_command, run_plain, write_script

TAIL = """
import json, warnings
from torch._dynamo.utils import counters
print(json.dumps({
    "graphs": counters["stats"]["unique_graphs"],
    "breaks": sum(counters["graph_break"].values()),
    "frames": dict(counters["frames"]),
    "recompiles": sum(counters["recompiles"].values()) if "recompiles" in counters else 0,
}))
"""

FORMS = {
    "module": """
        compiled = torch.compile(model, backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(30):
            optimizer.zero_grad()
            loss_of(compiled(x), y).backward()
            optimizer.step()
    """,
    "in-place": """
        model.compile(backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(30):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    """,
    "blocks": """
        blocks = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)])
        for i in range(4):
            blocks[i] = torch.compile(blocks[i], backend="aot_eager")
        optimizer = torch.optim.AdamW(blocks.parameters())
        for step in range(30):
            optimizer.zero_grad()
            blocks(x).sum().backward()
            optimizer.step()
    """,
    "function": """
        @torch.compile(backend="aot_eager")
        def loss_function(a, b):
            return loss_of(model(a), b)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(30):
            optimizer.zero_grad()
            loss_function(x, y).backward()
            optimizer.step()
    """,
    "optimizer": """
        optimizer = torch.optim.AdamW(model.parameters())
        step_compiled = torch.compile(optimizer.step, backend="aot_eager")
        for step in range(30):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            step_compiled()
    """,
    "late": """
        optimizer = torch.optim.AdamW(model.parameters())
        compiled = model
        for step in range(30):
            if step == 10:
                compiled = torch.compile(model, backend="aot_eager")
            optimizer.zero_grad()
            loss_of(compiled(x), y).backward()
            optimizer.step()
    """,
}


def _without_times(text: str) -> str:
    """Torch's own log lines begin with date, time and process."""
    return re.sub(r"(?m)^[VIWE]\d{4} [\d:.]+ \d+ ", "", text)


IN_TURN = """
import os, runpy, sys
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        for stream, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{end}", os.O_CREAT | os.O_WRONLY), stream)
        runpy.run_path(f"{name}.py", run_name="__main__")
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, open(f"{name}.err").read()
"""
"""Each script in a fork of a process that has imported torch and compiled nothing."""


def text_of(form: str) -> str:
    return textwrap.dedent(FORMS[form]) + TAIL


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every form prints without hotloop, as FORM.out and FORM.err."""
    folder = tmp_path_factory.mktemp("plain")
    for form in FORMS:
        write_script(folder, text_of(form), f"{form}.py")
    all_forms = write_script(folder, IN_TURN, "all.py", head="import torch, torch._dynamo\n")
    done = run_plain(folder, sys.executable, all_forms.name, *FORMS)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_added_to_compilation(tmp_path: Path, form: str, plain: Path) -> None:
    script = write_script(tmp_path, text_of(form))
    ran: Ran = run_command(tmp_path, sys.executable, script.name, options=("-q",))
    assert ran.exit_code == 0, ran.stderr
    seen, alone = json.loads(ran.stdout), json.loads((plain / f"{form}.out").read_text())
    # Around a hook Dynamo has one frame fewer to look at and to skip.
    assert seen.pop("frames").get("ok", 0) <= alone.pop("frames").get("ok", 0)
    assert seen == alone
    assert _without_times(ran.stderr) == _without_times((plain / f"{form}.err").read_text())
    assert ran.seen["step"]["count"] == 30
    # A compiled function is torch's own object, and left as it is: its time is 'other' unless Inductor's graphs run.
    assert (ran.phase("forward")["share_ratio"] > 0) is (form != "function")
    # So is a compiled step of an optimizer: steps are counted by backwards.
    assert (ran.phase("optimizer")["share_ratio"] > 0) is (form != "optimizer")
    assert abs(sum(p["share_ratio"] for p in ran.seen["breakdown"].values()) - 1) < 1e-9
