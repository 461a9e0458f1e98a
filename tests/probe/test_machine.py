import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hotloop

PROGRAM = Path(hotloop.__file__).parent / "measure" / "probe" / "machine.py"


def run_program(program: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [sys.executable, *words, str(program)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=180,
        check=False,
    )


def read_facts(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def make_torch(folder: Path, text: str) -> str:
    """A folder for PYTHONPATH with a torch of its own; the answer is its path."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)
    return str(folder)


def test_it_tells_the_facts_of_a_real_torch_where_hotloop_is_not_importable(tmp_path: Path) -> None:
    alone = shutil.copy(PROGRAM, tmp_path / "machine.py")
    facts = read_facts(run_program(Path(alone)))
    assert facts["schema"] == "hotloop.machine/1"
    assert facts["torch"]["threads"] == 1
    assert facts["torch"]["version"].startswith("2.")
    assert facts["distributed"]["backends"]["gloo"] is True
    assert facts["affinity_after_torch_count"] <= facts["affinity_count"]


def test_a_missing_torch_is_a_fact_and_the_rest_is_told() -> None:
    facts = read_facts(run_program(PROGRAM, "-S"))
    assert facts["torch"] is None
    assert facts["torch_error"]["missing"] is True
    assert facts["python"].startswith("3.")


def test_a_torch_that_fails_is_told_apart_from_a_missing_one(tmp_path: Path) -> None:
    path = make_torch(tmp_path, "raise ImportError('libcudart.so.13: cannot open')")
    facts = read_facts(run_program(PROGRAM, PYTHONPATH=path))
    assert facts["torch_error"] == {"missing": False, "message": "ImportError: libcudart.so.13: cannot open"}


def test_an_odd_torch_gives_unknowns(tmp_path: Path) -> None:
    path = make_torch(tmp_path, "__version__ = 'odd'\nclass version: pass\nclass cuda: pass\nclass backends: pass\n")
    done = run_program(PROGRAM, PYTHONPATH=path)
    facts = read_facts(done)
    assert facts["torch"]["version"] == "odd"
    assert facts["torch"]["threads"] is None
    assert facts["accelerator"]["kind"] is None


def test_what_is_printed_meanwhile_does_not_spoil_the_answer(tmp_path: Path) -> None:
    path = make_torch(tmp_path, "print('welcome to torch')\nraise RuntimeError('no')")
    done = run_program(PROGRAM, PYTHONPATH=path)
    assert read_facts(done)["torch_error"]["message"] == "RuntimeError: no"
    assert "welcome" in done.stderr
