"""What `make new-rule` and `make new-technique` write works as it is, and no mark of theirs is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from .load_script import ROOT, load_script

new_extension = load_script("new_extension")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders for the new files, beside copies of what their tests import."""
    for files in new_extension.KINDS.values():
        for path, _ in files:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    builder = Path("tests/diagnose/build_analysis.py")
    (tmp_path / builder).write_text((ROOT / builder).read_text())
    return tmp_path


def test_nothing_is_left_to_be_filled_in() -> None:
    marks = new_extension.find_marks(ROOT)
    assert not marks, "\n".join(["still to be filled in:", *marks])


@pytest.mark.parametrize("kind", ["rule", "technique"])
def test_a_new_extension_passes_its_own_test_and_is_formatted(kind: str, root: Path) -> None:
    source, test = new_extension.write_extension(kind, "newly-made", root)
    marks = new_extension.find_marks(root)
    assert any(one.startswith(str(source.relative_to(root))) for one in marks)
    driver = (
        "import hotloop.judge.diagnose.rules as rules, hotloop.change.apply.techniques as techniques, sys, pytest\n"
        f"rules.__path__.append({str(root / 'src/hotloop/judge/diagnose/rules')!r})\n"
        f"techniques.__path__.append({str(root / 'src/hotloop/change/apply/techniques')!r})\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '--import-mode=importlib', {str(test)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", driver], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (source, test):  # as at its place in the repository, where its module would be found
        for command in (["format", "--check"], ["check", "--config", 'lint.isort.known-first-party = ["hotloop"]']):
            words = [str(Path(sys.executable).with_name("ruff")), *command, "--no-cache", "--stdin-filename"]
            words += [str(path.relative_to(root)), "-"]
            done = subprocess.run(words, cwd=ROOT, input=path.read_text(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_exists_is_kept(root: Path) -> None:
    source, _ = new_extension.write_extension("rule", "newly-made", root)
    source.write_text("mine")
    with pytest.raises(ValueError, match="exists already"):
        new_extension.write_extension("rule", "newly-made", root)
    assert source.read_text() == "mine"
