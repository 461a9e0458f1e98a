"""hotloop tokenize: options, progress, report and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hotloop.cli import main


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a tokenizer and texts."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "texts.jsonl").write_text('{"text": "a b"}\n{broken\n{"text": "b zebra"}\n\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_report_says_what_was_written_and_what_was_left_out(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "tokenize",
        "texts.jsonl",
        "--tokenizer",
        "tokenizer.json",
        "-o",
        "out",
        "--append-eos",
        "--processes",
        "1",
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("6 tokens of 2 documents in out\n")
    assert "files: 1 pair of .bin and .idx, uint16, 12 B\n" in said
    assert "left out: 1 document not a JSON object (first: texts.jsonl, byte 16)\n" in said
    assert "left out: 1 document empty (first: texts.jsonl, byte 44)\n" in said
    assert "unknown: 1 token (16.67%) for text outside the vocabulary\n" in said
    assert "6 tokens in " in said
    assert "too few tokens for a sequence of 1024 tokens" in said
    assert "TokenDataset" not in said
    assert (place / "out" / "tokens-00000.bin").read_bytes() == bytes([2, 0, 3, 0, 1, 0, 3, 0, 0, 0, 1, 0])
    assert main([*words, "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["schema"], content["was_complete"], content["tokens_count"]) == ("hotloop.tokenize/1", True, 6)
    assert main(["report", str(_write(place / "kept.json", content))]) == 0
    assert "this run: nothing to do, the folder was complete" in capsys.readouterr().out


def _write(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strict"], "texts.jsonl, byte 16: not a JSON object; fix it, or omit --strict to skip and count"),
        (["--column", "body"], "texts.jsonl has no column 'body'; give --column (text)"),
        (["--processes", "0"], "--processes 0: give a number of at least 1"),
        (["--batch-size", "0"], "--batch-size 0: give a number of at least 1"),
        (["--document-limit", "5000"], "--document-limit 5000: give at most 1024 (MiB)"),
        (["--eos", "<eot>"], "--eos <eot>: the tokenizer has no such token"),
        (["missing.jsonl"], "missing.jsonl: no such file or folder"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_2(
    options: list[str], words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenize", "texts.jsonl", *options, "--tokenizer", "tokenizer.json", "-o", "out"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    if "--strict" not in options:
        assert not (place / "out").exists()
