"""TOKENIZER TEXTS.jsonl OUT -> the usual recipe: datasets.map over batches of 1,000 in two processes, save_to_disk."""

import os
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from datasets import load_dataset
from tokenizers import Tokenizer

if __name__ == "__main__":
    tokenizer = Tokenizer.from_file(sys.argv[1])
    end = tokenizer.token_to_id("<|endoftext|>")

    def encode(batch):  # type: ignore[no-untyped-def]
        return {"input_ids": [[*one.ids, end] for one in tokenizer.encode_batch_fast(batch["text"])]}

    out = Path(sys.argv[3])
    loaded = load_dataset("json", data_files=sys.argv[2], split="train", cache_dir=str(out / "cache"))
    done = loaded.map(encode, batched=True, batch_size=1000, num_proc=2, remove_columns=loaded.column_names)
    done.save_to_disk(str(out / "saved"), num_proc=2)
    total = sum(len(chunk.values) for chunk in done.data.column("input_ids").chunks)
    (out / "tokens_count").write_text(str(total))
