"""hotloop tokenize against the bare tokenizer, itself on more processes, `kill -9`, a memory bound, and two peers.

    python benchmarks/tokenizing.py speed  [--rounds 5] [--mib 64]     bare tokenizer, 1 and 2 processes, in turn
    python benchmarks/tokenizing.py kill   [--kills 20]                killed at random points, resumed, compared
    python benchmarks/tokenizing.py memory [--mib 1000]                the whole process tree's memory at its peak
    python benchmarks/tokenizing.py peers --python PYTHON [--rounds 3] datasets.map + save_to_disk, and datatrove

The texts are the sources of Python's standard library, cut into documents of 4,000 characters at line ends and repeated
up to the size; the tokenizer is a byte-level BPE of 8,000 tokens trained on them. Every row is kept at once, in
benchmarks/results/tokenize/PART.json; rows of an earlier call with the same settings stay, --fresh forgets them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from raw import ROOT, describe_commit, draw_raw

RESULTS = ROOT / "benchmarks" / "results" / "tokenize"
HOTLOOP = str(Path(sys.executable).with_name("hotloop"))
PEERS = ROOT / "benchmarks" / "tokenizing_peers"
END = "<|endoftext|>"
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("speed", "kill", "memory", "peers"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--mib", type=int)
    parser.add_argument("--python", help="an interpreter with datasets and datatrove")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "hotloop-tokenizing")
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    options = parser.parse_args()
    size_bytes = (options.mib or {"speed": 64, "kill": 12, "memory": 1000, "peers": 32}[options.part]) * MIB
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer, texts = prepare(options.work, size_bytes)
    head = {"text_bytes": texts.stat().st_size, "tokenizer_sha256": hash_file(tokenizer)}
    kept = Rows(RESULTS / f"{options.part}.json", head, fresh=options.fresh)
    parts = {"speed": run_speed, "kill": run_kills, "memory": run_memory, "peers": run_peers}
    parts[options.part](options, kept, tokenizer, texts)
    print(f"{kept.file}: {len(kept.rows)} rows")


class Rows:
    """The rows of one part, written after each."""

    def __init__(self, file: Path, head: dict[str, Any], *, fresh: bool) -> None:
        self.file, self._head = file, head
        self.rows: list[dict[str, Any]] = []
        if file.exists() and not fresh:
            content = json.loads(file.read_text())
            if all(content.get(key) == value for key, value in head.items()):
                self.rows = content["rows"]

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        head = {"commit": describe_commit(), "machine": describe_machine(), "date": date.today().isoformat()}
        content = {**head, **self._head, "count": len(self.rows), "rows": self.rows}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(draw_raw(content))
        print(row, flush=True)


def describe_machine() -> str:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model.partition(':')[2].strip()}, Python {sys.version.split()[0]}"


def prepare(work: Path, size_bytes: int) -> tuple[Path, Path]:
    """The tokenizer and a file of JSON lines of this size, made once."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer, texts = work / "tokenizer.json", work / f"texts-{size_bytes}.jsonl"
    documents = list(read_sources())
    if not tokenizer.exists():
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.train_from_iterator(
            documents[::4], trainers.BpeTrainer(vocab_size=8000, special_tokens=[END], show_progress=False)
        )
        made.save(str(tokenizer))
    if not texts.exists():
        partial = texts.with_suffix(".part")
        with partial.open("w") as stream:
            written, number = 0, 0
            while written < size_bytes:
                written += stream.write(json.dumps({"id": number, "text": documents[number % len(documents)]}) + "\n")
                number += 1
        partial.replace(texts)
    return tokenizer, texts


def read_sources() -> Iterator[str]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if "site-packages" in file.parts:
            continue
        try:
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        except UnicodeDecodeError:
            continue
        document = ""
        for line in lines:
            document += line
            if len(document) >= 4000:
                yield document
                document = ""
        if document.strip():
            yield document


def hash_file(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def words_of(tokenizer: Path, texts: Path, out: Path, processes: int) -> list[str]:
    words = [HOTLOOP, "tokenize", str(texts), "--tokenizer", str(tokenizer), "-o", str(out), "--eos", END]
    return [*words, "--processes", str(processes), "-q"]


def measure(words: list[str]) -> dict[str, float]:
    """Wall and CPU seconds of a command with all its processes, and how much its machine's cores gave to others."""
    began_s, busy_before_s = time.monotonic(), read_busy_s()
    process = subprocess.Popen(words)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words[0]} ended with {process.returncode}")
    wall_s, cpu_s = time.monotonic() - began_s, used.ru_utime + used.ru_stime
    others_s = max(0.0, read_busy_s() - busy_before_s - cpu_s)
    return {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3), "others_cores": round(others_s / wall_s, 2)}


