"""Stacks of a process read from outside: where it is, by what time field, and what is not taken for a stack."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.attach.sampling import StackSampling
from hotloop.attach.stack_reader import Inconsistent, StackReader, read_line_table
from hotloop.core.recording import FIELD
from hotloop.observe.foreign_memory import read_spans

CHILD = textwrap.dedent(
    f"""
    import sys, time
    from hotloop.observe.stack_access import current_thread_state, offer_access

    fields = [{FIELD["other_ns"]}]


    def wörk(n):
        fields.append({FIELD["forward_ns"]})
        total = 0
        for i in range(n):
            total += i * i
        fields.pop()
        return total


    class Called:
        def __call__(self, n):
            return wörk(n)


    def generate():
        while True:
            yield max([30_000], key=lambda n: Called()(n))


    def main():
        problem = offer_access(sys.argv[1], current_thread_state(), fields, time.perf_counter_ns())
        print(problem, flush=True)
        for _ in generate():
            pass


    main()
    """
)
USER_FRAMES = ["<module>", "main", "generate", "<lambda>", "__call__", "wörk"]
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11) or sys.platform != "linux", reason="offered by neither")


@pytest.fixture
def offered(tmp_path: Path) -> Iterator[Path]:
    script = tmp_path / "häuslich.py"
    script.write_text(CHILD)
    path = tmp_path / "one.access"
    with subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "None\n"
        yield path
        child.kill()


def read_many(reader: StackReader, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        try:
            found.append(reader.read())
        except Inconsistent:
            continue
        time.sleep(0.001)
    return found


def test_every_call_of_python_and_c_is_followed(offered: Path) -> None:
    reader = StackReader(json.loads(offered.read_text()))
    found = read_many(reader, 100)
    assert len(found) > 80
    whole = [sample for sample in found if [place[2] for place in sample[1]] == USER_FRAMES]
    assert len(whole) > 60  # nearly all of its time
    text = CHILD.splitlines()
    fields = [field for field, _, _ in whole]
    assert fields.count(FIELD["forward_ns"]) > 0.9 * len(whole)
    for _, places, leaf in whole:
        assert places[-1][0].endswith("häuslich.py")
        assert leaf == "__main__:wörk"
    lines = [text[places[-1][1] - 1].strip() for _, places, _ in whole]
    hot = sum(line in ("for i in range(n):", "total += i * i") for line in lines)
    assert hot > 0.8 * len(lines), lines


def test_codes_stay_known_while_they_lie_where_they_did(offered: Path) -> None:
    reader = StackReader(json.loads(offered.read_text()))
    read_many(reader, 20)
    known = len(reader._codes)
    reader.check_codes()
    assert len(reader._codes) == known > 4
    address = next(iter(reader._codes))
    reader._codes[address + 64] = reader._codes.pop(address)
    reader.check_codes()
    assert not reader._codes


def test_a_process_with_another_token_is_not_read(offered: Path) -> None:
    access = json.loads(offered.read_text())
    access["token"][1] = "00" * 16
    with pytest.raises(Inconsistent, match="another process"):
        StackReader(access).read()


def test_a_process_that_has_gone_says_so() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        with pytest.raises(OSError, match="process"):
            read_spans(child.pid, [(4096, 8)])


def test_an_offer_is_taken_and_its_samples_are_written(offered: Path) -> None:
    sampling = StackSampling(offered.parent)
    sampling.tick()
    deadline_s = time.monotonic() + 20.0
    while offered.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not offered.exists()
    time.sleep(0.5)
    sampling.stop()
    lines = [json.loads(line) for line in offered.with_suffix(".samples").read_text().splitlines()]
    assert {line["kind"] for line in lines} == {"samples"}
    assert lines[0]["from_ns"] < lines[-1]["until_ns"]
    counts = [item for line in lines for item in line["counts"]]
    assert sum(item[3] for item in counts) >= 3
    assert max(counts, key=lambda item: item[3])[0] == "forward_ns"


def test_an_offer_that_cannot_be_read_stays_and_says_why(offered: Path) -> None:
    access = json.loads(offered.read_text())
    access["pid"] = 1 << 22  # beyond the largest number of a process
    offered.write_text(json.dumps(access))
    sampling = StackSampling(offered.parent)
    sampling._look()
    sampling._look()
    assert offered.exists()  # so that the agent goes on by itself
    (line,) = offered.with_suffix(".samples").read_text().splitlines()
    assert json.loads(line) == {"kind": "refused", "reason": "No such process"}
    sampling.stop()
    assert not offered.exists()


def test_lines_are_those_of_the_interpreter() -> None:
    for code in (read_many.__code__, textwrap.dedent.__code__, json.JSONDecoder.decode.__code__):
        starts, lines = read_line_table(code.co_linetable, code.co_firstlineno)
        own = [(start, line or 0) for start, _, line in code.co_lines()]
        told = [
            (start, line)
            for k, (start, line) in enumerate(zip(starts, lines, strict=True))
            if k == 0 or lines[k - 1] != line
        ]
        assert told == [pair for k, pair in enumerate(own) if k == 0 or own[k - 1][1] != pair[1]]
