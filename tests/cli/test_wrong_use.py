"""Wrong uses of commands: one line that says what is wrong, exit code 2, and nothing on standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hotloop.cli import main

SHAPE = ("--nodes", "2", "--gpus-per-node", "8")
FILES = {
    "train.py": "import torch\n",
    "fits.toml": "[model]\nlayers = 32\nhidden = 4096\nheads = 32\nvocab = 50432\nseq = 2048\n[run]\nmicro_batch = 2\n"
    'global_batch = 1024\n[hardware]\ngpu = "h100-80g-sxm"\ncount = 64\n',
}
WRONG: dict[str, Sequence[tuple[Sequence[str], str]]] = {
    "prove": [
        (["python", "a.py"], "two commands"),
        (["--git", "main", "--", "python", "a.py"], "--git is 'main'"),
        (["--git", "a..b", "--pythons", "a,b", "--", "python", "a.py"], "give only one of them"),
        (["--at-least", "none", "python", "a.py", "--", "python", "b.py"], "--at-least"),
        (["--replay", "train.py"], "train.py"),
    ],
    "bisect": [
        (["a", "b"], "no command"),
        (["a", "--", "python", "a.py"], "give two recorded runs"),
        (["a", "b", "--budget", "1m", "c", "--", "python", "a.py"], "give two recorded runs"),
        (["a", "b", "--budget", "soon", "--", "python", "a.py"], "soon"),
        (["nothing", "b", "--", "python", "train.py"], "nothing"),
        (["--install", "pip install {requirements}", "a", "b", "--", "python", "train.py"], "your own environment"),
        (["--git", "main", "--", "python", "train.py"], "--git is 'main'"),
    ],
    "drill": [
        ([], "no command"),
        (["--grace", "soon", "--", "python", "a.py"], "--grace"),
        (["--checkpoints", ".", "--", "python", "a.py"], "this folder itself"),
        (["--checkpoints", "..", "--", "python", "a.py"], "contains files"),
    ],
    "bench": [
        (["train", "nothing.py:make"], ""),
        (["train", "no-colon"], ""),
        (["scaling"], ""),
        (["scaling", "--ranks", "x", "--", sys.executable, "a.py"], ""),
        (["scaling", "--ranks", "3", "--", sys.executable, "a.py", "{64/ranks}"], ""),
        (["scaling", "--", "/bin/echo", "a.py"], ""),
        (["scaling", "--json", "-", "--", sys.executable, "a.py"], ""),
    ],
    "bench comm": [
        (["--ranks", "1"], "--ranks 1"),
        (["--sizes", "1X"], "'1X' is not a size"),
        (["--sizes", "2"], "is not a size"),
        (["--budget", "0"], "--budget 0"),
        (["--run", "no-such-run"], "no-such-run"),
    ],
    "lint": [
        (["nowhere"], "nowhere: no such file or folder; give the paths of scripts, or a folder that contains them"),
        (["train.py", "--fix", "--diff"], "--fix changes files and --diff does not; give only one of them"),
        (["train.py", "--save-seconds", "0"], "--save-seconds 0: give a number of seconds above 0"),
    ],
    "": [
        (["plan", "fits.toml", "--precision", "fp32"], "--precision belongs to --module"),
        (["plan", "nowhere.toml"], "cannot read nowhere.toml: No such file"),
    ],
    "launch": [
        (("--", "t.py"), "--target is missing: give one of dstack, job"),
        (("--target", "slrm", *SHAPE, "--", "t.py"), "did you mean 'slurm'"),
        (("--target", "slurm", "--nodes", "2", "--", "t.py"), "--gpus-per-node is missing"),
        (("--target", "slurm", "--", "t.py"), "--nodes is missing"),
        (("--target", "slurm", "--nodes", "0", "--gpus-per-node", "8", "--", "t.py"), "--nodes 0: give a number of at"),
        (("--target", "slurm", *SHAPE), "no training command"),
        (("--target", "slurm", *SHAPE, "--", "torchrun", "--nproc-per-node", "4", "t.py"), "a node has 8 GPUs"),
        (("--target", "slurm", *SHAPE, "--save-s", "-1", "--", "t.py"), "--save-s -1"),
        (("--target", "slurm", *SHAPE, "--time", "soon", "--", "t.py"), "--time soon"),
        (("--target", "slurm", *SHAPE, "--cpus", "0", "--", "t.py"), "--cpus 0"),
        (("--target", "job", *SHAPE, "--", "t.py"), "--target job needs --image"),
        (("--target", "job", *SHAPE, "--volume", "runs", "--", "t.py"), "--volume runs"),
        (("--target", "job", *SHAPE, "--shm", "lots", "--", "t.py"), "--shm lots"),
        (("--target", "job", *SHAPE, "--interface", "a b", "--", "t.py"), "--interface a b"),
        (("--target", "slurm", "--plan", "p.toml", "--nodes", "2", "--", "t.py"), "--plan and --nodes"),
        (("--target", "slurm", "--plan", "missing.toml", "--", "t.py"), "cannot read missing.toml"),
        (("--target", "slurm", *SHAPE, "--run", "missing", "--", "t.py"), "missing"),
        (("--target", "slurm", *SHAPE, "--strategy", "missing.toml", "--", "t.py"), "missing.toml"),
    ],
    "doctor": [
        (("--data", "nowhere"), "--data nowhere: no such folder"),
        (("--python", "/no/python"), "--python /no/python: not found"),
        (("--json", "/no/such/folder/x.json"), "the folder /no/such/folder does not exist"),
        (("--zebra",), "unknown option '--zebra'; see hotloop --help"),
    ],
    "run": [
        (["--record", "", "--", "true"], "the URL is empty"),
        (["--record", "a\nb", "--", "true"], "'a\\nb': a URL or folder without line breaks"),
    ],
    "upload": [
        (["last"], "the following arguments are required: URL"),
        (["last", "--wait", "-3", "store"], "--wait -3.0: give a number of seconds, 0 or more"),
        (["--wait", "nan", "last", "store"], "--wait nan: give a number of seconds, 0 or more"),
    ],
    "diff a b": [(("--top", "0"), "0"), (("--workers", "0"), "0"), (("--json", "nowhere/x.json"), "nowhere/x.json")],
    "attach": [(("999999999",), ""), (("no-such-run",), ""), (("2",), "")],
}


@pytest.mark.parametrize(
    ("words", "said"),
    [([*command.split(), *words], said) for command, wrong in WRONG.items() for words, said in wrong],
)
def test_a_wrong_use_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    for name, content in FILES.items():
        Path(name).write_text(content)
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    output, error = capsys.readouterr()
    assert (output, error.count("\n"), error.startswith("hotloop: ")) == ("", 1, True), error
    assert said in error
    assert {path.name for path in Path().iterdir()} - {".hotloop"} == set(FILES)
