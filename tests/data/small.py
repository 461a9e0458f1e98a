"""A small tokenizer, jobs over small chunks, and a reader of Megatron's files written after their description alone."""

import json
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hotloop.ahead.data.text_chunks import CutRules
from hotloop.ahead.data.text_files import find_files
from hotloop.ahead.data.token_worker import TokenizeJob
from hotloop.ahead.data.tokenize_job import run_job
from hotloop.ahead.data.tokenizer_file import open_tokenizer
from hotloop.core.tokenizing import TokenizeReport

TEXTS = [f"def f{i}(x):\n    return x + {i}  # größer ✓ {'ab ' * (i % 37)}" for i in range(200)]
END = "<|endoftext|>"


def save_tokenizer(folder: Path) -> Path:
    """A byte-level BPE trained on TEXTS; its end token has the id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def write_jsonl(file: Path, texts: Sequence[str] = TEXTS, column: str = "text") -> Path:
    file.write_text("".join(json.dumps({"id": i, column: text}) + "\n" for i, text in enumerate(texts)))
    return file


def make_job(sources: Sequence[Path | str], tokenizer: Path, **more: Any) -> TokenizeJob:
    form = more.pop("form", None)
    limit_bytes = more.pop("limit_bytes", 1 << 20)
    cut = CutRules(
        column=more.pop("column", "text"), whole_files=more.pop("whole_files", False), limit_bytes=limit_bytes
    )
    files, _ = find_files([str(one) for one in sources], form)
    rules: dict[str, Any] = {"end_id": 0, "special_tokens": False, "shard_tokens": 1 << 30, **more}
    return TokenizeJob(files=files, tokenizer=open_tokenizer(str(tokenizer)), cut=cut, **rules)


def tokenize(job: TokenizeJob, folder: Path, processes_count: int = 1, **more: Any) -> TokenizeReport:
    return run_job(job, folder, processes_count=processes_count, **{"batch_documents": 16, **more})


def read_pair(prefix: Path) -> list[list[int]]:
    """The documents of NAME.bin and NAME.idx: every field of the index is checked on the way."""
    index, tokens = prefix.with_suffix(".idx").read_bytes(), prefix.with_suffix(".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences_count, ends_count = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    type_code, size = {8: ("H", 2), 4: ("i", 4)}[code]
    at = 9 + 8 + 1 + 8 + 8
    lengths = struct.unpack_from(f"<{sequences_count}i", index, at)
    pointers = struct.unpack_from(f"<{sequences_count}q", index, at + 4 * sequences_count)
    documents = struct.unpack_from(f"<{ends_count}q", index, at + 12 * sequences_count)
    assert len(index) == at + 12 * sequences_count + 8 * ends_count
    assert documents == tuple(range(sequences_count + 1))
    assert sum(lengths) * size == len(tokens)
    return [
        array(type_code, tokens[begin : begin + length * size]).tolist()
        for begin, length in zip(pointers, lengths, strict=True)
    ]


def read_folder(folder: Path) -> list[list[int]]:
    """The documents of all shards."""
    return [one for file in sorted(folder.glob("*.bin")) for one in read_pair(file.with_suffix(""))]


def expected(tokenizer: Path, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    """What the tokenizer itself answers, with the end token."""
    loaded = Tokenizer.from_file(str(tokenizer))
    return [[*loaded.encode(text, add_special_tokens=False).ids, 0] for text in texts]


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}
