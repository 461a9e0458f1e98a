"""Stacks of a process read from outside: where it is, and what is not taken for a stack."""

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

from hotloop.agent.observe.stack_access import describe_access
from hotloop.agent.replay.stack_reader import IMPORTING, Inconsistent, StackReader, read_line_table
from hotloop.core.foreign_memory import read_spans
from hotloop.core.stack_layout import INTERPRETED

CHILD = textwrap.dedent(
    """
    import json, sys
    from hotloop.agent.observe.stack_access import current_thread_state, describe_access


    def wörk(n):
        total = 0
        for i in range(n):
            total += i * i
        return total


    class Called:
        def __call__(self, n):
            return wörk(n)


    def generate():
        while True:
            yield max([30_000], key=lambda n: Called()(n))


    def main():
        print(json.dumps(describe_access(current_thread_state())), flush=True)
        for _ in generate():
            pass


    main()
    """
)
USER_FRAMES = ["<module>", "main", "generate", "generate", "__call__", "wörk"]
"""The lambda is named after the function that it is written in, as a comprehension is."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="read nowhere else")


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    script = tmp_path_factory.mktemp("code") / "häuslich.py"
    script.write_text(CHILD)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert told is not None
        yield told
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


def test_every_call_of_python_and_c_is_followed(access: dict[str, Any]) -> None:
    found = read_many(StackReader(access), 100)
    assert len(found) > 80
    whole = [sample for sample in found if [place[2] for place in sample[0]] == USER_FRAMES]
    assert len(whole) > 60  # nearly all of its time
    text = CHILD.splitlines()
    for places, leaf in whole:
        assert places[-1][0].endswith("häuslich.py")
        assert leaf == "__main__:wörk"
    lines = [text[places[-1][1] - 1].strip() for places, _ in whole]
    hot = sum(line in ("for i in range(n):", "total += i * i") for line in lines)
    assert hot > 0.8 * len(lines), lines


def test_codes_stay_known_while_they_lie_where_they_did(access: dict[str, Any]) -> None:
    reader = StackReader(access)
    read_many(reader, 20)
    known = len(reader._codes)
    reader.check_codes()
    assert len(reader._codes) == known > 4
    address = next(iter(reader._codes))
    reader._codes[address + 64] = reader._codes.pop(address)
    reader.check_codes()
    assert not reader._codes


def test_a_process_with_another_token_is_not_read(access: dict[str, Any]) -> None:
    other = {**access, "token": [access["token"][0], "00" * 16]}
    with pytest.raises(Inconsistent, match="another process"):
        StackReader(other).read()


def test_a_thread_state_that_is_none_leads_nowhere(access: dict[str, Any]) -> None:
    with pytest.raises((Inconsistent, OSError)):
        StackReader({**access, "thread_state": access["token"][0]}).read()
    assert describe_access(0) is None


def test_a_process_that_has_gone_says_so() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        with pytest.raises(OSError, match="process"):
            read_spans(child.pid, [(4096, 8)])


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


def test_what_a_library_imports_when_it_is_used_is_an_import(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "used.py").write_text("def use():\n    import slow\n")
    (library / "slow.py").write_text("while True:\n    sum(range(20_000))\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys\n"
        f"sys.path.append({str(library)!r})\n"
        "import used\n"
        "from hotloop.agent.observe.stack_access import current_thread_state, describe_access\n"
        "print(json.dumps(describe_access(current_thread_state())), flush=True)\n"
        "used.use()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        reader = StackReader(json.loads(child.stdout.readline()))
        time.sleep(0.5)
        seen = [sample for _ in range(50) if (sample := _try(reader)) is not None]
        child.kill()
    assert seen
    for places, leaf in seen:
        assert [place[1] for place in places] == [6]
        assert leaf == IMPORTING


def _try(reader: StackReader) -> Any:
    try:
        return reader.read()
    except Inconsistent:
        return None


THREADS = """
import json, threading, time
from hotloop.agent.observe.stack_access import current_thread_state, describe_access


def busy():
    while True:
        sum(range(1_000))


def idle():
    threading.Event().wait()


for target in (busy, idle):
    threading.Thread(target=target, daemon=True).start()
print(json.dumps(describe_access(current_thread_state())), flush=True)
time.sleep(60)
"""


def test_other_threads_are_read_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(THREADS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        reader = StackReader(json.loads(child.stdout.readline()))
        time.sleep(0.2)
        seen = [[(places[-1][2], leaf) for places, leaf in reader.read_others() if places] for _ in range(20)]
        child.kill()
    functions = {name for look in seen for name, _ in look}
    assert functions == {"busy", "idle"}
    assert {leaf for look in seen for name, leaf in look if name == "idle"} == {"threading:wait"}
    assert sum(any(name == "busy" for name, _ in look) for look in seen) > 15


SELF_DESCRIBING = """import dis, json
from hotloop.agent.observe.stack_access import current_thread_state, describe_access
print(json.dumps(describe_access(current_thread_state())), flush=True)
def work(n):
    while True: {}
work(0)
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there, a frame does not say which instruction it is at")
@pytest.mark.parametrize(
    ("body", "least_ratio", "most_ratio"), [("n = n + 1 if n < 9 else 0", 0.5, 1.0), ("pow(7, 90_000)", 0.0, 0.1)]
)
def test_a_leaf_says_whether_the_interpreter_itself_is_at_work(
    tmp_path: Path, body: str, least_ratio: float, most_ratio: float
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SELF_DESCRIBING.format(body))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        access = json.loads(child.stdout.readline())
        time.sleep(0.05)
        leaves = [leaf for _, leaf in read_many(StackReader(access), 200)]
        child.kill()
    assert set(leaves) <= {"__main__:work", "__main__:work" + INTERPRETED}
    assert least_ratio <= sum(leaf.endswith(INTERPRETED) for leaf in leaves) / len(leaves) <= most_ratio
