"""torch.compile in its forms: hotloop adds no graph break, no recompile, no warning, and still sees the steps."""

from __future__ import annotations

import json
import re
import sys
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


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_added_to_compilation(tmp_path: Path, form: str) -> None:
    import textwrap

    script = write_script(tmp_path, textwrap.dedent(FORMS[form]) + TAIL)
    plain = run_plain(tmp_path, sys.executable, script.name)
    assert plain.returncode == 0, plain.stderr
    ran: Ran = run_command(tmp_path, sys.executable, script.name, options=("-q",))
    assert json.loads(ran.stdout) == json.loads(plain.stdout)
    assert _without_times(ran.stderr) == _without_times(plain.stderr)
    assert ran.seen["step"]["count"] == 30
    assert ran.phase("forward")["share_ratio"] > 0.01
    assert ran.phase("optimizer")["share_ratio"] > 0.01
    assert abs(sum(p["share_ratio"] for p in ran.seen["breakdown"].values()) - 1) < 1e-9
