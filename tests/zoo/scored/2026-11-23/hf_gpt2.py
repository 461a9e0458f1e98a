"""Causal LM pretraining of a small GPT-2 with the Hugging Face Trainer."""
import os
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB, SEQ = 512, 96


class Chunks(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        motif = torch.randint(0, VOCAB, (4096,), generator=g)
        start = torch.randint(0, 4096 - SEQ, (count, 1), generator=g)
        ids = motif[start + torch.arange(SEQ)]
        flip = torch.rand(ids.shape, generator=g) < 0.05
        self.ids = torch.where(flip, torch.randint(0, VOCAB, ids.shape, generator=g), ids)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    set_seed(42)
    torch.set_num_threads(2)
    config = GPT2Config(vocab_size=VOCAB, n_positions=SEQ, n_embd=160, n_layer=4, n_head=4,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
                        bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=110,
            per_device_train_batch_size=12,
            learning_rate=5e-4,
            warmup_steps=10,
            lr_scheduler_type="cosine",
            gradient_checkpointing=True,
            optim="adamw_torch_fused",
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=42,
        )
        trainer = Trainer(model=model, args=args, train_dataset=Chunks(2000, 42))
        result = trainer.train()
    print(f"train loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
