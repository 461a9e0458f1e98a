"""Token classification with DistilBERT and the Hugging Face Trainer."""
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import DistilBertConfig, DistilBertForTokenClassification, Trainer, TrainingArguments, set_seed

VOCAB, TAGS, MAX_LEN = 600, 5, 96


class Sentences(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        gen = torch.Generator().manual_seed(seed)
        self.ids = [torch.randint(4, VOCAB, (rng.randint(36, MAX_LEN),), generator=gen) for _ in range(count)]

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i]}


def collate(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask > 0, ids % TAGS, -100)}


def main():
    set_seed(23)
    torch.set_num_threads(2)
    config = DistilBertConfig(vocab_size=VOCAB, dim=160, hidden_dim=640, n_layers=3, n_heads=4,
                              max_position_embeddings=MAX_LEN, num_labels=TAGS, dropout=0.0, attention_dropout=0.0)
    model = DistilBertForTokenClassification(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            num_train_epochs=2,
            per_device_train_batch_size=24,
            learning_rate=4e-4,
            optim="adamw_torch_fused",
            train_sampling_strategy="group_by_length",
            logging_steps=60,
            save_strategy="no",
            eval_strategy="epoch",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=23,
        )
        trainer = Trainer(model=model, args=args, train_dataset=Sentences(1440, 1), eval_dataset=Sentences(72, 2),
                          data_collator=collate)
        trainer.train()
        print("eval loss", round(trainer.evaluate()["eval_loss"], 4))


if __name__ == "__main__":
    main()
