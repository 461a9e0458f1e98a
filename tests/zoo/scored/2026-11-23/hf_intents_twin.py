"""Intent detection with a small BERT and the Hugging Face Trainer."""
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

VOCAB, MAX_LENGTH, INTENTS = 800, 96, 10


class Utterances(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.rows = []
        for i in range(count):
            label = i % INTENTS
            n = min(MAX_LENGTH, max(12, int(rng.gauss(44, 14))))
            ids = [2] + [rng.randrange(10 + 60 * label, 210 + 60 * label) for _ in range(n - 2)] + [3]
            self.rows.append((ids, label))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "label": label}


def collate(features):
    longest = max(len(f["input_ids"]) for f in features)
    input_ids = torch.zeros(len(features), longest, dtype=torch.long)
    attention_mask = torch.zeros(len(features), longest, dtype=torch.long)
    for row, f in enumerate(features):
        n = len(f["input_ids"])
        input_ids[row, :n] = torch.tensor(f["input_ids"])
        attention_mask[row, :n] = 1
    labels = torch.tensor([f["label"] for f in features])
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def main():
    set_seed(17)
    torch.set_num_threads(2)
    config = BertConfig(vocab_size=VOCAB, hidden_size=160, num_hidden_layers=3, num_attention_heads=4,
                        intermediate_size=640, max_position_embeddings=MAX_LENGTH, num_labels=INTENTS,
                        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            learning_rate=3e-4,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            logging_steps=60,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=17,
        )
        trainer = Trainer(model=model, args=args, train_dataset=Utterances(640, 17), data_collator=collate)
        result = trainer.train()
    print(f"train loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
