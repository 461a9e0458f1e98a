from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.ahead.image.fixes import FIXES
from hotloop.ahead.image.recipe import BuildRecipe, count_rerun
from hotloop.core.build_context import Ignore, scan_context
from hotloop.core.findings import Skipped

FILES = {
    "train.py": "pass",
    "requirements.txt": "torch\n",
    "requirements/base.txt": "x\n",
    "requirements/train.txt": "-r base.txt\n",
    "local.txt": "./ops\n",
    "environment.yml": "name: a\n",
    "ops/setup.py": "pass",
    "ops/csrc/a.c": "int a;",
}


def make_recipe(folder: Path, text: str, *, ignore: str = "", ignored: frozenset[str] | None = None) -> BuildRecipe:
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    context = scan_context(folder, Ignore.read(ignore), ignored)
    return BuildRecipe(text=text, ignore_text=ignore, context=context, build_args={})


def apply(name: str, recipe: BuildRecipe) -> str:
    """The changed file, or why not."""
    answer = FIXES[name].rewrite(recipe)
    return answer.reason if isinstance(answer, Skipped) else answer.recipe.text


PAIRS = {
    "one requirements file": (
        "FROM a\nWORKDIR /w\n\n# the project\nCOPY . .\n\nRUN pip install -r requirements.txt\nCMD x\n",
        "FROM a\nWORKDIR /w\nCOPY requirements.txt ./\n\nRUN pip install -r requirements.txt\n\n# the project\n"
        "COPY . .\nCMD x\n",
    ),
    "files that include others, another folder, a copy with owner": (
        "FROM a\nCOPY --chown=1:1 . /w\nWORKDIR /w\nRUN pip install -r requirements/train.txt\n",
        "FROM a\nCOPY --chown=1:1 requirements/base.txt requirements/train.txt /w/requirements/\nWORKDIR /w\n"
        "RUN pip install -r requirements/train.txt\nCOPY --chown=1:1 . /w\n",
    ),
    "a folder that is entered later": (
        "FROM a\nCOPY . /w\nWORKDIR /w\nRUN pip install -r requirements.txt\n",
        "FROM a\nCOPY requirements.txt /w/\nWORKDIR /w\nRUN pip install -r requirements.txt\nCOPY . /w\n",
    ),
    "a local package": (
        "FROM a\nCOPY . /w\nRUN pip install /w/ops\n",
        "FROM a\nCOPY ops /w/ops/\nRUN pip install /w/ops\nCOPY . /w\n",
    ),
    "system packages need no file": (
        "FROM a\nCOPY . /w\nRUN apt-get update && \\\n    apt-get install -y gcc\nRUN python /w/train.py\n",
        "FROM a\nRUN apt-get update && \\\n    apt-get install -y gcc\nCOPY . /w\nRUN python /w/train.py\n",
    ),
    "conda": (
        "FROM a\nADD . /w\nRUN conda env create -f /w/environment.yml && rm -rf /opt/conda/pkgs\n",
        "FROM a\nCOPY environment.yml /w/\nRUN conda env create -f /w/environment.yml && rm -rf /opt/conda/pkgs\n"
        "ADD . /w\n",
    ),
    "every stage": (
        "FROM a AS b\nCOPY . /s\nRUN pip wheel -w /wheels -r /s/requirements.txt\nFROM c\nCOPY . /w\n"
        "RUN pip install torch\nCOPY --from=b /wheels /wheels\n",
        "FROM a AS b\nCOPY requirements.txt /s/\nRUN pip wheel -w /wheels -r /s/requirements.txt\nCOPY . /s\nFROM c\n"
        "RUN pip install torch\nCOPY . /w\nCOPY --from=b /wheels /wheels\n",
    ),
}


@pytest.mark.parametrize("case", PAIRS)
def test_packages_go_before_the_code(case: str, tmp_path: Path) -> None:
    before, after = PAIRS[case]
    assert apply("packages-first", make_recipe(tmp_path, before)) == after
    assert "after a copy of the code" in apply("packages-first", make_recipe(tmp_path, after))


