import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.agent.attach import run_folder, watching
from hotloop.core.errors import UsageError

TRAIN = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(800, 16))
loader = torch.utils.data.DataLoader(data, batch_size=16)
{before}
import hotloop
watch = hotloop.watch({arguments})
for (x,) in loader:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
{after}
"""


def start(folder: Path, *, before: str = "", arguments: str = "", after: str = "", prefix: tuple[str, ...] = ()):
    script = folder / "train.py"
    script.write_text(TRAIN.format(before=before, arguments=arguments, after=after))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP_")}
    environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*prefix, sys.executable, str(script)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def runs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / ".hotloop").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One training that is watched twice, after its objects were built, with a secret on its command line."""
    folder = tmp_path_factory.mktemp("watched")
    done = start(
        folder,
        before="sys.orig_argv[1:] = ['train.py', '--api-key', 'abc123']",
        after="print(hotloop.watch('other').folder == watch.folder)\nprint(watch.report().step.count)",
    )
    assert done.returncode == 0, done.stderr
    return folder, done


def test_objects_that_exist_already_are_observed(recorded):
    assert recorded[1].stdout.splitlines()[1] == "50"


def test_the_command_that_shows_the_report_is_printed_at_exit(recorded):
    said = recorded[1].stderr
    assert re.fullmatch(r"hotloop: recorded; to see the report: hotloop report \.hotloop/\d{8}-\d{6}-train\n", said)


def test_under_hotloop_run_it_changes_nothing(tmp_path):
    done = start(
        tmp_path,
        after="print(watch.folder)",
        prefix=(
            sys.executable,
            "-c",
            "from hotloop.cli import main; raise SystemExit(main())",
            "run",
            "-q",
            "--no-probe",
            "--",
        ),
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert Path(done.stdout.strip()) == run
    assert "hotloop: recorded" not in done.stderr


def test_the_ranks_of_one_launcher_share_a_folder(tmp_path):
    launcher = (
        "import os, subprocess, sys\n"
        "ranks = [subprocess.Popen(sys.argv[1:], env=os.environ | {'RANK': str(i), 'LOCAL_RANK': str(i), "
        "'WORLD_SIZE': '2'}) for i in range(2)]\n"
        "raise SystemExit(max(rank.wait() for rank in ranks))\n"
    )
    done = start(tmp_path, prefix=(sys.executable, "-c", launcher))
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert sorted(path.stem.split("-")[-2] for path in (run / "processes").glob("*.hlr")) == ["0", "1"]
    assert done.stderr.count("hotloop: recorded") == 1


def test_a_spawned_process_joins_the_run_of_its_parent(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import hotloop, torch\n"
        "watch = hotloop.watch()\n"
        "def train():\n"
        "    model = torch.nn.Linear(4, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    for _ in range(5):\n"
        "        model(torch.randn(2, 4)).sum().backward(); optimizer.step()\n"
        "if __name__ == '__main__':\n"
        "    child = torch.multiprocessing.get_context('spawn').Process(target=train)\n"
        "    child.start(); child.join(); train()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP_")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path)
    assert len(list((run / "processes").glob("*.hlr"))) == 2


def test_without_training_nothing_is_said_and_without_libraries_the_report_says_so(tmp_path):
    after = (
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'numpy':\n"
        "            raise ImportError('blocked', name='numpy')\n"
        "sys.meta_path.insert(0, Block())\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'numpy']: del sys.modules[name]\n"
        "try:\n"
        "    watch.report()\n"
        "except hotloop.HotloopError as error:\n"
        "    print(error)\n"
    )
    done = start(tmp_path, before="loader = []", after=after)
    assert "this Python has no numpy, which reports need" in done.stdout, done.stderr
    assert "hotloop report" in done.stdout
    assert done.stderr == ""


def test_a_bad_trace_plan_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="wait:warmup:active"):
        watching.begin_watching(None, {"trace": "5"})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_moves_the_recording_elsewhere(tmp_path, monkeypatch):
    (tmp_path / ".hotloop").write_text("a file where the folder would be")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    folder, notes = run_folder.create_run_folder(None, ["python", "train.py"])
    assert folder.parent.parent == tmp_path / "tmp"
    assert "cannot write to" in notes[0]


def test_the_manifest_names_the_command_without_secrets(recorded):
    manifest = json.loads((runs(recorded[0])[0] / "run.json").read_text())
    assert manifest["schema"] == "hotloop.run/1"
    assert manifest["command"][1:] == ["train.py", "--api-key", "***"]
