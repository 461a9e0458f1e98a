"""Source patches: five kinds of scripts, exact text elsewhere, and everything that must be refused."""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hotloop.core.errors import UsageError
from hotloop.core.findings import Value, Where
from hotloop.tune.patch import Patch, apply_patch, make_patch, patch_source

ZOO = Path(__file__).resolve().parents[1] / "zoo" / "scripts"


@dataclass(frozen=True)
class Record:
    technique: str
    where: Where | None = None
    target: str | None = None
    detail: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)
    status: str = "applied"


def at(path: Path, text: str, nth: int = 0) -> Where:
    """The place of the nth line that holds ``text``."""
    lines = [n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return Where(file=str(path), line=lines[nth], function="main")


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def check_applies(patch: Patch, root: Path, tool: str) -> None:
    """The diff alone gives the same files as the patch, with a foreign tool."""
    (root / "p.diff").write_bytes(patch.diff.encode())
    word = {"patch": ["patch", "-p1", "--binary", "-i", "p.diff"], "git": ["git", "apply", "p.diff"]}[tool]
    done = subprocess.run(word, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for change in patch.files:
        assert change.path.read_bytes() == change.after
        ast.parse(change.after)


AUTOCAST = "forward under autocast('cpu', bfloat16), outputs in float32"
LOADER = "num_workers=2, prefetch_factor=4, persistent_workers=True"


def zoo_lm(folder: Path) -> tuple[Path, list[Record]]:
    path = write(folder, (ZOO / "lm_float32.py").read_text())
    forward = at(path, "F.cross_entropy")
    return path, [
        Record("loader-workers", at(path, "loader = DataLoader("), "DataLoader", LOADER),
        Record("pinned-memory", at(path, "loader = DataLoader("), "DataLoader", "pin_memory=True"),
        Record("bf16-autocast", forward, "Tagger", AUTOCAST),
        Record("compile-model", forward, "Tagger", "compiled"),
        Record("matmul-precision", None, "the process", "set_float32_matmul_precision('high') in place of 'highest'"),
        Record("thread-count", None, "the process", "set_num_threads(4)", {"threads": None}),
    ]


def zoo_ddp(folder: Path) -> tuple[Path, list[Record]]:
    path = write(folder, (ZOO / "ddp_plain.py").read_text(), "with space.py")
    ddp = at(path, "model = DistributedDataParallel(")
    return path, [
        Record("ddp-buckets", ddp, "DistributedDataParallel", "", {"bucket_cap_mb": 50}),
        Record("ddp-settings", ddp, "DistributedDataParallel", "static_graph=True, gradient_as_bucket_view=True"),
        Record("bf16-autocast", at(path, "loss = F.mse_loss(model(a), b)"), "DistributedDataParallel", AUTOCAST),
    ]


NANO = """# a GPT in the style of small training repositories
import os
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader as Loader

batch_size = 12 # per step
model = GPT(GPTConfig(**model_args))
model.to('cpu')

optimizer = torch.optim.AdamW(
    model.parameters(),
    lr=6e-4,
    betas=(0.9, 0.95) # as in the paper
)
loader = Loader(
    dataset,
    batch_size=batch_size,
    num_workers=0, # keep it simple
    )
for it, (X, Y) in enumerate(loader):
    with ctx:
        logits, loss = model(X, Y)
        loss = loss / 4
    loss.backward()
    optimizer.step(); optimizer.zero_grad(set_to_none=False)
"""


def nano(folder: Path) -> tuple[Path, list[Record]]:
    path = write(folder, NANO)
    return path, [
        Record("fused-optimizer", at(path, "AdamW("), "AdamW", "fused=True for 3 parameters"),
        Record("loader-workers", at(path, "Loader("), "DataLoader", LOADER),
        Record("bf16-autocast", at(path, "model(X, Y)"), "GPT", AUTOCAST),
        Record("zero-grad-to-none", at(path, "zero_grad"), "AdamW", "set_to_none=True for 3 of 3 parameters"),
        Record("compile-model", at(path, "model(X, Y)"), "GPT", "", {"mode": "default"}),
    ]


def crlf(folder: Path) -> tuple[Path, list[Record]]:
    text = (ZOO / "lm_float32.py").read_text().replace("fused=True", "").replace("\n", "\r\n").removesuffix("\r\n")
    path = write(folder, text, "crlf.py")
    return path, [
        Record("fused-optimizer", at(path, "AdamW("), "AdamW"),
        Record("bf16-autocast", at(path, "F.cross_entropy"), "Tagger", AUTOCAST),
        Record("matmul-precision", None, "the process", "", {"precision": "high"}),
    ]


TABS = """import torch
from torch import nn

class Trainer:
\tdef fit(self):
\t\topt = torch.optim.SGD(self.net.parameters(), lr=0.1,)  # plain
\t\tfor x, y in self.data:
\t\t\tout = self.net(
\t\t\t\tx.to("cpu"),  # \N{GREEK SMALL LETTER ALPHA}
\t\t\t)
\t\t\t((out - y) ** 2).mean().backward()
\t\t\topt.step()

Trainer().fit()"""


def tabs(folder: Path) -> tuple[Path, list[Record]]:
    path = write(folder, TABS)
    return path, [
        Record("fused-optimizer", at(path, "SGD("), "SGD"),
        Record("bf16-autocast", at(path, "out = self.net("), "Net", AUTOCAST),
    ]


@pytest.mark.parametrize("tool", ["patch", "git"])
@pytest.mark.parametrize("make", [zoo_lm, zoo_ddp, nano, crlf, tabs])
def test_five_scripts_apply_cleanly(tmp_path: Path, make: Any, tool: str) -> None:
    path, records = make(tmp_path)
    patch = make_patch(records, tmp_path)
    assert patch.left_out == ()
    assert set(patch.files[0].techniques) == {record.technique for record in records}
    check_kept(path.read_bytes().decode(), patch.files[0].after.decode())
    check_applies(patch, tmp_path, tool)


def check_kept(before: str, after: str) -> None:
    """Every character of before is in after, in its order, but for literals that were replaced and one indent."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    gone = "".join(before[a:b] for kind, a, b, _, _ in matcher.get_opcodes() if kind in ("delete", "replace"))
    assert set(gone) <= set("model(xX, Yab)False0"), gone


def test_the_text_of_a_patch(tmp_path: Path) -> None:
    path, records = nano(tmp_path)
    patch = make_patch(records, tmp_path)
    added = [line[1:] for line in patch.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "model.compile(mode='default')",
        "    betas=(0.9, 0.95), # as in the paper",
        "    fused=True,",
        "    num_workers=2, # keep it simple",
        "    prefetch_factor=4,",
        "    persistent_workers=True,",
        '        with torch.autocast("cpu", dtype=torch.bfloat16):',
        "            logits, loss = model(X, Y)",
        "        logits, loss = logits.float(), loss.float()",
        "    optimizer.step(); optimizer.zero_grad(set_to_none=True)",
    ]
    assert patch.diff.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert path.read_bytes() == NANO.encode()


def test_a_call_inside_a_statement_is_hoisted(tmp_path: Path) -> None:
    _, records = zoo_lm(tmp_path)
    text = make_patch(records[2:3], tmp_path).files[0].after.decode()
    assert (
        """            with precision:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    output = model(x)
                loss = F.cross_entropy(output.float().flatten(0, 1), y.flatten())
"""
        in text
    )


def refused(text: str, record: Record) -> str:
    """Why the record is left out of a file that stays as it is."""
    changed, left_out, used = patch_source(text, [record])
    assert (changed, used) == (text, ())
    (one,) = left_out
    return one.why


def line(number: int) -> Where:
    return Where(file="t.py", line=number, function="main")


@pytest.mark.parametrize(
    ("text", "technique", "target", "why"),
    [
        ("opt = AdamW(p, **extra)", "fused-optimizer", "AdamW", "**extra"),
        ("opt = AdamW(*a)", "fused-optimizer", "AdamW", "*a"),
        ("opt = make(p)", "fused-optimizer", "AdamW", "no call of AdamW"),
        ("opt = AdamW(p, fused=use_fused)", "fused-optimizer", "AdamW", "fused=use_fused stands"),
        ("a, b = AdamW(p), AdamW(q)", "fused-optimizer", "AdamW", "2 calls of AdamW"),
        ("l = DataLoader(d, 1, True, None, None, 4)", "loader-workers", "DataLoader", "positional"),
        ("l = DataLoader(d, num_workers=args.n)", "loader-workers", "DataLoader", "num_workers=args.n"),
        ("loss = fn(model(x))", "bf16-autocast", "Net", "2 calls"),
        ("loss = F.mse(model(x), f.y(z)) if a else 0", "bf16-autocast", "Net", "condition"),
        ("out = model(x); y = 1", "bf16-autocast", "Net", "simple statement"),
        ("out = model(F.norm(x))", "bf16-autocast", "Net", "F.norm() in the arguments"),
        ("out = model(x)\nz = out.logits", "bf16-autocast", "Net", "no plain tensor"),
        ("out = model(x)\nz = out['loss']", "bf16-autocast", "Net", "no plain tensor"),
        ("loss = F.mse(F.pad(y), model(x))", "bf16-autocast", "Net", "evaluated before"),
        ("out[0] = model(x)", "bf16-autocast", "Net", "plain names"),
        ("out = model('''a\nb''')", "bf16-autocast", "Net", "simple statement"),
        ("out = model(x)", "compile-model", "Net", "not built as Net"),
        ("if a: out = model(x)", "bf16-autocast", "Net", "simple statement"),
        ("x = 1", "no-sync-accumulation", "DDP", "shape of the loop"),
        ("x = 1", "cuda-graphs", "Net", "no form in the source"),
        ("def f(:", "fused-optimizer", "AdamW", "cannot be parsed"),
    ],
)
def test_what_is_not_understood_is_left_out(text: str, technique: str, target: str, why: str) -> None:
    detail = AUTOCAST if technique == "bf16-autocast" else LOADER
    for ending in ("\n", ""):
        whole = f"import torch; import torch.nn.functional as F\n{text}{ending}"
        assert why in refused(whole, Record(technique, line(2), target, detail))


def test_a_line_that_also_made_what_was_left_alone_stays() -> None:
    text = "import torch\nl = DataLoader(d)\n"
    other = Record("loader-workers", line(2), "DataLoader", "an iterable data set", status="not applicable")
    changed, left_out, _ = patch_source(text, [Record("loader-workers", line(2), "DataLoader", LOADER), other])
    assert changed == text
    assert "left alone (an iterable data set)" in left_out[0].why


def test_lower_priority_is_a_line_of_the_workers() -> None:
    detail = f"{LOADER}, fork, at a lower priority (nice 19); reading and collating draw no random numbers"
    record = Record("loader-workers", line(2), "DataLoader", detail)
    changed, _, used = patch_source("import os\nl = DataLoader(d)\n", [record])
    assert used == ("loader-workers",)
    assert changed.splitlines()[1] == (
        "l = DataLoader(d, num_workers=2, prefetch_factor=4, persistent_workers=True, "
        "worker_init_fn=lambda _: os.nice(19))"
    )
    for text in ("import sys\nl = DataLoader(d)\n", "import os as o\nl = DataLoader(d)\n"):
        assert "worker_init_fn" in refused(text, record)
    taken = "import os\nl = DataLoader(d, worker_init_fn=seed)\n"
    assert "worker_init_fn=seed stands in the script" in refused(taken, record)
    spawned = Record("loader-workers", line(2), "DataLoader", detail.replace("fork", "spawn"))
    assert "worker_init_fn" in refused("import os\nl = DataLoader(d)\n", spawned)


def test_gradients_that_are_not_always_there_are_given_up_by_the_strategy_alone() -> None:
    text = "import torch\nopt.zero_grad(set_to_none=False)\n"
    part = Record("zero-grad-to-none", line(2), "AdamW", "set_to_none=True for 2 of 3 parameters")
    assert "not every parameter" in refused(text, part)


def test_every_form_names_a_technique_that_exists_or_is_announced() -> None:
    from hotloop.apply import TECHNIQUES
    from hotloop.tune import patch

    planned = {"loader-prefetch", "persistent-workers"}
    assert {*patch._PLANS, *patch._FORMS, *patch._LINES} - set(TECHNIQUES) == planned


def test_settings_made_by_hand_stay() -> None:
    record = Record("thread-count", None, "the process", "set_num_threads(4)")
    assert "itself (line 2)" in refused("import torch\ntorch.set_num_threads(2)\n", record)


def test_libraries_and_files_elsewhere_are_never_changed(tmp_path: Path) -> None:
    root = tmp_path / "work"
    inside = root / "site-packages" / "lib"
    inside.mkdir(parents=True)
    text = "import torch\nopt = torch.optim.AdamW(p)\n"
    paths = [write(inside, text), write(tmp_path, text, "other.py")]
    (root / "link.py").symlink_to(paths[1])
    records = [Record("fused-optimizer", at(path, "AdamW"), "AdamW") for path in [*paths, root / "link.py"]]
    patch = make_patch(records, root)
    assert (patch.diff, patch.files) == ("", ())
    assert [("library" in one.why, "not below" in one.why) for one in patch.left_out].count((False, False)) == 0
    assert len(patch.left_out) == 3


def test_nothing_applied_is_an_empty_patch(tmp_path: Path) -> None:
    assert make_patch([], tmp_path) == Patch(diff="", files=(), left_out=())


def test_a_patch_is_written_only_if_no_file_changed_since(tmp_path: Path) -> None:
    path, records = nano(tmp_path)
    path.chmod(0o755)
    patch = make_patch(records, tmp_path)
    path.write_bytes(NANO.encode() + b"# more\n")
    with pytest.raises(UsageError, match="changed since"):
        apply_patch(patch)
    assert path.read_bytes() == NANO.encode() + b"# more\n"
    path.write_bytes(NANO.encode())
    apply_patch(patch)
    assert path.read_bytes() == patch.files[0].after
    assert path.stat().st_mode & 0o777 == 0o755
    assert sorted(p.name for p in tmp_path.iterdir()) == ["train.py"]
