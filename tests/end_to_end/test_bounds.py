"""`hotloop run --bounds` on a script whose loader is slow: what is reported, and what a trial without loading does."""

import json
import subprocess
import sys
from pathlib import Path

from hotloop.change.tune.trials import TrialLimits, run_trial
from hotloop.core.measurement import Measurement
from hotloop.core.strategy import Strategy
from hotloop.pipeline.bounding import make_bench, prepare_bounds

from .training import HOTLOOP, clean_environment, run_script, write_script

SCRIPT = """
import time
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.004)
        return x[index % 16], y[index % 16]
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(2):
    for batch, target in torch.utils.data.DataLoader(Slow(), batch_size=2):
        optimizer.zero_grad(); loss_of(model(batch), target).backward(); optimizer.step()
        with open("steps.log", "a") as file:
            file.write("step\\n")
"""


def test_findings_get_a_bound_or_the_reason_why_not(tmp_path: Path) -> None:
    """A second is not enough for a pair, so only the run itself takes time."""
    ran = run_script(tmp_path, SCRIPT, "--bounds", "0.02", "--name", "r")
    (bound,) = [finding["bound"] for finding in ran.seen["findings"] if finding["rule"] == "input-bound"]
    assert (bound["ablation"], bound["saving"], bound["pairs"]) == ("replay-batches", None, 0)
    assert "at least 4 pairs" in bound["reason"]
    assert (tmp_path / "steps.log").read_text().count("step") == 80
    again = subprocess.run(
        [*HOTLOOP, "report", "r", "--exit-zero", "--json", "-"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        check=True,
    )
    assert bound in [finding.get("bound") for finding in json.loads(again.stdout)["findings"]]


def test_a_trial_without_loading_trains_as_many_steps(tmp_path: Path) -> None:
    script = write_script(tmp_path, SCRIPT)
    command, folder = (sys.executable, script.name), tmp_path / ".hotloop/r"
    run = prepare_bounds(command, clean_environment(), tmp_path, folder, Strategy())
    limits = TrialLimits(steps=None, seconds=60.0, timeout_s=400.0, start_s=300.0, stall_s=300.0)
    measured: dict[str, Measurement] = {}
    for ablation in ("", "replay-batches"):
        ran = run_trial(make_bench(run, ablation), Strategy(), limits, f"trial-{ablation}")
        assert ran.measured is not None, ran.reason
        measured[ablation] = ran.measured
    record = next(one for one in measured["replay-batches"].applied)
    assert (record.technique, record.is_applied, record.values["count"]) == ("replay-batches", True, 8)
    assert {one.whole_count for one in measured.values()} == {80}
    assert not (tmp_path / "steps.log").exists()
