import sys
import tempfile

from transformers import TrainingArguments, set_seed

from .callbacks import StopOnNan, Throughput
from .config import load_config
from .data import PairDataset, collate
from .model import SentenceEncoder
from .trainer import PairTrainer


def main(path="pairs.json"):
    cfg = load_config(path)
    set_seed(cfg.seed)
    train = PairDataset(cfg.pairs, cfg, cfg.seed)
    held_out = PairDataset(cfg.eval_pairs, cfg, cfg.seed + 1)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=cfg.max_steps, per_device_train_batch_size=cfg.batch_size,
            per_device_eval_batch_size=cfg.batch_size, eval_strategy="steps", eval_steps=cfg.eval_steps,
            learning_rate=cfg.lr, logging_steps=cfg.logging_steps, save_strategy="no", report_to=[],
            optim="adamw_torch_fused", use_cpu=True, seed=cfg.seed, disable_tqdm=True,
            remove_unused_columns=False, dataloader_drop_last=True)
        PairTrainer(model=SentenceEncoder(cfg), args=args, train_dataset=train, eval_dataset=held_out,
                    data_collator=collate, temperature=cfg.temperature,
                    callbacks=[Throughput(), StopOnNan()]).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
