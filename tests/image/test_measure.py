from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.ahead.image.fix import write_recipe
from hotloop.ahead.image.measure import ImageRequest, MeasuredImage, count_saved_ns, judge, measure_image
from hotloop.ahead.image.program import PREFIX
from hotloop.core.errors import UsageError
from hotloop.core.image import ImageContents, ImageReport, ScenarioTimes
from hotloop.show.report import render

from .fake_builder import AROUND_NS, CACHED_NS, COPY_NS, FakeBuilder

DOCKERFILE = (
    "FROM base:1\nWORKDIR /app\nCOPY . .\nRUN pip install --no-cache-dir -r requirements.txt\nCMD python train.py\n"
)
RUN_S = {"pip": 10.0}


def make_context(folder: Path, dockerfile: str = DOCKERFILE) -> Path:
    context = folder / "project"
    context.mkdir()
    (context / "Dockerfile").write_text(dockerfile)
    (context / "train.py").write_text("pass\n")
    (context / "requirements.txt").write_text("torch\n")
    return context


def measure(context: Path, builder: FakeBuilder, **more: Any) -> MeasuredImage:
    work = context.parent / "work"
    work.mkdir(exist_ok=True)
    request = ImageRequest(
        context=context,
        dockerfile=context / "Dockerfile",
        builder=builder,
        work=work,
        tool_version="1",
        limit_s=60.0,
        least_free_bytes=0,
    )
    return measure_image(replace(request, **more), lambda text: None)


def variant_of(report: ImageReport, name: str) -> Any:
    return next(one for one in report.variants if one.id == name)


