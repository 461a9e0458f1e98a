import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from hotloop.observe.stderr_filter import LineFilter, without_profiler_lines

LINE = b"USDT:2026-11-21 03:18:28 21306:21306 SyncActivityProfilerHandler.cpp:52] profiler_start\n"
OTHER = b"ERROR: External init callback must run in same thread as registerClient (-1039055168 != 1187560320)\n"


def passed(pieces: list[bytes]) -> bytes:
    line_filter = LineFilter()
    return b"".join(line_filter.feed(piece) for piece in pieces) + line_filter.rest()


def test_the_profilers_lines_are_taken_out():
    assert passed([b"a\n" + LINE + b"b\n"]) == b"a\nb\n"
    assert passed([b"a\n" + OTHER + LINE + b"b\n" + OTHER]) == b"a\nb\n"


def test_a_line_behind_a_progress_bar_is_taken_out_alone():
    assert passed([b"\r 40%|####", LINE[:20], LINE[20:], b"\r 50%"]) == b"\r 40%|####\r 50%"


def test_lines_that_only_look_alike_pass():
    for text in (b"USDT: price\n", b"USDT:\n", LINE[:-1], b"USDT:" + b"x" * 2000, LINE.replace(b"profiler", b"other")):
        assert passed([text]) == text
    for text in (OTHER[:-1], OTHER.replace(b"registerClient", b"me"), b"ERROR: External init callback failed\n"):
        assert passed([text]) == text


@given(
    st.lists(st.sampled_from([b"U", b"USDT:", b"\n", b"x", b"\xff", LINE, LINE[:30], OTHER, OTHER[:9]]), max_size=12),
    st.data(),
)
def test_what_passes_does_not_depend_on_how_it_arrives(parts: list[bytes], data: st.DataObject):
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    assert passed([whole[:cut], whole[cut:]]) == passed([whole])
    if b"USDT:" not in whole and OTHER not in whole:
        assert passed([whole]) == whole


def test_everything_else_reaches_standard_error(capfd):
    os.write(2, b"before\n")
    with without_profiler_lines():
        os.write(2, b"one\n" + LINE)
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'two\\n')"], check=True)
        os.write(2, b"three, no newline")  # sys.stderr is pytest's own here
    os.write(2, b"|after\n")
    assert capfd.readouterr().err == "before\none\ntwo\nthree, no newline|after\n"


def test_standard_error_is_given_back_after_an_exception(capfd):
    before = os.fstat(2).st_ino
    try:
        with without_profiler_lines():
            raise ValueError
    except ValueError:
        os.write(2, b"still there\n")
    assert os.fstat(2).st_ino == before
    assert capfd.readouterr().err == "still there\n"
