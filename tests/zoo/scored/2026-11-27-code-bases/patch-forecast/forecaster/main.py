import sys
import tempfile

from transformers import TrainingArguments, set_seed

from .config import ExperimentConfig
from .data import Windows, collate, make_series
from .modeling import PatchForecaster
from .monitor import ActivationMonitor
from .trainer import ForecastTrainer, StepClock


def main(path="experiment.json"):
    cfg = ExperimentConfig.load(path)
    set_seed(cfg.seed)
    data = Windows(cfg, make_series(cfg))
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=cfg.max_steps, per_device_train_batch_size=cfg.batch_size,
            learning_rate=cfg.lr, logging_steps=cfg.logging_steps, save_strategy="no", report_to=[],
            optim="adamw_torch_fused", use_cpu=True, seed=cfg.seed, disable_tqdm=True,
            remove_unused_columns=False, dataloader_drop_last=True)
        trainer = ForecastTrainer(model=PatchForecaster(cfg), args=args, train_dataset=data, data_collator=collate,
                                  callbacks=[ActivationMonitor(cfg.monitor), StepClock()])
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