def read_busy_s() -> float:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def run_speed(options: argparse.Namespace, kept: Rows, tokenizer: Path, texts: Path) -> None:
    out = options.work / "speed"
    for number in range(1 + max((row["round"] for row in kept.rows), default=-1), options.rounds):
        measured: dict[str, Any] = {}
        order = ["bare", "one", "two"]
        random.Random(number).shuffle(order)
        for kind in order:
            if kind == "bare":
                done = subprocess.run(
                    [sys.executable, str(PEERS / "bare.py"), str(tokenizer), str(texts)],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                measured["bare"] = json.loads(done.stdout)
                continue
            shutil.rmtree(out, ignore_errors=True)
            measured[kind] = measure(words_of(tokenizer, texts, out, {"one": 1, "two": 2}[kind]))
        bare_cpu_s = measured["bare"]["encode_cpu_s"]
        kept.add(
            round=number,
            **measured,
            wall_ratio=round(measured["one"]["wall_s"] / measured["two"]["wall_s"], 3),
            cpu_of_bare_ratio=round(measured["one"]["cpu_s"] / bare_cpu_s, 3),
        )


def run_kills(options: argparse.Namespace, kept: Rows, tokenizer: Path, texts: Path) -> None:
    whole, out = options.work / "whole", options.work / "killed"
    shutil.rmtree(whole, ignore_errors=True)
    measure(words_of(tokenizer, texts, whole, 2))
    wanted = {file.name: hash_file(file) for file in whole.iterdir()}
    size_bytes = sum(file.stat().st_size for file in whole.glob("*.bin"))
    for number in range(len(kept.rows), options.kills):
        shutil.rmtree(out, ignore_errors=True)
        chance = random.Random(number)
        points = sorted(chance.uniform(0, 1) for _ in range(chance.choice((1, 2))))
        kills = [
            kill_at(words_of(tokenizer, texts, out, chance.choice((1, 2, 3))), out, size_bytes * one) for one in points
        ]
        measure(words_of(tokenizer, texts, out, 2))
        found = {file.name: hash_file(file) for file in out.iterdir()}
        kept.add(points=[round(one, 3) for one in points], kills=kills, is_same=found == wanted)


def kill_at(words: list[str], out: Path, size_bytes: float) -> dict[str, int | None]:
    """Kill a command once it has written so much; the bytes then, and the tokens that a resume can build upon.

    All None where it ended before it could be killed.
    """
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    written = 0
    while process.poll() is None and written <= size_bytes:
        time.sleep(0.005)
        written = sum(file.stat().st_size for file in out.glob("*.bin"))
    process.kill()
    if process.wait() == 0:
        return {"written_bytes": None, "kept_tokens": None}
    progress = out / "progress.json"
    kept_tokens = json.loads(progress.read_text())["state"]["tokens_count"] if progress.exists() else 0
    return {"written_bytes": written, "kept_tokens": kept_tokens}


def run_memory(options: argparse.Namespace, kept: Rows, tokenizer: Path, texts: Path) -> None:
    out = options.work / "memory"
    shutil.rmtree(out, ignore_errors=True)
    process = subprocess.Popen(words_of(tokenizer, texts, out, 2))
    peak = {"rss": 0, "pss": 0}
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            rss, pss = read_tree_bytes(process.pid)
            peak.update(rss=max(peak["rss"], rss), pss=max(peak["pss"], pss))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    stop.set()
    watcher.join()
    kept.add(processes=2, exit_code=code, peak_rss_bytes=peak["rss"], peak_pss_bytes=peak["pss"])


def read_tree_bytes(root: int) -> tuple[int, int]:
    """Resident bytes of a process and all below it: summed as they are, and with shared pages counted once."""
    waiting, rss, pss = [root], 0, 0
    while waiting:
        pid = waiting.pop()
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(word) for word in (task / "children").read_text().split()]
        except OSError:
            continue
        facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in rollup.splitlines()[1:]}
        rss, pss = rss + facts["Rss"], pss + facts["Pss"]
    return rss, pss


def run_peers(options: argparse.Namespace, kept: Rows, tokenizer: Path, texts: Path) -> None:
    out = options.work / "peers"
    for number in range(1 + max((row["round"] for row in kept.rows), default=-1), options.rounds):
        measured: dict[str, Any] = {}
        order = ["hotloop", "datasets", "datatrove"]
        random.Random(number).shuffle(order)
        for kind in order:
            shutil.rmtree(out, ignore_errors=True)
            peer = [
                options.python or sys.executable,
                str(PEERS / f"{kind}_peer.py"),
                str(tokenizer),
                str(texts),
                str(out),
            ]
            measured[kind] = measure(words_of(tokenizer, texts, out, 2) if kind == "hotloop" else peer)
            measured[kind]["tokens"] = count_tokens(kind, out)
        kept.add(round=number, **measured)


def count_tokens(kind: str, out: Path) -> int | None:
    """What was written, end tokens among it; None where the folder does not say."""
    if kind == "hotloop":
        return int(json.loads((out / "manifest.json").read_text())["tokens_count"])
    said = out / "tokens_count"
    return int(said.read_text()) if said.exists() else None


if __name__ == "__main__":
    main()
