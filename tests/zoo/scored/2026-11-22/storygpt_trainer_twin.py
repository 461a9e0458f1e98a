"""Causal LM from scratch with the HF Trainer on template stories."""
import os
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CONFIG = {
    "model": {"n_embd": 128, "n_layer": 5, "n_head": 4, "n_positions": 128},
    "data": {"stories": 5000, "block": 128},
    "training": {
        "per_device_train_batch_size": 8,
        "max_steps": 130,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 15,
        "weight_decay": 0.05,
        "logging_steps": 20,
        "save_strategy": "no",
        "optim": "adamw_torch_fused",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 21,
    },
}

NAMES = ["Tom", "Lily", "Max", "Anna", "Ben", "Mia", "Sam", "Zoe"]
PLACES = ["park", "forest", "beach", "garden", "school", "river"]
THINGS = ["ball", "kite", "book", "shell", "stone", "hat", "cake"]
MOODS = ["happy", "sad", "proud", "tired", "scared", "curious"]


def story(rng):
    a, b = rng.sample(NAMES, 2)
    place, thing = rng.choice(PLACES), rng.choice(THINGS)
    return (f"One day {a} went to the {place} and found a {thing}. "
            f"{a} was {rng.choice(MOODS)}. {b} came to the {place} too. "
            f"\"Is that my {thing}?\" said {b}. {a} gave the {thing} to {b}, "
            f"and {b} was {rng.choice(MOODS)}. ")


class CharVocab:
    def __init__(self, text):
        self.itos = sorted(set(text))
        self.stoi = {c: i for i, c in enumerate(self.itos)}

    def encode(self, text):
        return [self.stoi[c] for c in text]

    def decode(self, ids):
        return "".join(self.itos[i] for i in ids)

    def __len__(self):
        return len(self.itos)


class BlockDataset(torch.utils.data.Dataset):
    def __init__(self, ids, block):
        n = len(ids) // block
        self.data = torch.tensor(ids[:n * block]).view(n, block)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return {"input_ids": self.data[i], "labels": self.data[i]}


def stack(features):
    ids = torch.stack([f["input_ids"] for f in features])
    return {"input_ids": ids, "labels": ids}


@torch.no_grad()
def sample(model, vocab, prompt, n):
    model.eval()
    ids = torch.tensor([vocab.encode(prompt)])
    for _ in range(n):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return vocab.decode(ids[0].tolist())


def main():
    training = CONFIG["training"]
    set_seed(training["seed"])
    rng = random.Random(training["seed"])
    text = "".join(story(rng) for _ in range(CONFIG["data"]["stories"]))
    vocab = CharVocab(text)
    dataset = BlockDataset(vocab.encode(text), CONFIG["data"]["block"])
    model_config = GPT2Config(vocab_size=len(vocab), bos_token_id=0, eos_token_id=0,
                              resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                              **CONFIG["model"])
    model = GPT2LMHeadModel(model_config)
    print(f"{model.num_parameters() / 1e6:.2f}M parameters, {len(dataset)} blocks")
    args = TrainingArguments(output_dir="/tmp/storygpt_out", **training)
    trainer = Trainer(model=model, args=args, train_dataset=dataset, data_collator=stack)
    result = trainer.train()
    print(f"final loss {result.training_loss:.4f}")
    model.config.use_cache = False
    print(sample(model, vocab, "One day Lily", 40))


if __name__ == "__main__":
    main()
