"""Files to documents: the same whatever the cuts and the compression; what is left out is counted with its place."""

import bz2
import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.ahead.data import text_chunks
from hotloop.ahead.data.documents import Rejected, read_documents
from hotloop.ahead.data.text_chunks import Chunk, Cursor, CutRules, plan_chunks
from hotloop.ahead.data.text_files import find_files
from hotloop.ahead.data.tokenize_job import check_first_file
from hotloop.core.errors import UsageError
from hotloop.core.tokenizing import REJECTIONS

from .small import TEXTS, write_jsonl

PACKERS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def make_rules(**more: Any) -> CutRules:
    return CutRules(**{"column": "text", "whole_files": False, "limit_bytes": 1 << 20, **more})


def plan(
    sources: Sequence[Path | str], rules: CutRules, form: str | None = None, start: Cursor | None = None
) -> list[Chunk]:
    files, _ = find_files([str(one) for one in sources], form)
    return list(plan_chunks(files, start or Cursor(), rules))


def read(
    sources: Sequence[Path | str], form: str | None = None, start: Cursor | None = None, **more: Any
) -> tuple[list[str], Rejected]:
    """All documents, and what was left out."""
    rules, rejected = make_rules(**more), Rejected()
    chunks = plan(sources, rules, form, start)
    return [text for chunk in chunks for text in read_documents(chunk, rules, rejected)], rejected


@settings(max_examples=150)
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=40), max_size=12),
    chunk_bytes=st.integers(1, 90),
    newline=st.sampled_from(["\n", "\r\n"]),
    ends=st.booleans(),
    packed=st.booleans(),
)
def test_every_line_is_read_once_wherever_the_file_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    chunk_bytes: int,
    newline: str,
    ends: bool,
    packed: bool,
) -> None:
    content = (newline.join(lines) + (newline if ends else "")).encode()
    file = tmp_path_factory.getbasetemp() / ("cut.txt.gz" if packed else "cut.txt")
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_chunks, "CHUNK_BYTES", chunk_bytes)
        texts, rejected = read([file], form="text")
    wanted = [line.removeprefix("\ufeff") if at == 0 else line for at, line in enumerate(lines)]
    assert texts == [line for line in wanted if line and not line.isspace()]
    assert set(rejected.counts) <= {"empty"}


def test_every_chunk_can_be_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 700)
    plain, packed = write_jsonl(tmp_path / "a.jsonl"), tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), table)
    small = [write_jsonl(tmp_path / f"small{i}.jsonl", TEXTS[i : i + 2]) for i in range(5)]
    sources = [plain, packed, *small, table, plain]
    whole, _ = read(sources)
    assert len(whole) == 4 * len(TEXTS) + 10
    rules = make_rules()
    chunks = plan(sources, rules)
    assert len(chunks) > 50
    done = 0
    for chunk in chunks:
        done += len(list(read_documents(chunk, rules, Rejected())))
        assert read(sources, start=chunk.following)[0] == whole[done:]


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_file_holds_the_same_documents(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 1000)
    plain = write_jsonl(tmp_path / "a.jsonl").read_bytes()
    (tmp_path / f"b.jsonl{suffix}").write_bytes(PACKERS[suffix](plain[:5000]) + PACKERS[suffix](plain[5000:]))
    assert read([tmp_path / f"b.jsonl{suffix}"])[0] == TEXTS


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_compressed_file_that_was_cut_is_refused(suffix: str, tmp_path: Path) -> None:
    whole = PACKERS[suffix](write_jsonl(tmp_path / "a.jsonl").read_bytes())
    (tmp_path / f"b.jsonl{suffix}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=rf"b\.jsonl{suffix} is damaged: .*; repair it or leave it out"):
        read([tmp_path / f"b.jsonl{suffix}"])


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "dictionary", "string_view"])
def test_tables_hold_the_same_documents(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 1000)
    types = {"dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string())}
    column = pyarrow.array(TEXTS).cast(types[kind] if kind in types else getattr(pyarrow, kind)())
    table = pyarrow.table({"id": range(len(TEXTS)), "body": column})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=70)
    with pyarrow.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=64)
    assert read([tmp_path / "a.parquet"], column="body")[0] == TEXTS
    assert read([tmp_path / "b.arrow"], column="body")[0] == TEXTS
    assert len(plan([tmp_path / "b.arrow"], make_rules(column="body"))) > 4


def save_dataset(folder: Path, texts: Sequence[str]) -> Path:
    """As datasets.save_to_disk lays a folder out, in two files."""
    folder.mkdir()
    names = []
    for number, part in enumerate((texts[:120], texts[120:])):
        names.append({"filename": f"data-{number:05d}-of-00002.arrow"})
        table = pyarrow.table({"text": list(part)})
        with pyarrow.ipc.new_stream(folder / names[-1]["filename"], table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_a_saved_dataset_is_read_and_its_splits_are_named(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "saved", TEXTS)
    assert read([folder])[0] == TEXTS
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UsageError, match=r"several splits; give those you want: .*splits/train, .*splits/test"):
        read([splits])


def test_what_is_left_out_is_counted_with_the_place_of_the_first(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good", "score": NaN}',
        b"{broken",
        b"[1, 2]",
        b'{"text": "\xff\xfe"}',
        b'{"text": "\\ud800"}',
        b'{"other": "x"}',
        b'{"text": null}',
        b'{"text": 5}',
        b'{"text": "' + b"x" * 300 + b'"}',
        b'{"text": "  "}',
        b"",
        b'{"text": "also good"}',
        b"[" * 100_000,
    ]
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n".join(lines))
    texts, rejected = read([file], limit_bytes=200)
    assert texts == ["good", "also good"]
    assert rejected.counts == {"corrupt": 2, "bad-utf8": 2, "no-column": 1, "not-text": 2, "too-long": 2, "empty": 2}
    assert set(rejected.counts) <= set(REJECTIONS)
    assert rejected.firsts["corrupt"] == f"{file}, byte {len(lines[0]) + 1}"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
    texts, packed = read([tmp_path / "a.jsonl.gz"], limit_bytes=200)
    assert (texts, packed.counts) == (["good", "also good"], rejected.counts)
    assert packed.firsts["corrupt"] == f"{file}.gz, byte {len(lines[0]) + 1}"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_without_end_is_left_out_and_never_held(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 1000)
    content = b"first\n" + b"x" * 50_000 + b"\nlast\n" + b"y" * 7000
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(gzip.compress(content) if suffix else content)
    texts, rejected = read([file], limit_bytes=5000)
    assert texts == ["first", "last"]
    assert (rejected.counts, rejected.firsts) == ({"too-long": 2}, {"too-long": f"{file}, byte 6"})


def test_a_missing_column_is_refused_before_the_work(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", column="body")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS, "id": range(len(TEXTS))}), tmp_path / "c.parquet")
    for name, known in (("a.jsonl", "id, body"), ("b.jsonl.gz", "id, body"), ("c.parquet", "body, id")):
        files, _ = find_files([str(tmp_path / name)])
        with pytest.raises(UsageError, match=rf"{name} has no column 'text'; give --column \({known}\)"):
            check_first_file(files, make_rules())
        check_first_file(files, make_rules(column="body"))
    with pytest.raises(UsageError, match="column 'id' holds int64, not text"):
        read([tmp_path / "c.parquet"], column="id")
