"""Texts to tokens: what was encoded is what is read, for any number of processes, and after a kill too."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from hotloop.ahead.data import text_chunks, tokenize_job
from hotloop.core.errors import HotloopError, UsageError

from .small import TEXTS, expected, file_bytes, make_job, read_folder, save_tokenizer, tokenize, write_jsonl


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(autouse=True)
def _cut_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_chunks, "CHUNK_BYTES", 1000)


def test_documents_are_what_the_tokenizer_answers(tokenizer: Path, tmp_path: Path) -> None:
    report = tokenize(make_job([write_jsonl(tmp_path / "a.jsonl")], tokenizer), tmp_path / "out", 2)
    wanted = expected(tokenizer)
    assert read_folder(tmp_path / "out") == wanted
    assert (report.documents_count, report.tokens_count) == (len(wanted), sum(map(len, wanted)))
    assert (report.token_type, report.rejections, report.was_resumed) == ("uint16", (), False)


def test_the_number_of_processes_and_the_batch_size_change_no_byte(tokenizer: Path, tmp_path: Path) -> None:
    job = make_job([write_jsonl(tmp_path / "a.jsonl")], tokenizer, shard_tokens=900)
    folders = []
    for processes_count, batch_documents in ((1, 1), (2, 7), (3, 1000)):
        folder = tmp_path / f"out{processes_count}"
        tokenize(job, folder, processes_count, batch_documents=batch_documents)
        folders.append(file_bytes(folder))
    assert folders[0] == folders[1] == folders[2]
    assert sum(name.endswith(".bin") for name in folders[0]) > 3


def test_ids_beyond_65535_are_written_as_int32(tmp_path: Path) -> None:
    words = {f"w{i}": i for i in range(70_000)}
    large = Tokenizer(models.WordLevel(words, unk_token="w0"))
    large.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    large.save(str(tmp_path / "tokenizer.json"))
    write_jsonl(tmp_path / "a.jsonl", ["w1 w65535 w65536 w69999", "w2 nowhere"])
    job = make_job([tmp_path / "a.jsonl"], tmp_path / "tokenizer.json", end_id=None)
    report = tokenize(job, tmp_path / "out")
    assert (report.token_type, report.vocabulary_count, report.unknown_count) == ("int32", 70_000, 1)
    assert read_folder(tmp_path / "out") == [[1, 65535, 65536, 69999], [2, 0]]


def test_truncation_and_padding_of_the_tokenizer_file_are_switched_off(tokenizer: Path, tmp_path: Path) -> None:
    short = Tokenizer.from_file(str(tokenizer))
    short.enable_truncation(4)
    short.enable_padding(length=50)
    short.save(str(tmp_path / "short.json"))
    job = make_job([write_jsonl(tmp_path / "a.jsonl")], tmp_path / "short.json")
    tokenize(job, tmp_path / "out")
    assert read_folder(tmp_path / "out") == expected(tokenizer)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from hotloop.ahead.data import text_chunks, tokenize_job
from small import make_job, tokenize
from multiprocessing import active_children
text_chunks.CHUNK_BYTES, tokenize_job._SYNC_EVERY_S = 1000, 0.0
seen = 0
def notice(state):
    global seen
    seen += 1
    if seen == {after}:
        print(*[child.pid for child in active_children()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    job = make_job([{source!r}], Path({tokenizer!r}), shard_tokens=900)
    tokenize(job, Path({out!r}), 2, notice=notice)
"""


def test_after_a_kill_the_same_call_writes_the_same_bytes(tokenizer: Path, tmp_path: Path) -> None:
    source, out, whole = write_jsonl(tmp_path / "a.jsonl"), tmp_path / "out", tmp_path / "whole"
    job = make_job([source], tokenizer, shard_tokens=900)
    tokenize(job, whole, 2)
    for after in (9, 5):
        values = {"tests": str(Path(__file__).parent), "source": str(source), "tokenizer": str(tokenizer)}
        script = tmp_path / "killed.py"
        script.write_text(KILLED.format(**values, out=str(out), after=after))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == -9, done.stderr
        assert not (out / "manifest.json").exists()
        _wait_until_gone([int(word) for word in done.stdout.split()])
    kept = json.loads((out / "progress.json").read_text())["state"]["documents_count"]
    assert 0 < kept < len(TEXTS)
    report = tokenize(job, out, 2)
    assert report.was_resumed
    assert 0 < report.run_tokens_count < report.tokens_count
    assert file_bytes(out) == file_bytes(whole)


def _wait_until_gone(pids: list[int]) -> None:
    """The workers of a killed parent end by themselves."""
    assert len(pids) == 2
    end_s = time.monotonic() + 30
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < end_s, "a worker outlived its parent"
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_another_job_may_not_write_into_the_folder(tokenizer: Path, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl")
    tokenize(make_job([source], tokenizer), tmp_path / "out")
    with pytest.raises(
        UsageError,
        match="belongs to another job: the id that --append-eos appends changed, 0 there and none here",
    ):
        tokenize(make_job([source], tokenizer, end_id=None), tmp_path / "out")
    other = write_jsonl(tmp_path / "b.jsonl")
    with pytest.raises(UsageError, match=r"the sources changed \(such as .*b\.jsonl\)"):
        tokenize(make_job([other], tokenizer), tmp_path / "out")
    source.write_text(source.read_text() + '{"text": "more"}\n')
    with pytest.raises(UsageError, match=r"the sources changed \(such as .*a\.jsonl\)"):
        tokenize(make_job([source], tokenizer), tmp_path / "out")


def test_a_resumed_folder_that_lost_or_changed_data_is_refused(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize_job, "_SYNC_EVERY_S", 0.0)
    job = make_job([write_jsonl(tmp_path / "a.jsonl")], tokenizer)

    def stop(state: object) -> None:
        raise KeyboardInterrupt

    calls = iter([None] * 4)
    with pytest.raises(KeyboardInterrupt):
        tokenize(job, tmp_path / "out", notice=lambda state: next(calls, stop) and stop(state))
    file = tmp_path / "out" / "tokens-00000.bin"
    content = file.read_bytes()
    file.write_bytes(b"\xff\xff" + content[2:])
    with pytest.raises(UsageError, match="has changed since it was written"):
        tokenize(job, tmp_path / "out")
    file.write_bytes(content[:10])
    with pytest.raises(UsageError, match="lost data: 10 bytes of"):
        tokenize(job, tmp_path / "out")
    file.write_bytes(content)
    tokenize(job, tmp_path / "out")
    assert read_folder(tmp_path / "out") == expected(tokenizer)


def test_a_worker_that_is_killed_is_an_error_and_the_job_goes_on(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing

    monkeypatch.setattr(tokenize_job, "_SYNC_EVERY_S", 0.0)
    job = make_job([write_jsonl(tmp_path / "a.jsonl")], tokenizer)
    others = {child.pid for child in multiprocessing.active_children()}  # of earlier tests in this process

    def kill_a_worker(state: object) -> None:
        os.kill(next(pid for child in multiprocessing.active_children() if (pid := child.pid or 0) not in others), 9)

    with pytest.raises(HotloopError, match="a tokenizing process was killed"):
        tokenize(job, tmp_path / "out", 2, notice=kill_a_worker)
    tokenize(job, tmp_path / "out", 2)
    assert read_folder(tmp_path / "out") == expected(tokenizer)
