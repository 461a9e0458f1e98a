"""An id -> a new rule or technique: one file in src/ and one in tests/, which work as they are (CONTRIBUTING.md).

What the author has to decide is marked ``FILL IN``; tests/house/test_new_extension.py lists the marks that are left.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MARK = "FILL IN"

RULE = '''"""{id}: FILL IN the fault in one line."""

from __future__ import annotations

from hotloop.core.analysis import Analysis
from hotloop.core.findings import Finding, saving_of_removal
from hotloop.core.rules import rule
from hotloop.judge.diagnose.measured import format_share, format_time, known_mean, threshold_ratio


@rule("{id}", "FILL IN the fault in one line, without a full stop")
def {name}(analysis: Analysis) -> Finding | None:
    """## What it does
    FILL IN what the rule measures, and where.

    ## Why it costs
    FILL IN why a training loses time by it.

    ## How to recognize it
    FILL IN what in the report shows it.

    ## What to do
    FILL IN the change of the program, easiest first.

    ## When it is wrong
    FILL IN when the finding should be ignored.
    """
    rank = analysis.ranks[0]
    lost_ns = known_mean(rank, "gc_ns")  # FILL IN the field that holds the lost time, ns per step
    if lost_ns is None or rank.step_mean_ns <= 0:
        return None
    cost_ratio = min(1.0, lost_ns / rank.step_mean_ns)
    if cost_ratio < threshold_ratio(rank, judged_fields=("gc_ns",)):  # FILL IN the same field
        return None
    return Finding(
        title=f"FILL IN what happens: {{format_time(lost_ns)}} ({{format_share(cost_ratio)}}) of every step",
        phase=None,
        cost_ns=round(lost_ns),
        # FILL IN time_ns={{"input_wait": round(lost_ns)}} if the time lies in one phase, so that it counts once
        cost_ratio=cost_ratio,
        saving=saving_of_removal(cost_ratio),
        evidence={{"lost_ns": round(lost_ns)}},
    )
'''

RULE_TEST = '''"""{id}: a case that fires, one that is near and does not, and a healthy run."""

from hotloop.judge.diagnose.rules.{name} import {name}

from .build_analysis import find, make_analysis


def test_a_fifth_of_the_step_is_a_finding() -> None:
    one = find({name}, make_analysis(fields={{"gc_ns": 4e6}}))  # FILL IN: of steps of 20 ms
    assert one.cost_ratio == 0.2
    assert "(20%)" in one.title


def test_what_the_noise_hides_is_none() -> None:
    assert {name}.judge(make_analysis(fields={{"gc_ns": 4e3}})) is None


def test_a_healthy_run_has_none() -> None:
    assert {name}.judge(make_analysis()) is None
'''

TECHNIQUE = '''"""{id}: FILL IN the act in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.core.findings import Numerics, Safety
from hotloop.core.techniques import Applied, Context, Effect, NotApplicable, Stage, Technique


class {class_name}(Technique):
    """
    ## What it does
    FILL IN what is changed, and how to take it back.

    ## When it helps
    FILL IN which trainings win, with a measured figure, machine and date.

    ## When it does not
    FILL IN where it wins nothing or is refused.

    ## Numerics
    FILL IN why the numbers keep the class below.
    """

    id = "{id}"
    summary = "FILL IN the act in one line, as a report shows it beside a fix"
    effort = "medium"  # FILL IN what it takes to edit the program by hand: easy, medium or hard
    numerics = Numerics.LOSSY  # FILL IN the class: EXACT, REORDERED, RESAMPLED or LOSSY
    safety = Safety.ASK
    stage = Stage.RUNTIME  # FILL IN when it acts: see Stage
    treats = ()  # FILL IN the ids of the rules that it treats

    def change_model(self, model: Any, settings: Mapping[str, Any], context: Context) -> Effect:
        """Check everything first, change last. FILL IN another hook where the object is no model."""
        if not any(one.requires_grad for one in model.parameters()):
            return NotApplicable(why="the model has no parameter to train")
        changed = [one for one in model.modules() if one.__class__.__name__ == "FillIn"]  # FILL IN
        if not changed:
            return NotApplicable(why="FILL IN the fact that is in the way, with its value")
        return Applied(text="FILL IN what was changed: {{modules}} modules", values={{"modules": len(changed)}})
'''

TECHNIQUE_TEST = '''"""{id}: what it changes, and what it leaves alone."""

import torch

from hotloop.change.apply.api import apply_strategy
from hotloop.core.strategy import Choice, Strategy

STRATEGY = Strategy(choices=(Choice(technique="{id}", settings={{}}),))


class FillIn(torch.nn.Linear):
    """FILL IN a module that the technique changes."""


def statuses(model: torch.nn.Module) -> list[str]:
    return [one.status for one in apply_strategy(STRATEGY, model=model).records]


def test_it_changes_what_it_is_for() -> None:
    assert statuses(FillIn(4, 4)) == ["applied"]


def test_it_leaves_other_models_alone() -> None:
    assert statuses(torch.nn.Linear(4, 4)) == ["not applicable"]
'''

KINDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "rule": (
        ("src/hotloop/judge/diagnose/rules/{name}.py", RULE),
        ("tests/diagnose/test_{name}.py", RULE_TEST),
    ),
    "technique": (
        ("src/hotloop/change/apply/techniques/{name}.py", TECHNIQUE),
        ("tests/apply/techniques/test_{name}.py", TECHNIQUE_TEST),
    ),
}
"""Kind of extension -> the files that it needs, as path and text."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the two files of a new rule or technique.")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("id", help="such as slow-collate: words in lower case, joined by hyphens")
    chosen = parser.parse_args(arguments)
    try:
        paths = write_extension(chosen.kind, chosen.id, ROOT)
    except ValueError as error:
        print(f"new-{chosen.kind}: {error}", file=sys.stderr)
        return 2
    for path in paths:
        print(f"wrote {path.relative_to(ROOT)}")
    subprocess.run([sys.executable, ROOT / "scripts" / "generate_docs.py"], check=True)
    print(f"Next: replace what is marked {MARK}, then run")
    print("  make docs check")
    print(f"  .venv/bin/python -m pytest -q {paths[-1].relative_to(ROOT)} tests/house")
    return 0


def write_extension(kind: str, extension_id: str, root: Path) -> tuple[Path, ...]:
    """The files of the new extension, written below ``root``; raises ValueError where the id cannot be used."""
    if not ID.fullmatch(extension_id):
        raise ValueError(f"ID={extension_id!r}: give words in lower case, joined by hyphens, such as ID=slow-collate")
    name = extension_id.replace("-", "_")
    class_name = "".join(word.capitalize() for word in extension_id.split("-"))
    texts = {root / path.format(name=name): text for path, text in KINDS[kind]}
    there = [path for path in texts if path.exists()]
    if there:
        raise ValueError(f"{there[0].relative_to(root)} exists already")
    for path, text in texts.items():
        path.write_text(text.format(id=extension_id, name=name, class_name=class_name), encoding="utf-8")
    return tuple(texts)


def find_marks(root: Path) -> list[str]:
    """One line, ``file:line: text``, for everything that is still to be filled in."""
    folders = sorted({(root / path).parent for files in KINDS.values() for path, _ in files})
    return [
        f"{file.relative_to(root)}:{number}: {line.strip()}"
        for folder in folders
        for file in sorted(folder.glob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if MARK in line
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