def test_each_fix_alone_and_the_proven_ones_together(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    found = measure(context, FakeBuilder(RUN_S, {"pip": 4.0}))
    first, mount, both = (variant_of(found.report, one) for one in ("packages-first", "pip-cache-mount", "together"))
    assert [one.verdict for one in found.report.variants] == ["baseline", "proven", "proven", "proven"]
    # start, FROM, WORKDIR, the new COPY, RUN from the cache; COPY again, CMD again
    assert first.times["code"].median_ns == AROUND_NS + 4 * CACHED_NS + COPY_NS + CACHED_NS
    assert first.times["code"].cached_count == 4
    assert (
        mount.times["requirements"].median_ns == found.report.baseline.times["requirements"].median_ns - 4_000_000_000
    )
    assert both.fixes == ("packages-first", "pip-cache-mount")
    assert found.proven is not None
    assert "--mount=type=cache" in found.proven.text
    assert "--no-cache-dir" not in found.proven.text
    assert os.listdir(tmp_path / "work") == []


def test_other_contents_are_not_proven(tmp_path: Path) -> None:
    def list_extra(recipe: Any) -> dict[str, str]:
        is_moved = recipe.text.index("RUN") < recipe.text.index("COPY . .")
        return {"/opt/order": "new" if is_moved else "old"}

    found = measure(make_context(tmp_path), FakeBuilder(RUN_S, extra_files=list_extra))
    first = variant_of(found.report, "packages-first")
    assert first.verdict == "contents-differ"
    assert first.reason == "files with different contents: 1; the first: opt/order: digest"
    assert found.proven is None or "COPY requirements.txt" not in found.proven.text


def test_files_that_differ_from_build_to_build_count_for_no_fix(tmp_path: Path) -> None:
    count = iter(range(1000))
    builder = FakeBuilder(RUN_S, extra_files=lambda recipe: {"/var/log/build": str(next(count))})
    first = variant_of(measure(make_context(tmp_path), builder).report, "packages-first")
    assert first.verdict == "proven"
    assert first.contents.unstable_count == 1


def test_without_base_image_no_second_is_stated(tmp_path: Path) -> None:
    found = measure(make_context(tmp_path), FakeBuilder(RUN_S, is_absent=True))
    assert found.report.builder is None
    assert "base:1: connection refused; pull it or build it first" in found.report.reason
    for variant in found.report.variants:
        assert not any(times.samples_ns for times in variant.times.values())
    code = [variant_of(found.report, one).times["code"] for one in ("as-is", "packages-first")]
    assert [(one.cached_count, one.steps_count) for one in code] == [(2, 5), (4, 6)]
    assert found.proven is None
    text = render("terminal", found.report)
    assert "3 of 5 steps" in text
    assert "without timings" in text


def test_a_file_that_does_not_build_is_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not build: exit status 1"):
        measure(make_context(tmp_path, DOCKERFILE + "RUN fail\n"), FakeBuilder(RUN_S))


def test_the_limit_keeps_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = FakeBuilder(RUN_S, {"pip": 4.0})
    began_s = time.monotonic()
    monkeypatch.setattr(
        "hotloop.ahead.image.program.time.monotonic",
        lambda: began_s + (1000 if builder.variant == "pip-cache-mount" else 0),
    )
    found = measure(make_context(tmp_path), builder)
    assert found.report.stopped == "--limit-s is over"
    assert variant_of(found.report, "packages-first").verdict == "proven"
    late = variant_of(found.report, "pip-cache-mount")
    assert (late.verdict, late.reason) == ("not-built", "--limit-s was over")
    assert found.proven is not None
    assert "--mount" not in found.proven.text


def test_git_says_how_often_a_rebuild_is_paid(tmp_path: Path) -> None:
    context = make_context(tmp_path)

    def git(*words: str, age_days: float) -> None:
        moment = f"{int(time.time() - age_days * 86_400)} +0000"
        names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = {"GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
        subprocess.run(["git", *words], cwd=context, check=True, env={**os.environ, **names, **dates})

    git("init", "-q", age_days=200)
    git("add", ".", age_days=200)
    git("commit", "-qm", "begin", age_days=200)
    for number in range(6):
        (context / "train.py").write_text(f"print({number})\n")
        git("commit", "-qam", "more", age_days=number + 1)
    (context / ".gitignore").write_text("/data/\n")
    (context / "data").mkdir()
    (context / "data" / "a.bin").write_text("1")
    found = measure(context, FakeBuilder(RUN_S), with_left_out=False)
    code = found.report.edits["code"]
    assert (code.path, code.commits_count, found.report.days) == ("train.py", 6, 90.0)
    assert code.a_month(found.report.days) == 2.0
    first = variant_of(found.report, "packages-first")
    base = found.report.baseline.times
    assert first.saved_ns_a_month == 2 * (base["code"].median_ns - first.times["code"].median_ns)
    ignore = variant_of(found.report, "dockerignore")
    assert ignore.contents.left_out_count == 1 + sum(one.is_file() for one in (context / ".git").rglob("*"))
    assert ignore.contents.are_same
    assert "+/.git\n+/data\n" in ignore.diff
    assert found.proven is not None
    assert found.proven.ignore_text == ""


def test_what_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    found = measure(context, FakeBuilder(RUN_S))
    assert found.proven is not None
    paths = context / "Dockerfile", context / ".dockerignore"
    (context / "Dockerfile").write_text("FROM other\n")
    with pytest.raises(UsageError, match="changed during the measurement"):
        write_recipe(found.before, found.proven, *paths)
    assert (context / "Dockerfile").read_text() == "FROM other\n"
    (context / "Dockerfile").write_text(DOCKERFILE)
    assert write_recipe(found.before, found.proven, *paths) == (context / "Dockerfile",)
    assert (context / "Dockerfile").read_text() == found.proven.text


def make_times(*seconds: float) -> ScenarioTimes:
    return ScenarioTimes(samples_ns=tuple(round(one * 1e9) for one in seconds))


def test_a_difference_counts_above_the_spread() -> None:
    assert count_saved_ns(make_times(5.0, 5.1, 5.2), make_times(4.0, 4.1, 4.2)) == 1_000_000_000
    assert count_saved_ns(make_times(5.0, 5.1, 6.5), make_times(4.0, 4.1, 4.2)) == 0
    assert count_saved_ns(make_times(5.0), make_times(4.8)) == 0
    same = ImageContents(files_count=1)
    slower = {"cold": make_times(9.0), "code": make_times(1.0)}
    before = {"cold": make_times(5.0), "code": make_times(5.0), "requirements": make_times(5.0)}
    assert judge(before, slower, same) == ("no-gain", "slower: cold")
    rarely = {"cold": make_times(5.0), "code": make_times(1.0), "requirements": make_times(6.0)}
    assert judge(before, rarely, same) == ("no-gain", "slower: requirements edit")
    assert judge(before, rarely, same, -(10**9)) == ("no-gain", "slower: requirements edit")
    assert judge(before, rarely, same, 10**9) == ("proven", "slower: requirements edit")


def test_abandoned_work_is_removed_and_live_work_is_not(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    dead = tmp_path / "work" / f"{PREFIX}dead"
    (dead / "store").mkdir(parents=True)
    (dead / "lock").touch()
    live = tmp_path / "work" / f"{PREFIX}live"
    live.mkdir()
    import fcntl

    with (live / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        measure(context, FakeBuilder(RUN_S))
        assert not dead.exists()
        assert live.exists()
