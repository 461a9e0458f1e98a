"""Raw tables in benchmarks/results -> whether every page says what they say: ``make evidence-check``.

Fails, with one line each, on

* a page made from tables that differs from what its tables give now;
* a figure of a hand-written page (docs/evidence.toml) that its raw table does not give;
* a table with fewer or more rows than its first line counts, or without commit, machine and date;
* a page over tables of several commits that does not name them all;
* a measured figure of a hand-written page that has neither a raw table nor the label of a single observation.

``--write`` draws the pages made from tables again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for folder in ("tests/zoo", "benchmarks"):
    sys.path.append(str(ROOT / folder))

import accuracy  # noqa: E402
import compression_quality  # noqa: E402
import fresh  # noqa: E402
import harness  # noqa: E402
import image_builds  # noqa: E402
import link_choice  # noqa: E402
import plan_accuracy  # noqa: E402
import tables  # noqa: E402
import told_won  # noqa: E402
import treat  # noqa: E402
import tune_aa  # noqa: E402
import tune_zoo  # noqa: E402
import under_load  # noqa: E402

RAW = Path("benchmarks/results")
LEDGER = Path("docs/evidence.toml")
FROM_CODE = frozenset({"docs/cli.md", "docs/rules.md", "docs/lint-rules.md"})
"""Drawn from the code by scripts/generate_docs.py, which checks them; they quote no measurement."""
FIGURE = re.compile(r"\d[\d.,]*\s?(?:ns|us|ms|s|%|x|kB|KB|MB|GB|KiB|MiB|GiB)(?![\w/])|\b\d+ of (?:the )?\d+\b")
MEASURED = re.compile(
    r"\bn = \d|\b\d+ of (?:the )?\d+\b|\b(?:was|were) (?:seen to|measured)\b(?! (?:as|or))|"
    r"\bresamples\b|\bsimulated comparisons\b"
)
LABEL = re.compile(r"\bsingle observations?\b", re.IGNORECASE)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
NO_RAW = "no raw data"


@dataclass(frozen=True)
class Drawn:
    """A page that is made from tables."""

    draw: Callable[[Path], str]
    """The root of the repository -> the page's text."""
    find_raw: Callable[[Path], Sequence[Path]]
    """benchmarks/results -> the files whose rows are on the page."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="draw the pages made from tables again")
    if parser.parse_args(arguments).write:
        for name, page in DRAWN.items():
            (ROOT / name).write_text(page.draw(ROOT), encoding="utf-8")
    faults = list(find_faults(ROOT, DRAWN))
    for fault in faults:
        print(fault, file=sys.stderr)
    print(
        f"{len(DRAWN)} pages drawn from tables, {len(read_ledger(ROOT))} figures of other pages: {len(faults)} faults"
    )
    return 1 if faults else 0


def find_faults(root: Path, drawn: Mapping[str, Drawn]) -> Iterator[str]:
    """One line for each thing that a page says and its raw data does not."""
    broken = list(find_broken_tables(root))
    yield from broken
    if broken:
        return  # what is drawn from them would say the same again, in other words
    for name, page in drawn.items():
        try:
            expected = page.draw(root)
        except (OSError, ValueError, KeyError) as error:
            yield f"{name} cannot be drawn from its tables: {error!r}"
            continue
        if _read(root / name) != expected:
            yield f"{name} differs from what its tables give: run python scripts/evidence.py --write and read the diff"
    yield from find_wrong_figures(root)
    yield from find_mixed_commits(root, drawn)
    yield from find_bare_figures(root, drawn)


def find_broken_tables(root: Path) -> Iterator[str]:
    """Tables with a wrong count of rows, and raw files that do not say when and on what they were measured."""
    for path in sorted((root / RAW).rglob("*.json*")):
        name = path.relative_to(root)
        try:
            head = read_head(path)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        missing = [key for key in ("machine", "date") if not head.get(key)]
        if not head.get("commit") and not head.get("commit_unknown"):
            missing.append("commit (or commit_unknown, with the reason)")
        if missing:
            yield f"{name} does not state {', '.join(missing)}"


def read_head(path: Path) -> dict[str, Any]:
    """What holds for all rows of a raw file; raises ValueError where a table's rows are not as many as it counts."""
    if path.suffix == ".jsonl":
        return dict(tables.read_table(path).header)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def read_ledger(root: Path) -> list[dict[str, Any]]:
    if not (root / LEDGER).exists():
        return []
    found: list[dict[str, Any]] = tomllib.loads((root / LEDGER).read_text(encoding="utf-8")).get("figure", [])
    return found


