"""Fine-tune style intent classification with the Hugging Face Trainer (weights random, data synthetic)."""
import tempfile
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

PAD, CLS, SEP = 0, 1, 2


@dataclass
class DataArguments:
    num_train: int = field(default=3200, metadata={"help": "Training utterances."})
    num_eval: int = field(default=128)
    max_seq_length: int = field(default=64, metadata={"help": "Longer inputs are truncated."})
    vocab_size: int = field(default=4000)
    num_intents: int = field(default=12)


@dataclass
class ModelArguments:
    dim: int = 128
    n_layers: int = 3
    n_heads: int = 4


class ToyTokenizer:
    """The few methods of a tokenizer that this script needs."""

    model_max_length = 512

    def encode(self, words, max_length):
        return [CLS] + words[: max_length - 2] + [SEP]

    def pad(self, encoded, length):
        ids = torch.full((len(encoded), length), PAD, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, e in enumerate(encoded):
            ids[row, : len(e)] = torch.tensor(e)
            mask[row, : len(e)] = 1
        return {"input_ids": ids, "attention_mask": mask}


class IntentDataset(Dataset):
    def __init__(self, n, data_args, tokenizer, seed):
        rng = np.random.default_rng(seed)
        self.examples = []
        for _ in range(n):
            label = int(rng.integers(data_args.num_intents))
            length = int(np.clip(rng.lognormal(3.4, 0.4), 4, 62))
            words = rng.integers(100, data_args.vocab_size, size=length)
            keyword = rng.random(length) < 0.25
            words[keyword] = 10 + label * 5 + rng.integers(0, 5, size=int(keyword.sum()))
            self.examples.append(
                {"input_ids": tokenizer.encode(words.tolist(), data_args.max_seq_length), "labels": label}
            )

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


@dataclass
class IntentCollator:
    tokenizer: ToyTokenizer
    max_length: int

    def __call__(self, features):
        encoded = [f["input_ids"] for f in features]
        longest = max(len(e) for e in encoded)
        batch = self.tokenizer.pad(encoded, min(self.max_length, -(-longest // 8) * 8))
        batch["labels"] = torch.tensor([f["labels"] for f in features])
        return batch


def compute_metrics(pred):
    return {"accuracy": float((pred.predictions.argmax(-1) == pred.label_ids).mean())}


def main():
    model_args, data_args = HfArgumentParser((ModelArguments, DataArguments)).parse_args_into_dataclasses()
    set_seed(13)
    tokenizer = ToyTokenizer()
    train_set = IntentDataset(data_args.num_train, data_args, tokenizer, seed=1)
    eval_set = IntentDataset(data_args.num_eval, data_args, tokenizer, seed=2)
    config = DistilBertConfig(
        vocab_size=data_args.vocab_size,
        max_position_embeddings=128,
        dim=model_args.dim,
        hidden_dim=4 * model_args.dim,
        n_layers=model_args.n_layers,
        n_heads=model_args.n_heads,
        num_labels=data_args.num_intents,
    )
    model = DistilBertForSequenceClassification(config)

    with tempfile.TemporaryDirectory(prefix="intent_") as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=2,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=5e-4,
            warmup_steps=20,
            lr_scheduler_type="cosine",
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            logging_steps=50,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=train_set,
            eval_dataset=eval_set,
            data_collator=IntentCollator(tokenizer, data_args.max_seq_length),
            compute_metrics=compute_metrics,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
