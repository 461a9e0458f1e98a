"""Causal language model over packed protein sequences, Hugging Face Trainer."""
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

AMINO = "ACDEFGHIKLMNPQRSTVWY"
SEP = len(AMINO)
BLOCK = 96


def sample_family_text(n_tokens, seed):
    """One long stream of sequences drawn from a random order-1 chain, separated by SEP."""
    g = torch.Generator().manual_seed(seed)
    chains = 512
    trans = torch.softmax(2.0 * torch.randn(len(AMINO), len(AMINO), generator=g), -1)
    state = torch.randint(len(AMINO), (chains,), generator=g)
    cols = []
    for _ in range(n_tokens // chains):
        state = torch.multinomial(trans[state], 1, generator=g).squeeze(1)
        cols.append(state)
    stream = torch.stack(cols, 1)
    breaks = torch.rand(stream.shape, generator=g) < 0.01
    return stream.masked_fill(breaks, SEP).flatten()


class PackedBlocks(Dataset):
    def __init__(self, stream):
        self.blocks = stream[: len(stream) // BLOCK * BLOCK].view(-1, BLOCK)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


def main():
    set_seed(1)
    stream = sample_family_text(262144, seed=1)
    cut = int(0.95 * len(stream))
    config = GPT2Config(
        vocab_size=SEP + 1,
        n_positions=BLOCK,
        n_embd=160,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=SEP,
        eos_token_id=SEP,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            use_cpu=True,
            max_steps=160,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            learning_rate=1e-3,
            weight_decay=0.01,
            warmup_steps=20,
            logging_steps=40,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=1,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=PackedBlocks(stream[:cut]),
            eval_dataset=PackedBlocks(stream[cut:]),
        )
        trainer.train()
        metrics = trainer.evaluate()
        print(f"held-out loss {metrics['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