def find_wrong_figures(root: Path) -> Iterator[str]:
    """Figures of hand-written pages: each is a text with places, and an expression over a raw file for each place."""
    for entry in read_ledger(root):
        try:
            values = evaluate(root, entry)
        except Exception as error:  # whatever an expression does wrong is a fault of the ledger
            yield f"{entry['page']}: {entry['text']!r} cannot be computed from {entry['raw']}: {error!r}"
            continue
        text = entry["text"].format(*values)
        if text not in " ".join((root / entry["page"]).read_text(encoding="utf-8").split()):
            yield f"{entry['page']} does not say {text!r}, which {RAW / entry['raw']} gives"


def evaluate(root: Path, entry: Mapping[str, Any]) -> list[Any]:
    """The values of a ledger entry; ``rows`` and ``head`` are those of its raw file."""
    path = root / RAW / entry["raw"]
    if path.suffix == ".jsonl":
        table = tables.read_table(path)
        head, rows = table.header, table.rows
    else:
        head = json.loads(path.read_text(encoding="utf-8"))
        rows = head
    names = {"head": head, "rows": rows, **WORDS}
    return [eval(one, names) for one in entry["is"]]


def zoo_rate(rows: Sequence[Mapping[str, Any]], index: int, split: str) -> accuracy.Rate:
    """One of the promised rates over the finished runs of one part of the known set."""
    return accuracy.compute_rates([one for one in _judge(rows) if one.split == split])[index]


def _judge(rows: Sequence[Mapping[str, Any]]) -> list[accuracy.Judged]:
    return [accuracy.judge(row) for row in rows if row["status"] == "done"]


