"""Fine-tune a (randomly initialised) DistilBERT-like encoder on banking intents."""
import random
import re
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import (BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer,
                          TrainingArguments, set_seed)

INTENTS = {
    "balance": ["balance", "account", "much", "left", "money"],
    "transfer": ["transfer", "send", "wire", "iban", "friend"],
    "card_lost": ["lost", "stolen", "card", "block", "wallet"],
    "card_new": ["order", "new", "card", "deliver", "arrive"],
    "loan": ["loan", "rate", "mortgage", "borrow", "interest"],
    "fraud": ["charge", "unknown", "dispute", "fraud", "refund"],
    "hours": ["open", "branch", "hours", "near", "weekend"],
    "password": ["password", "reset", "login", "locked", "code"],
}
FILLER = ("please could you tell me i want to know the a my of for with about yesterday today "
          "hello thanks urgent help it is was not and or because since").split()


@dataclass
class DataArguments:
    max_length: int = field(default=96, metadata={"help": "Maximum number of tokens per example."})
    n_train: int = 3200
    n_eval: int = 400


@dataclass
class ModelArguments:
    hidden_size: int = 96
    num_layers: int = 3
    num_heads: int = 4


class WordTokenizer:
    def __init__(self, texts):
        words = sorted({w for t in texts for w in self.split(t)})
        self.vocab = {"[PAD]": 0, "[CLS]": 1, "[UNK]": 2}
        for w in words:
            self.vocab[w] = len(self.vocab)

    @staticmethod
    def split(text):
        return re.findall(r"[a-z_]+", text.lower())

    def encode(self, text, max_length):
        ids = [1] + [self.vocab.get(w, 2) for w in self.split(text)]
        return ids[:max_length]


def sample_utterances(n, rng):
    names = sorted(INTENTS)
    texts, labels = [], []
    for _ in range(n):
        label = rng.randrange(len(names))
        length = min(90, max(5, int(rng.gammavariate(4.0, 10.0))))
        words = [rng.choice(INTENTS[names[label]]) if rng.random() < 0.25 else rng.choice(FILLER)
                 for _ in range(length)]
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


class IntentDataset(torch.utils.data.Dataset):
    def __init__(self, texts, labels, tokenizer, max_length):
        self.items = []
        for text, label in zip(texts, labels):
            self.items.append({"input_ids": tokenizer.encode(text, max_length), "label": label})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Collator:
    def __init__(self, max_length):
        self.max_length = max_length

    def __call__(self, features):
        width = self.max_length
        ids = torch.zeros(len(features), width, dtype=torch.long)
        mask = torch.zeros(len(features), width, dtype=torch.long)
        for row, f in enumerate(features):
            n = len(f["input_ids"])
            ids[row, :n] = torch.tensor(f["input_ids"])
            mask[row, :n] = 1
        return {"input_ids": ids, "attention_mask": mask,
                "labels": torch.tensor([f["label"] for f in features])}


def compute_metrics(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def main():
    data_args, model_args = HfArgumentParser((DataArguments, ModelArguments)).parse_args_into_dataclasses()
    set_seed(13)
    rng = random.Random(13)
    texts, labels = sample_utterances(data_args.n_train + data_args.n_eval, rng)
    tokenizer = WordTokenizer(texts)
    split = data_args.n_train
    train = IntentDataset(texts[:split], labels[:split], tokenizer, data_args.max_length)
    evals = IntentDataset(texts[split:], labels[split:], tokenizer, data_args.max_length)

    config = BertConfig(vocab_size=len(tokenizer.vocab), hidden_size=model_args.hidden_size,
                        num_hidden_layers=model_args.num_layers,
                        num_attention_heads=model_args.num_heads,
                        intermediate_size=4 * model_args.hidden_size,
                        max_position_embeddings=128, num_labels=len(INTENTS))
    model = BertForSequenceClassification(config)
    args = TrainingArguments(output_dir="/tmp/intent_out", per_device_train_batch_size=16,
                             per_device_eval_batch_size=64, num_train_epochs=1,
                             learning_rate=5e-4, warmup_steps=20, logging_steps=25,
                             save_strategy="no", report_to=[], use_cpu=True, seed=13,
                             disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=evals,
                      data_collator=Collator(data_args.max_length), compute_metrics=compute_metrics)
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
