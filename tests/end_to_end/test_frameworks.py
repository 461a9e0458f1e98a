"""Accelerate, Hugging Face's Trainer, Lightning and Fabric drive the loop: steps and micro-batches are still right.

Their environment is `.venv-frameworks` (`make frameworks` creates it); without it these tests skip.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .training import HEAD, Ran, run_command, write_script

PYTHON = Path(__file__).parents[2] / ".venv-frameworks" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-frameworks (make frameworks creates it)")

DATA = (
    HEAD
    + """
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(640, 32), torch.randint(0, 8, (640,)))
"""
)


def run_with_frameworks(folder: Path, text: str) -> Ran:
    script = write_script(folder, text, head=DATA)
    return run_command(folder, str(PYTHON), script.name, ACCELERATE_USE_CPU="1", HF_HUB_OFFLINE="1")


def check(ran: Ran, steps: int, batches_per_step: float) -> None:
    assert ran.exit_code == 0, ran.stderr
    report = ran.seen
    assert report["step"]["count"] == steps
    assert report["step"]["units_per_step"] == pytest.approx(16 * batches_per_step, rel=0.05)
    for name in ("forward", "backward", "optimizer"):
        assert ran.phase(name)["share_ratio"] > 0
    assert abs(sum(p["share_ratio"] for p in report["breakdown"].values()) - 1) < 1e-9


def test_accelerate_launch_with_accumulation(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))
        for epoch in range(2):
            for a, b in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model(a), b))
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        head=DATA,
    )
    launch = (str(PYTHON.with_name("accelerate")), "launch", "--cpu", "--num_processes", "1", "--mixed_precision", "no")
    check(run_command(tmp_path, *launch, script.name), 40, 2)


def test_hugging_face_trainer(tmp_path: Path) -> None:
    ran = run_with_frameworks(
        tmp_path,
        """
        from transformers import Trainer, TrainingArguments
        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = model
            def forward(self, features, labels):
                logits = self.inner(features)
                return {"loss": loss_of(logits, labels), "logits": logits}
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 640
            def __getitem__(self, i): return {"features": data[i][0], "labels": data[i][1]}
        arguments = TrainingArguments("out", per_device_train_batch_size=16, gradient_accumulation_steps=2,
            num_train_epochs=2, report_to=[], use_cpu=True, save_strategy="no", logging_steps=50, disable_tqdm=True)
        Trainer(model=Wrapped(), args=arguments, train_dataset=Rows()).train()
        """,
    )
    check(ran, 40, 2)


def test_lightning(tmp_path: Path) -> None:
    ran = run_with_frameworks(
        tmp_path,
        """
        import lightning as L
        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.inner = model
            def training_step(self, batch, index):
                return loss_of(self.inner(batch[0]), batch[1])
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Module(), DataLoader(data, batch_size=16))
        """,
    )
    check(ran, 80, 1)


def test_what_lightning_logs_while_it_validates_is_validation(tmp_path: Path) -> None:
    ran = run_with_frameworks(
        tmp_path,
        """
        import lightning as L
        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.inner = model
            def training_step(self, batch, index):
                return loss_of(self.inner(batch[0]), batch[1])
            def validation_step(self, batch, index):
                scores = self.inner(batch[0])
                for name in "abcdefgh":
                    self.log(f"val_{name}", loss_of(scores, batch[1]))
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())
        trainer = L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
            val_check_interval=4, enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(Module(), DataLoader(data, batch_size=16), DataLoader(data, batch_size=64))
        """,
    )
    assert ran.exit_code == 0, ran.stderr
    validation = next(one for one in ran.seen["findings"] if one["rule"] == "frequent-validation")
    assert not [one for one in ran.seen["findings"] if one["rule"] == "logging-overhead"]
    assert ran.seen["combined_saving"]["mid_ratio"] <= validation["cost_ratio"] + 0.02


def test_fabric(tmp_path: Path) -> None:
    ran = run_with_frameworks(
        tmp_path,
        """
        from lightning.fabric import Fabric
        fabric = Fabric(accelerator="cpu", devices=1)
        model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
        for a, b in fabric.setup_dataloaders(DataLoader(data, batch_size=16)):
            optimizer.zero_grad()
            fabric.backward(loss_of(model(a), b))
            optimizer.step()
        """,
    )
    check(ran, 40, 1)
