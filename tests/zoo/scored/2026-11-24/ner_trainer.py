"""Token classification on clinical-style notes with a small BERT, Hugging Face Trainer."""
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments, set_seed

LABELS = ["O", "B-DRUG", "I-DRUG", "B-DOSE", "I-DOSE", "B-COND", "I-COND"]
VOCAB = 5000
SEQ_LEN = 64


class NotesDataset(Dataset):
    """Chunks of SEQ_LEN word pieces; entity words live in reserved id ranges."""

    def __init__(self, n_chunks, seed):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(700, VOCAB, (n_chunks, SEQ_LEN), generator=g)
        labels = torch.zeros_like(ids)
        for kind in range(3):
            start = torch.randint(1, SEQ_LEN - 4, (n_chunks, 3), generator=g)
            word = torch.randint(100 + 200 * kind, 300 + 200 * kind, (n_chunks, 3), generator=g)
            ids.scatter_(1, start, word)
            ids.scatter_(1, start + 1, word)
            labels.scatter_(1, start + 1, 2 * kind + 2)
            labels.scatter_(1, start, 2 * kind + 1)
        self.ids, self.labels = ids, labels

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def compute_metrics(pred):
    guess = pred.predictions.argmax(-1)
    mask = pred.label_ids != 0
    return {"entity_recall": float((guess[mask] == pred.label_ids[mask]).mean())}


def main():
    set_seed(42)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=SEQ_LEN,
        num_labels=len(LABELS),
        id2label=dict(enumerate(LABELS)),
        label2id={l: i for i, l in enumerate(LABELS)},
    )
    model = BertForTokenClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            use_cpu=True,
            max_steps=150,
            per_device_train_batch_size=12,
            per_device_eval_batch_size=48,
            learning_rate=3e-4,
            lr_scheduler_type="cosine",
            warmup_steps=15,
            gradient_checkpointing=True,
            logging_steps=25,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=42,
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=NotesDataset(2400, seed=0),
            eval_dataset=NotesDataset(192, seed=1),
            compute_metrics=compute_metrics,
        )
        result = trainer.train()
        print({k: round(v, 3) for k, v in result.metrics.items()})
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
