"""HotloopTracker and HotloopProfileKwargs in Accelerate's own Accelerator."""

from __future__ import annotations

from pathlib import Path

from .frameworks import needs_frameworks, run, run_folders

pytestmark = needs_frameworks

TRAIN = """
import logging
logging.basicConfig(level=logging.INFO)  # Accelerate leaves handlers and levels to its users
from accelerate import Accelerator
from accelerate.utils import ProfileKwargs
from hotloop.integrations.accelerate import HotloopProfileKwargs, HotloopTracker
def prepare(accelerator):
    model = Model()
    return accelerator.prepare(model, torch.optim.AdamW(model.parameters()),
        torch.utils.data.DataLoader(Rows(), batch_size=8))
def steps(accelerator, model, optimizer, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item()
"""


def test_the_tracker_reports_at_the_end_of_training(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
tracker = HotloopTracker(report_to=["log", "run.html"])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker)
accelerator.init_trackers("project", config={"lr": 0.1})
for loss in steps(accelerator, *prepare(accelerator)):
    accelerator.log({"loss": loss, "note": "text"})
accelerator.end_training()
show(tracker.report, folder=tracker.tracker.folder)
        """,
    )
    assert done.shown["steps"] == 20
    assert "input-bound" in done.shown["rules"]
    assert Path(done.shown["folder"]) == run_folders(tmp_path)[0]
    assert "[input-bound]" in done.stderr
    assert "<html" in (tmp_path / "run.html").read_text()


def test_two_ranks_share_a_recording_and_one_report(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
tracker = HotloopTracker()
accelerator = Accelerator(cpu=True, log_with=tracker)
accelerator.init_trackers("project")
handler = HotloopProfileKwargs(schedule_option={"wait": 8, "warmup": 1, "active": 4}, output_trace_dir="traces")
prepared = prepare(accelerator)
with accelerator.profile(handler) as profiler:
    for loss in steps(accelerator, *prepared):
        profiler.step()
is_main = accelerator.is_main_process
accelerator.end_training()
assert (tracker.report is None) == (not is_main)
if is_main:
    show(tracker.report, traced=[rank.rank for rank in handler.report.ranks])
        """,
        *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
    )
    assert len(run_folders(tmp_path)) == 1
    assert done.shown["ranks"] == 2
    assert done.shown["traced"] == [0, 1]
    assert done.shown["steps"] == 20
    assert done.stderr.count("hotloop: next: ") == 2  # of the recording and of the traces


def test_profile_kwargs_write_every_cycle_and_judge_the_traces(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
ready = []
handler = HotloopProfileKwargs(activities=["cpu"], record_shapes=True, output_trace_dir="traces",
    schedule_option={"wait": 2, "warmup": 1, "active": 4, "repeat": 2},
    on_trace_ready=lambda p: ready.append(p.step_num))
accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
assert accelerator.profile_handler is handler and isinstance(handler, HotloopProfileKwargs)
assert handler.to_kwargs()["record_shapes"] is True
prepared = prepare(accelerator)
with accelerator.profile() as profiler:
    for loss in steps(accelerator, *prepared):
        profiler.step()
assert "aten::linear" in profiler.key_averages().table()
with accelerator.profile(HotloopProfileKwargs()) as plain:
    torch.ones(4).sum()
assert "aten::sum" in plain.key_averages().table() and plain.trace_files == ()
print(json.dumps({"ready": ready, "files": sorted(os.listdir("traces")), "steps": handler.report.step.count,
    "rules": [one.rule for one in handler.report.findings]}))
        """,
    )
    assert done.shown["ready"] == [7, 14]
    assert len([name for name in done.shown["files"] if name.endswith(".pt.trace.json")]) == 2
    assert "profile_0.json" in done.shown["files"]
    assert done.shown["steps"] == 4
    assert "the profiler waits 2, warms up 1, records 4 steps, 2 times" in done.stderr