@pytest.mark.parametrize(
    "text",
    [
        "FROM a\nCOPY . /w\nRUN pip install -e /w\n",
        "FROM a\nCOPY . /w\nWORKDIR /w\nRUN pip install .\n",
        "FROM a\nCOPY . /w\nRUN cd /w && pip install -r requirements.txt\n",
        "FROM a\nCOPY . /w\nRUN pip install -r /w/local.txt\n",
        "FROM a\nCOPY . /w\nRUN python /w/train.py\nRUN pip install torch\n",
        "FROM a\nCOPY requirements.txt /w/\nRUN pip install -r /w/requirements.txt\nCOPY . /w\n",
        "FROM a\nCOPY . /w\nRUN pip install $(cat /w/requirements.txt)\n",
    ],
)
def test_what_may_need_the_code_stays_behind_it(text: str, tmp_path: Path) -> None:
    assert "after a copy of the code" in apply("packages-first", make_recipe(tmp_path, text))


def test_a_relative_copy_does_not_cross_its_folder(tmp_path: Path) -> None:
    text = "FROM a\nWORKDIR /w\nCOPY . .\nWORKDIR /w/ops\nRUN pip install torch\n"
    assert "line 3 copies to a folder that depends on a later WORKDIR" in apply(
        "packages-first", make_recipe(tmp_path, text)
    )


def test_pip_keeps_its_cache_outside_the_image(tmp_path: Path) -> None:
    text = "FROM a\nRUN apt-get update\nRUN python3 -m pip install --no-cache-dir \\\n    -r x.txt --no-cache-dir\n"
    mount = "--mount=type=cache,target=/root/.cache/pip"
    expected = f"FROM a\nRUN apt-get update\nRUN {mount} python3 -m pip install \\\n    -r x.txt\n"
    assert apply("pip-cache-mount", make_recipe(tmp_path, text)) == expected
    for line, reason in (
        ("USER me", "installs as me"),
        ("ENV PIP_NO_CACHE_DIR=1", "switches pip's cache off"),
        ("ENV PIP_CACHE_DIR=/c", "has its own cache"),
    ):
        assert reason in apply("pip-cache-mount", make_recipe(tmp_path, f"FROM a\n{line}\nRUN pip install x\n"))
    purged = make_recipe(tmp_path, "FROM a\nRUN pip install x && pip cache purge\n")
    assert "empties pip's cache" in apply("pip-cache-mount", purged)


def test_what_git_ignores_leaves_the_context(tmp_path: Path) -> None:
    for path in (".git/HEAD", "data/a.bin", "new/module.py", "ops/__pycache__/a.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    ignored = frozenset(("data",))
    answer = FIXES["dockerignore"].rewrite(make_recipe(tmp_path, "FROM a\nCOPY . /w\n", ignore="*.md", ignored=ignored))
    assert not isinstance(answer, Skipped)
    assert answer.recipe.ignore_text == "*.md\n/.git\n/data\n/ops/__pycache__\n"
    assert "new/module.py" in answer.recipe.admitted
    named = make_recipe(tmp_path, "FROM a\nCOPY . /w\nRUN ls /w/data /w/.git /w/__pycache__\n", ignored=ignored)
    assert "no copied folder" in apply("dockerignore", named)


def test_an_edit_repeats_the_steps_behind_its_copy(tmp_path: Path) -> None:
    text = (
        "FROM a AS b\nCOPY ops /o\nRUN make -C /o\nFROM c\nCOPY requirements.txt /w/\nRUN pip install x\n"
        "COPY --from=b /o /o\nCOPY *.py /w/\nCMD x\n"
    )
    recipe = make_recipe(tmp_path, text)
    counts = [count_rerun(recipe, one) for one in ("train.py", "ops/csrc/a.c", "requirements.txt", None)]
    assert counts == [2, 5, 5, len(recipe.steps)]
    assert recipe.bases == ("a", "c")
    assert dict(recipe.stages[1][4].files) == {"/w/train.py": "train.py"}


def test_arguments_of_the_build_choose_the_base(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "ARG TAG=1\nARG NAME=a:$TAG\nFROM ${NAME}\n")
    assert recipe.bases == ("a:1",)
    assert replace(recipe, build_args={"TAG": "2"}).bases == ("a:2",)


def test_unneeded_stages_are_not_built(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, "FROM a AS b\nRUN x\nFROM c AS d\nRUN y\nFROM b\nRUN z\n")
    assert [steps[0].stage.index for steps in recipe.stages] == [0, 2]
    assert recipe.bases == ("a",)
