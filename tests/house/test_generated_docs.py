"""The generated pages say what the code says."""

import re
import shutil
from pathlib import Path

import pytest

from hotloop.change.apply import ACTS

from .load_script import ROOT, load_script

generate_docs = load_script("generate_docs")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with the generated pages of the repository."""
    (tmp_path / "docs").mkdir()
    pages = ("rules.md", "lint-rules.md", "cli.md", "techniques.md", "vocabulary.md")
    for name in (f"docs/{page}" for page in pages):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", ["docs/rules.md", "docs/lint-rules.md", "docs/cli.md", "docs/techniques.md"])
def test_a_page_that_was_edited_by_hand_is_out_of_step(copied: Path, name: str) -> None:
    page = copied / name
    page.write_text(page.read_text().replace("hotloop", "coldloop"))
    assert list(generate_docs.find_stale_pages(copied)) == [name]


def test_a_page_without_its_markers_says_which_lines_it_needs(copied: Path) -> None:
    (copied / "docs" / "vocabulary.md").write_text("# Words\n")
    with pytest.raises(ValueError, match="make docs"):
        generate_docs.find_stale_pages(copied)


def test_the_readme_is_short_and_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 900
    commands = re.findall(r"^    ([a-z]+)  ", generate_docs.main_help(), flags=re.MULTILINE)
    assert len(commands) >= 18
    assert [name for name in commands if not re.search(rf"[` ]{name}[` ]", text)] == []


def test_the_vocabulary_has_every_act_that_a_rule_can_name_with_its_numerics() -> None:
    page = (ROOT / "docs" / "vocabulary.md").read_text()
    rows = {
        one: (act, numerics)
        for one, act, numerics in re.findall(r"^\| `([a-z0-9-]+)` \| (.*?) \| (.*) \|$", page, re.M)
    }
    assert rows == {one.id: (one.summary, one.numerics.value + one.numerics_note) for one in ACTS.values()}


def test_the_vocabulary_says_who_applies_what(copied: Path) -> None:
    text = generate_docs.describe_who(ACTS)
    applied, by_hand = text.partition("Acts for the reader: ")[::2]
    assert "[`fused-optimizer`](techniques.md#fused-optimizer)" in applied
    assert "`repair-link`" in by_hand
    assert "fused-optimizer" not in by_hand
    page = copied / "docs" / "vocabulary.md"
    page.write_text(page.read_text().replace("[`fused-optimizer`]", "[`other`]"))
    assert list(generate_docs.find_stale_pages(copied)) == ["docs/vocabulary.md"]


def test_every_act_has_an_effort_and_the_vocabulary_defines_each_word() -> None:
    page = (ROOT / "docs" / "vocabulary.md").read_text()
    assert [one.id for one in ACTS.values() if f"`{one.effort}` (" not in page] == []
