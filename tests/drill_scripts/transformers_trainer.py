"""Transformers' Trainer as its examples use it: a checkpoint every 10 steps, the newest one is resumed."""

import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

torch.set_num_threads(1)


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(0, 30_000, (256, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.02)


config = GPT2Config(
    vocab_size=30_000, n_positions=16, n_embd=64, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
)
arguments = TrainingArguments(
    "out",
    max_steps=40,
    save_steps=10,
    per_device_train_batch_size=4,
    logging_steps=10,
    report_to="none",
    use_cpu=True,
    dataloader_pin_memory=False,
    disable_tqdm=True,
)
torch.manual_seed(0)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), callbacks=[Slow()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.isdir("out") else None)
