"""HotloopMonitor and HotloopProfiler in Lightning's own Trainer."""

from __future__ import annotations

import re
from pathlib import Path

from .frameworks import needs_frameworks, run, run_folders

pytestmark = needs_frameworks

TRAIN = """
import lightning as L
from hotloop.integrations.lightning import HotloopMonitor, HotloopProfiler
class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()
    def training_step(self, batch, index):
        return self.model(**batch)["loss"]
    def validation_step(self, batch, index):
        self.log("val_loss", self.model(**batch)["loss"])
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
def loader(): return torch.utils.data.DataLoader(Rows(), batch_size=16)
def trainer(**options):
    return L.Trainer(accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, logger=False, **options)
"""


def test_fit_is_reported_and_validate_alone_is_not(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
monitor = HotloopMonitor(dirpath="reports", filename="run.md")
first = trainer(max_epochs=1, callbacks=[monitor])
first.validate(Module(), loader(), verbose=False)
assert monitor.report is None and not os.path.exists(".hotloop")
first.fit(Module(), loader(), loader())
first.save_checkpoint("first.ckpt")
count = monitor.report.step.count
second = trainer(max_epochs=3, callbacks=[monitor])
second.fit(Module(), loader(), ckpt_path="first.ckpt")
show(monitor.report, first=count, global_step=second.global_step)
        """,
    )
    assert done.shown["first"] == 20
    assert done.shown["steps"] == done.shown["global_step"] == 60
    assert "input-bound" in done.shown["rules"]
    assert done.stderr.count("[input-bound]") == 2
    assert (tmp_path / "reports" / "run.md").read_text().startswith("## ")


def test_the_profiler_writes_the_report_where_lightning_writes_profiles(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
profiler = HotloopProfiler(dirpath="profiles", filename="hot")
one = trainer(max_epochs=2, profiler=profiler)
one.fit(Module(), loader())
one.validate(Module(), loader(), verbose=False)
show(profiler.report, global_step=one.global_step)
        """,
    )
    assert done.shown["steps"] == done.shown["global_step"] == 40
    (written,) = (tmp_path / "profiles").iterdir()
    assert written.name == "fit-hot.txt"
    assert "[input-bound]" in written.read_text()


def test_ranks_that_lightning_starts_share_a_recording(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
monitor, profiler = HotloopMonitor(), HotloopProfiler()
one = trainer(max_epochs=2, devices=2, strategy="ddp", callbacks=[monitor], profiler=profiler)
one.fit(Module(), loader())
if one.global_rank == 0:
    show(monitor.report, global_step=one.global_step)
else:
    assert monitor.report is None and profiler.report is None
        """,
    )
    (folder,) = run_folders(tmp_path)
    assert len(list((folder / "processes").glob("*.hlr"))) == 2
    assert done.shown["ranks"] == 2
    assert done.shown["steps"] == done.shown["global_step"] == 20
    assert len(re.findall(r"hotloop: \w+ problem: every step waits", done.stderr)) == 1
