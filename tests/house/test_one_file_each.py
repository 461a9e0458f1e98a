"""A rule, a technique and an act by hand, one new file each, reach report, tuning, patch and pages unaided."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.change.apply import ACTS, BY_HAND, TECHNIQUES, check_strategy
from hotloop.change.apply.applier import Applier, make_context
from hotloop.change.tune.patch import make_patch
from hotloop.change.tune.search import find_candidates, list_memory_candidates
from hotloop.cli import main
from hotloop.core.findings import Finding, Fix, Numerics
from hotloop.core.strategy import Choice, Strategy
from hotloop.evidence.analyze.facts import read_applied
from hotloop.judge.diagnose import RULES

from .load_script import load_script

RULE = '''
"""slow-kettle: nothing is computed while the kettle boils."""

from hotloop.core.findings import Finding, Fix, Kind
from hotloop.core.rules import rule


def on_trace(analysis):
    fixes = Fix(technique="warm-kettle", settings={"kettles": 3}), Fix(technique="buy-kettle")
    return [Finding(title="the kettle is slow", evidence={}, fix=fix) for fix in fixes]


@rule("slow-kettle", "the kettle is slow", kind=Kind.OPPORTUNITY, on_trace=on_trace)
def judge(analysis) -> None:
    """
    ## What it does
    Looks at the kettle.
    """
    return None
'''
DECLARED = """
    source = Arguments(names=("kettles",))
    memory = MemorySaving(what="cold water")
"""
TECHNIQUE = '''
"""warm-kettle: a kettle that is warm already."""

from hotloop.core.findings import Numerics, Safety
from hotloop.core.sources import Arguments
from hotloop.core.techniques import Applied, MemorySaving, Setting, Stage, Technique


class WarmKettle(Technique):
    """
    ## What it does
    Warms it.
    """

    id = "warm-kettle"
    summary = "warm the kettle"
    effort = "hard"
    numerics = Numerics.LOSSY
    safety = Safety.ASK
    stage = Stage.LOADER
    settings = (Setting(name="kettles", kind=int, default=1, help="how many"),)
DECLARED
    def change_loader(self, loader, settings, context):
        loader.kettles = settings["kettles"]
        return Applied(text="kettles={kettles} are warm", values={"kettles": loader.kettles})
'''
BY_HAND_ACT = '''
"""Buy a kettle that `slow-kettle` does not find."""

from hotloop.core.acts import act_by_hand
from hotloop.core.findings import Numerics

ACT = act_by_hand(
    __doc__, id="buy-kettle", summary="buy another kettle", effort="easy", numerics=Numerics.EXACT
)
'''
PACKAGES = {
    "hotloop.judge.diagnose.rules": RULE,
    "hotloop.change.apply.techniques": TECHNIQUE,
    "hotloop.change.apply.by_hand": BY_HAND_ACT,
}


@pytest.fixture
def add_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Puts one file into each package, the technique with these lines of its own; takes them out again."""

    def add(declared: str) -> None:
        for name, text in PACKAGES.items():
            folder = tmp_path / name
            folder.mkdir()
            (folder / "kettle.py").write_text(text.replace("DECLARED", declared))
            package = importlib.import_module(name)
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        for catalogue in (RULES, TECHNIQUES, BY_HAND, ACTS):
            monkeypatch.setattr(catalogue, "_found", None)
        importlib.invalidate_caches()

    yield add
    for name in PACKAGES:
        sys.modules.pop(f"{name}.kettle", None)


def find_stations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Where the technique is known."""
    strategy = Strategy(choices=(Choice(technique="warm-kettle", settings={"kettles": 3}),))
    finding = Finding(rule="slow-kettle", title="", evidence={}, fix=Fix(technique="warm-kettle"))
    found = {"report"} if "hard" in report_trace(tmp_path, capsys)[1] else set()
    (candidate,) = find_candidates([finding], TECHNIQUES, lambda one: check_strategy(one, TECHNIQUES))
    found |= {"tune"} if not candidate.why_not and candidate.numerics is Numerics.LOSSY else set()
    saving = list_memory_candidates([], TECHNIQUES, lambda one: check_strategy(one, TECHNIQUES), rank_count=1)
    found |= {"memory"} if "warm-kettle" in {one.id for one in saving} else set()
    found |= {"patch"} if "Loader(d, kettles=3)" in patch_script(tmp_path, strategy) else set()
    return found


def report_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], str]:
    """The findings of the new rule as JSON, and the report as text."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0}
    trace, out = tmp_path / "trace.json", tmp_path / "report.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert main(["trace", str(trace), "--exit-zero", "--json", str(out)]) == 0
    findings = json.loads(out.read_text())["findings"]
    return [one for one in findings if one["rule"] == "slow-kettle"], capsys.readouterr().out


def patch_script(tmp_path: Path, strategy: Strategy) -> str:
    """A script with one loader, patched by what the technique did to it."""
    script = tmp_path / "train.py"
    script.write_text("import torch\nl = DataLoader(d)\n")
    applier = Applier(strategy, TECHNIQUES, make_context(strategy, from_outside=True))
    applier.loader_built(SimpleNamespace())
    (record,) = applier.records
    fact = {**record.as_fact(), "target": "DataLoader", "where": [str(script), 2, "main"]}
    (applied,) = read_applied([json.loads(json.dumps(fact))])
    assert applied.detail == "kettles=3 are warm"
    return make_patch([applied], tmp_path, TECHNIQUES).diff


def test_one_file_each_is_all_that_a_rule_and_its_acts_take(
    add_files: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_files(DECLARED)
    assert find_stations(tmp_path, capsys) == {"report", "tune", "memory", "patch"}
    (applied, by_hand), text = report_trace(tmp_path, capsys)
    assert (applied["kind"], applied["unit"], applied["next"]) == ("opportunity", "step", "hotloop rule slow-kettle")
    assert applied["fix"] == {
        "technique": "warm-kettle",
        "settings": {"kettles": 3},
        "safety": "ask",
        "numerics": "lossy",
        "effort": "hard",
    }
    assert (by_hand["fix"]["safety"], by_hand["fix"]["numerics"]) == ("show", "exact")
    assert "warm the kettle" in text
    assert "buy-kettle (effort: easy; same numbers; by hand)" in text


def test_the_new_files_are_explained_and_in_the_pages(add_files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    add_files(DECLARED)
    for name in ("slow-kettle", "warm-kettle", "buy-kettle"):
        assert main(["rule", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: ")
    generate_docs = load_script("generate_docs")
    assert "| `warm-kettle` | warm the kettle | lossy |" in generate_docs.describe_acts(ACTS)
    assert "## buy-kettle" in generate_docs.describe_by_hand(BY_HAND)
    assert "## slow-kettle" in generate_docs.describe_rules(RULES)


def test_this_check_can_fail(add_files: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_files("")
    assert find_stations(tmp_path, capsys) == {"report", "tune"}
