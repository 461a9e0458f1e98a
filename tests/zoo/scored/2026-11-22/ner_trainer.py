"""Token classification from scratch with the HF Trainer on packed synthetic sentences."""
import numpy as np
import torch
from transformers import (BertConfig, BertForTokenClassification, Trainer, TrainingArguments,
                          set_seed)

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
SEQ = 64
VOCAB = 1200


class NerDataset(torch.utils.data.Dataset):
    """Each entity type draws its words from a slice of the vocabulary that overlaps others."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(400, VOCAB, (n, SEQ))
        self.tags = np.zeros((n, SEQ), dtype=np.int64)
        for row in range(n):
            pos = int(rng.integers(0, 6))
            while pos < SEQ - 4:
                kind = int(rng.integers(0, 3))
                length = int(rng.integers(1, 4))
                self.ids[row, pos:pos + length] = rng.integers(100 * kind, 100 * kind + 180, length)
                self.tags[row, pos] = 1 + 2 * kind
                self.tags[row, pos + 1:pos + length] = 2 + 2 * kind
                pos += length + int(rng.integers(2, 9))
        self.ids = torch.from_numpy(self.ids)
        self.tags = torch.from_numpy(self.tags)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.tags[i]


def collate(items):
    ids, tags = zip(*items)
    return {"input_ids": torch.stack(ids), "labels": torch.stack(tags)}


def metrics(pred):
    guess = pred.predictions.argmax(-1)
    gold = pred.label_ids
    entity = gold > 0
    tp = ((guess == gold) & entity).sum()
    precision = tp / max(1, (guess > 0).sum())
    recall = tp / entity.sum()
    return {"f1": float(2 * precision * recall / max(1e-9, precision + recall))}


def main():
    set_seed(44)
    train, test = NerDataset(2560, 0), NerDataset(128, 1)
    config = BertConfig(vocab_size=VOCAB, hidden_size=144, num_hidden_layers=3,
                        num_attention_heads=4, intermediate_size=576,
                        max_position_embeddings=SEQ, num_labels=len(LABELS),
                        id2label=dict(enumerate(LABELS)),
                        label2id={name: i for i, name in enumerate(LABELS)})
    model = BertForTokenClassification(config)
    args = TrainingArguments(
        output_dir="/tmp/ner_out",
        per_device_train_batch_size=16,
        per_device_eval_batch_size=64,
        num_train_epochs=1,
        learning_rate=7e-4,
        warmup_steps=15,
        optim="adamw_torch_fused",
        logging_steps=20,
        eval_strategy="epoch",
        save_strategy="no",
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=44,
    )
    trainer = Trainer(model=model, args=args, train_dataset=train, eval_dataset=test,
                      data_collator=collate, compute_metrics=metrics)
    out = trainer.train()
    print(f"train loss {out.training_loss:.4f}")


if __name__ == "__main__":
    main()
