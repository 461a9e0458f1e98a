"""HotloopCallback in transformers' own Trainer."""

from __future__ import annotations

import json
from pathlib import Path

from .frameworks import needs_frameworks, run

pytestmark = needs_frameworks

TRAIN = """
from transformers import Trainer, TrainingArguments, logging
logging.set_verbosity_info()
from hotloop.integrations.transformers import HotloopCallback
arguments = dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, report_to=[], use_cpu=True,
    logging_steps=5, save_steps=10, disable_tqdm=True)
"""


def test_a_training_is_reported_in_the_log_a_file_and_the_attribute(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
callback = HotloopCallback(report_to=["log", "reports/run.json"])
trainer = Trainer(model=Model(), args=TrainingArguments("out", num_train_epochs=2, **arguments), train_dataset=Rows(),
    callbacks=[callback])
trainer.train()
show(callback.report, global_step=trainer.state.global_step)
        """,
    )
    assert done.shown["steps"] == done.shown["global_step"] == 40
    assert "input-bound" in done.shown["rules"]
    assert "[input-bound]" in done.stderr
    written = json.loads((tmp_path / "reports" / "run.json").read_text())
    assert [one["rule"] for one in written["findings"]] == done.shown["rules"]


def test_a_resumed_training_counts_its_own_steps(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        TRAIN
        + """
Trainer(model=Model(), args=TrainingArguments("out", max_steps=20, **arguments), train_dataset=Rows()).train()
callback = HotloopCallback("none")
trainer = Trainer(model=Model(), args=TrainingArguments("out", max_steps=50, **arguments), train_dataset=Rows())
trainer.add_callback(callback)
trainer.train(resume_from_checkpoint=True)
show(callback.report, global_step=trainer.state.global_step)
        """,
    )
    assert done.shown["global_step"] == 50
    assert done.shown["steps"] == 30
    assert "hotloop: " not in done.stderr.replace("hotloop: recorded", "")


def test_what_fails_is_a_warning_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where a folder would be")
    done = run(
        tmp_path,
        TRAIN
        + """
callback = HotloopCallback("reports/run.json")
trainer = Trainer(model=Model(), args=TrainingArguments("out", max_steps=12, **arguments), train_dataset=Rows(),
    callbacks=[callback])
trainer.train()
show(callback.report, global_step=trainer.state.global_step)
        """,
    )
    assert done.shown["steps"] == done.shown["global_step"] == 12
    assert "hotloop cannot report" in done.stderr