def by_medians(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Forecasts within 0.10 of the saving of the medians, and all faults where that is large."""
    return accuracy.count_by_medians([one for one in _judge(rows) if len(one.planted) == 1])


def settled(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Twins that met the rule of repeating, and all."""
    twins = [one for one in _judge(rows) if one.realised_ratio is not None]
    return sum(one.is_settled for one in twins), len(twins)


def untried(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(one.realised_ratio is None for one in accuracy.opportunities_tried(_judge(rows)))


def near(pairs: Sequence[Mapping[str, Any]]) -> int:
    """How many what-if forecasts are within 0.10 of what was realised."""
    limit = accuracy.FORECAST_ERROR_RATIO
    return sum(abs(one["forecast_saving_ratio"] - one["realised_saving_ratio"]) <= limit for one in pairs)


def aa(rows: Sequence[dict[str, Any]], part: str) -> list[str]:
    """What today's statistics say of the stored comparisons of a part."""
    return [tune_aa.judge_again(row).value for row in rows if row["part"] == part]


def reached(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Faulty trainings that reach their twin by the fastest runs, and all."""
    faulty = [row for row in rows if row["part"] == "faulty" and row["status"] == "done"]
    return sum(tune_zoo.hold_against(row, min).is_reached for row in faulty), len(faulty)


def treated(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Treated faults that reach their twin by the fastest runs, and all."""
    done = [row["times_ns"] for row in rows if row["status"] == "treated"]
    return sum(treat.hold_against(one, "faulty", "treated", min).is_reached for one in done), len(done)


def trainer_cost(head: Mapping[str, Any], keeps_heap: bool) -> dict[str, float]:
    """The Trainer's time over the hand-written loop's, from the processes of one kind of heap."""
    import trainer

    parts = [one for one in head["processes"] if one["keep_heap"] == keeps_heap]
    found: dict[str, float] = trainer.summarize(parts)["to_hand_written"]["hotloop"]
    return found


def against(rows: Sequence[Mapping[str, Any]], scenario: str) -> treat.Against:
    (row,) = (row for row in rows if row["part"] == "faulty" and row["scenario"] == scenario)
    return tune_zoo.hold_against(row, min)


WORDS = {
    one.__name__: one
    for one in (zoo_rate, by_medians, settled, untried, near, aa, reached, treated, trainer_cost, against)
}
"""What an expression of docs/evidence.toml may call, besides Python's own."""


def find_mixed_commits(root: Path, drawn: Mapping[str, Drawn]) -> Iterator[str]:
    """Pages over tables of several commits that do not name every one."""
    sources: dict[str, set[Path]] = {}
    for name, page in drawn.items():
        sources.setdefault(name, set()).update(page.find_raw(root / RAW))
    for entry in read_ledger(root):
        sources.setdefault(entry["page"], set()).add(root / RAW / entry["raw"])
    for name, paths in sources.items():
        text = _read(root / name) or ""
        commits = {commit for path in paths for commit in commits_of(path)}
        unnamed = sorted(one for one in commits if one[:7] not in text)
        if len(commits) > 1 and unnamed:
            yield f"{name} mixes commits without saying so: {', '.join(unnamed)}"


def commits_of(path: Path) -> set[str]:
    """Commits of a raw file and of those of its rows that have one of their own."""
    if path.suffix != ".jsonl":
        commit = json.loads(path.read_text(encoding="utf-8")).get("commit")
        return {commit} if commit else set()
    table = tables.read_table(path)
    return {row["commit"] for row in table.rows if "commit" in row} | {one for one in (table.header["commit"],) if one}


def find_bare_figures(root: Path, drawn: Mapping[str, Drawn]) -> Iterator[str]:
    """Measured figures of hand-written pages without a raw table and without a label."""
    ledger = read_ledger(root)
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        name = path.relative_to(root).as_posix()
        if name in drawn or name in FROM_CODE or is_covered_by_parent(path):
            continue
        # The longest part of a figure's text between its places tells its paragraph.
        texts = [max(re.split(r"{.*?}", one["text"]), key=len) for one in ledger if one["page"] == name]
        for line_number, paragraph, is_labelled in read_paragraphs(path.read_text(encoding="utf-8")):
            is_bound = is_labelled or any(text in " ".join(paragraph.split()) for text in texts)
            if tells_measurement(paragraph) and not is_bound:
                yield (
                    f"{name}:{line_number}: a measured figure without a raw table (docs/evidence.toml) or the label "
                    "`Single observation, DATE, n = ...; no raw data kept`"
                )


def is_covered_by_parent(path: Path) -> bool:
    """Whether the page is a section of one (docs/a/b.md of docs/a.md) whose own label covers it."""
    page = _read(path.parent.with_suffix(".md"))
    return page is not None and any(is_label(" ".join(text.split())) for _, text, _ in read_paragraphs(page))


def tells_measurement(paragraph: str) -> bool:
    """Whether a sentence, or a row of a table, has a figure and says that it was measured."""
    if paragraph.lstrip().startswith("|"):
        parts = paragraph.splitlines()
    else:
        parts = re.split(r"(?<=[.:;])\s+", " ".join(paragraph.split()))
    return any(FIGURE.search(one) and MEASURED.search(one) for one in parts)


def read_paragraphs(page: str) -> Iterator[tuple[int, str, bool]]:
    """Line number, text and whether a label covers it: its own, or one that stands earlier in its section.

    A label in the section of the title covers the page. Fenced blocks are examples, no claims.
    """
    page = re.sub(r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    labelled_level: int | None = None
    level = 1
    number = 1
    for block in re.split(r"(\n\s*\n)", page):
        heading = re.match(r"\s*(#+) ", block)
        if heading:
            level = len(heading.group(1))
            if labelled_level is not None and level <= labelled_level and level > 1:
                labelled_level = None if labelled_level > 1 else labelled_level
        text = " ".join(block.split())
        if is_label(text) and labelled_level is None:
            labelled_level = level
        if text:
            yield number, block.strip(), labelled_level is not None
        number += block.count("\n")


def is_label(paragraph: str) -> bool:
    """Whether the paragraph says that what follows was seen once, when, and that no raw data is there."""
    return bool(LABEL.search(paragraph) and NO_RAW in paragraph and DATE.search(paragraph))


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _draw_numerics(root: Path) -> str:
    import numerics

    text: str = numerics.summarize(json.loads((root / RAW / "numerics.json").read_text(encoding="utf-8")))
    return text


def _draw_claims(root: Path) -> str:
    import claim_rows
    import techniques

    result = json.loads((root / RAW / "techniques.json").read_text(encoding="utf-8"))
    text: str = techniques.summarize(result, claim_rows.cite(root / RAW))
    return text


def _draw_overhead(root: Path) -> str:
    import hooks

    text: str = hooks.draw_page(json.loads((root / RAW / "hooks.json").read_text(encoding="utf-8")))
    return text


def _draw_compression_quality(root: Path) -> str:
    file = root / RAW / "compression_quality" / "runs.json"
    return compression_quality.summarize(json.loads(file.read_text(encoding="utf-8")))


def _draw_zoo(root: Path, name: str) -> str:
    return harness.draw_pages(root / RAW / "zoo", root / RAW / "what_if_pairs.json")[name]


def _one(name: str) -> Callable[[Path], Sequence[Path]]:
    return lambda raw: [raw / name]


def _find_claims(raw: Path) -> Sequence[Path]:
    import claim_rows

    return [raw / "techniques.json", *(raw / one for one in claim_rows.CITED)]


def _all(name: str) -> Callable[[Path], Sequence[Path]]:
    return lambda raw: sorted((raw / name).glob("*.jsonl"))


DRAWN = {
    "docs/accuracy.md": Drawn(
        lambda root: _draw_zoo(root, "accuracy.md"),
        lambda raw: [harness.choose_passes(raw / "zoo")["accuracy.md"], raw / "what_if_pairs.json"],
    ),
    "docs/accuracy-diagnosis.md": Drawn(
        lambda root: _draw_zoo(root, "accuracy-diagnosis.md"),
        lambda raw: [harness.choose_passes(raw / "zoo")["accuracy-diagnosis.md"]],
    ),
    "docs/fresh.md": Drawn(lambda root: fresh.draw_page(treat.read_tables(root / RAW / "fresh")), _all("fresh")),
    "docs/link-choice.md": Drawn(
        lambda root: link_choice.draw_page(root / RAW / "link_choice"),
        lambda raw: sorted((raw / "link_choice").glob("*.json")),
    ),
    "docs/plan-accuracy.md": Drawn(plan_accuracy.draw_page, _one("plan/time.json")),
    "docs/under_load.md": Drawn(
        lambda root: under_load.draw_page(treat.read_tables(root / RAW / "under_load")), _all("under_load")
    ),
    "docs/told_won.md": Drawn(
        lambda root: told_won.draw_page(treat.read_tables(root / RAW / "told_won")), _all("told_won")
    ),
    "docs/treated.md": Drawn(lambda root: treat.draw_page(treat.read_tables(root / RAW / "treated")), _all("treated")),
    "docs/tuned.md": Drawn(lambda root: tune_zoo.draw_page(treat.read_tables(root / RAW / "tuned")), _all("tuned")),
    "docs/numerics.md": Drawn(_draw_numerics, _one("numerics.json")),
    "docs/claims.md": Drawn(_draw_claims, _find_claims),
    "docs/overhead.md": Drawn(_draw_overhead, _one("hooks.json")),
    "docs/image-builds.md": Drawn(
        lambda root: image_builds.draw_page(json.loads((root / RAW / "operations" / "image.json").read_text())),
        _one("operations/image.json"),
    ),
    "docs/communication-quality.md": Drawn(_draw_compression_quality, _one("compression_quality/runs.json")),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
