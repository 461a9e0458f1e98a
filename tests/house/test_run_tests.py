"""The list of expected skips: what it lets pass, and what it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from .load_script import ROOT, load_script

run_tests = load_script("run_tests")
HOLDS = {"no-browser": lambda: True}
FAILS = {"no-browser": lambda: False}


def entry(test: str, when: str = "no-browser") -> object:
    return run_tests.ExpectedSkip(test=test, when=when, why="for this test")


def skip(test: str) -> object:
    return run_tests.Skip(test=test, reason="no browser")


def test_a_listed_skip_whose_condition_holds_passes() -> None:
    skips = [skip("tests/page.py::test_opens"), skip("tests/page.py::test_shows[dark]")]
    assert run_tests.judge_skips(skips, [entry("tests/page.py::*")], HOLDS) == []


def test_an_unlisted_skip_fails() -> None:
    (problem,) = run_tests.judge_skips([skip("tests/other.py::test_x")], [entry("tests/page.py::*")], HOLDS)
    assert "tests/other.py::test_x" in problem
    assert "expected_skips.toml" in problem


def test_a_listed_skip_whose_condition_does_not_hold_fails() -> None:
    (problem,) = run_tests.judge_skips([skip("tests/page.py::test_x")], [entry("tests/page.py::*")], FAILS)
    assert "does not hold here: no-browser" in problem


def test_conditions_that_no_skip_needs_are_not_asked() -> None:
    def must_not_be_asked() -> bool:
        raise AssertionError

    entries = [entry("tests/page.py::*"), entry("tests/gpu.py::*", "no-gpu")]
    conditions = HOLDS | {"no-gpu": must_not_be_asked}
    assert run_tests.judge_skips([skip("tests/page.py::test_x")], entries, conditions) == []


def test_an_entry_that_fits_no_file_is_stale() -> None:
    entries = [entry("tests/page.py::*"), entry("tests/gone.py::*")]
    (problem,) = run_tests.find_stale_entries({"tests/page.py"}, entries)
    assert "tests/gone.py" in problem


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[skip]]\ntest = "a"\nwhen = "no-browser"\n', "needs exactly"),
        ('[[skip]]\ntest = "a"\nwhen = "full-moon"\nwhy = "x"\n', "no-browser"),
    ],
)
def test_a_wrong_entry_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run_tests.parse_expected_skips(text, {"no-browser"})


def test_the_committed_list_is_well_formed() -> None:
    assert run_tests.parse_expected_skips(run_tests.EXPECTED_SKIPS.read_text())


SUITE = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="on a whim")
def test_does_not():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_is_known_to_fail():
    assert False
"""

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import pytest, run_tests
entries = run_tests.parse_expected_skips(sys.argv[3])
guard = run_tests.SkipGuard(entries, conditions={"root": lambda: True})
raise SystemExit(pytest.main(["-p", "no:cacheprovider", sys.argv[2]], plugins=[guard]))
"""


@pytest.mark.parametrize(
    ("listed", "code"), [("", 1), ('[[skip]]\ntest = "*::test_does_not"\nwhen = "root"\nwhy = "x"\n', 0)]
)
def test_a_session_fails_for_a_skip_and_still_ends_with_pytests_own_summary(
    tmp_path: Path, listed: str, code: int
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    words = [sys.executable, "-c", DRIVER, str(ROOT / "scripts"), str(tmp_path), listed]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "1 passed, 1 skipped, 1 xfailed" in done.stdout.splitlines()[-1]
    assert ("on a whim" in done.stdout) is bool(code)
