"""Source patches: five kinds of scripts, exact text elsewhere, and everything that must be refused."""

from __future__ import annotations

import ast
import difflib
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop.change.apply import TECHNIQUES
from hotloop.change.tune import patch as patches
from hotloop.change.tune.patch import Patch, apply_patch
from hotloop.core.applied import AppliedTechnique
from hotloop.core.errors import UsageError
from hotloop.core.findings import Value, Where
from tests.tune.records import applied

ZOO = Path(__file__).resolve().parents[1] / "zoo" / "scripts"


def Record(
    technique: str,
    where: Where | None = None,
    target: str | None = None,
    values: Mapping[str, Value] | None = None,
    **more: Any,
) -> AppliedTechnique:
    return applied(technique, numerics=None, where=where, target=target, values=values, **more)


def make_patch(records: list[AppliedTechnique], root: Path, *, script: Path | None = None) -> Patch:
    return patches.make_patch(records, root, TECHNIQUES, script=script)


def patch_source(
    text: str, records: list[AppliedTechnique]
) -> tuple[str, tuple[patches.LeftOut, ...], tuple[str, ...]]:
    return patches.patch_source(text, records, TECHNIQUES)


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


AUTOCAST: dict[str, Value] = {"device": "cpu"}
THREADS: dict[str, Value] = {"torch_threads": 2}
LOADER: dict[str, Value] = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}
FUSED: dict[str, Value] = {"fused": True}


def zoo_lm(folder: Path) -> tuple[Path, list[AppliedTechnique]]:
    path = write(folder, (ZOO / "lm_float32.py").read_text())
    forward = at(path, "F.cross_entropy")
    return path, [
        Record("loader-workers", at(path, "loader = DataLoader("), "DataLoader", LOADER),
        Record("pinned-memory", at(path, "loader = DataLoader("), "DataLoader", {"pin_memory": True}),
        Record("bf16-autocast", forward, "Tagger", AUTOCAST),
        Record("compile-model", forward, "Tagger"),
        Record("matmul-precision", None, "the process", {"precision": "high"}),
        Record("thread-count", None, "the process", THREADS),
    ]


def zoo_ddp(folder: Path) -> tuple[Path, list[AppliedTechnique]]:
    path = write(folder, (ZOO / "ddp_plain.py").read_text(), "with space.py")
    ddp = at(path, "model = DistributedDataParallel(")
    return path, [
        Record("ddp-buckets", ddp, "DistributedDataParallel", {"bucket_cap_mb": 50.0}),
        Record("ddp-settings", ddp, "DistributedDataParallel", {"static_graph": True, "gradient_as_bucket_view": True}),
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


def nano(folder: Path) -> tuple[Path, list[AppliedTechnique]]:
    path = write(folder, NANO)
    return path, [
        Record("fused-optimizer", at(path, "AdamW("), "AdamW", FUSED),
        Record("loader-workers", at(path, "Loader("), "DataLoader", LOADER),
        Record("bf16-autocast", at(path, "model(X, Y)"), "GPT", AUTOCAST),
        Record("compile-model", at(path, "model(X, Y)"), "GPT", {"mode": "default"}),
    ]


def crlf(folder: Path) -> tuple[Path, list[AppliedTechnique]]:
    text = (ZOO / "lm_float32.py").read_text().replace("fused=True", "").replace("\n", "\r\n").removesuffix("\r\n")
    path = write(folder, text, "crlf.py")
    return path, [
        Record("fused-optimizer", at(path, "AdamW("), "AdamW", FUSED),
        Record("bf16-autocast", at(path, "F.cross_entropy"), "Tagger", AUTOCAST),
        Record("matmul-precision", None, "the process", {"precision": "high"}),
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


def tabs(folder: Path) -> tuple[Path, list[AppliedTechnique]]:
    path = write(folder, TABS)
    return path, [
        Record("fused-optimizer", at(path, "SGD("), "SGD", FUSED),
        Record("bf16-autocast", at(path, "out = self.net("), "Net", AUTOCAST),
    ]


def test_an_overridden_call_gets_the_number_and_no_line_is_added(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\nTHREADS = 16\ntorch.set_num_threads(THREADS)\n")
    over = Record("thread-count", at(path, "set_num"), "set_num_threads", THREADS)
    records = [Record("thread-count", None, "the process", THREADS), replace(over, explicit="s(16)")]
    patch = make_patch(records, tmp_path, script=path)
    assert patch.files[0].after == b"import torch\nTHREADS = 16\ntorch.set_num_threads(2)\n"
    path.write_text(path.read_text() + "def init(worker):\n    torch.set_num_threads(THREADS)\n")
    assert "itself (line 5)" in make_patch(records, tmp_path, script=path).left_out[0].why


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


def refused(text: str, record: AppliedTechnique) -> str:
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
        ("opt = AdamW(p, fused=use_fused)", "fused-optimizer", "AdamW", "the script sets fused=use_fused"),
        ("a, b = AdamW(p), AdamW(q)", "fused-optimizer", "AdamW", "2 calls of AdamW"),
        ("l = DataLoader(d, 1, True, None, None, 4)", "loader-workers", "DataLoader", "by position"),
        ("l = DataLoader(d, num_workers=args.n)", "loader-workers", "DataLoader", "num_workers=args.n"),
        ("loss = fn(model(x))", "bf16-autocast", "Net", "2 calls"),
        ("loss = F.mse(model(x), f.y(z)) if a else 0", "bf16-autocast", "Net", "condition"),
        ("out = model(x); y = 1", "bf16-autocast", "Net", "simple statement"),
        ("out = model(F.norm(x))", "bf16-autocast", "Net", "F.norm() in the arguments"),
        ("out = model(x)\nz = out.logits", "bf16-autocast", "Net", "may not be a plain tensor"),
        ("out = model(x)\nz = out['loss']", "bf16-autocast", "Net", "may not be a plain tensor"),
        ("loss = F.mse(F.pad(y), model(x))", "bf16-autocast", "Net", "evaluated before"),
        ("out[0] = model(x)", "bf16-autocast", "Net", "plain names"),
        ("out = model('''a\nb''')", "bf16-autocast", "Net", "simple statement"),
        ("out = model(x)", "compile-model", "Net", "not built as Net"),
        ("if a: out = model(x)", "bf16-autocast", "Net", "simple statement"),
        ("x = 1", "no-sync-accumulation", "DDP", "structure of the loop"),
        ("x = 1", "cuda-graphs", "Net", "cannot be written in the source"),
        ("def f(:", "fused-optimizer", "AdamW", "cannot be parsed"),
    ],
)
def test_what_is_not_understood_is_left_out(text: str, technique: str, target: str, why: str) -> None:
    values = {"bf16-autocast": AUTOCAST, "fused-optimizer": FUSED}.get(technique, LOADER)
    for ending in ("\n", ""):
        whole = f"import torch; import torch.nn.functional as F\n{text}{ending}"
        assert why in refused(whole, Record(technique, line(2), target, values))


HEAD = """import torch
import torch.nn.functional as F
from torch import nn
criterion = nn.CrossEntropyLoss().to(device)
"""


@pytest.mark.parametrize(
    "text",
    [
        "loss = model(**batch).loss",
        "loss = model(x)[0]",
        "out = model(x)\nloss = out[0]",
        "out = model(x)\nloss = out[-1]",
        "loss_dict = model(images, targets)\nloss = sum(one for one in loss_dict.values())",
        "loss = matcher(*model(samples))",
        "out = model(x)\nlogits, extra = out",
        "out = model(x)\nloss = criterion(**out)",
        "loss = model(x).log_prob(action)",
    ],
)
def test_an_output_that_may_be_no_tensor_is_not_cast(text: str) -> None:
    number = HEAD.count("\n") + 1
    place = Where(file="t.py", line=number, function="main")
    why = refused(HEAD + text + "\n", Record("bf16-autocast", place, "Net", AUTOCAST))
    assert "tensor" in why or "calls" in why, why


@pytest.mark.parametrize(
    "text",
    [
        "out = model(x)\nloss = criterion(out, y)",
        "out = model(x)\nloss = F.cross_entropy(out[:, -1], y)",
        "box, kind = model(x)\nloss = box.mean() + kind",
        "out = model(x)\nprint(len(out))\nloss = (out - y).square().mean()",
        "out = model(x)\nseen.append(out)\nloss = torch.mean(out)",
        "loss = model(x, y) / 4",
        "loss = -model(x).log_softmax(-1)[:, 0].mean()",
    ],
)
def test_an_output_that_is_used_as_a_tensor_is_cast(text: str) -> None:
    number = HEAD.count("\n") + 1
    place = Where(file="t.py", line=number, function="main")
    changed, left_out, used = patch_source(HEAD + text + "\n", [Record("bf16-autocast", place, "Net", AUTOCAST)])
    assert (used, left_out) == (("bf16-autocast",), ())
    assert ".float()" in changed


NET = "class Net(nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.mark.parametrize(
    ("text", "target", "settings", "why"),
    [
        ("model = nn.Sequential(a, b)\nmodel(x)", "Sequential", {}, "torch's own"),
        ("class Deep(nn.Sequential):\n    pass\nmodel = Deep()\nmodel(x)", "Deep", {}, "torch's own"),
        (NET + "if a:\n    model = Net()\nelse:\n    model = Other()\nmodel(x)", "Net", {}, "another block"),
        (NET + "model = Net()\nif a:\n    model = wrap(model)\nmodel = model.to(d)\nmodel(x)", "Net", {}, "block"),
        (NET + "model = Net()\nmodel(x)", "Net", {"blocks": 3}, "compiled separately"),
    ],
)
def test_a_model_that_would_not_be_compiled_as_it_was_is_left(
    text: str, target: str, settings: dict[str, Value], why: str
) -> None:
    whole = f"import torch\nfrom torch import nn\n{text}\n"
    place = line(whole.count("\n"))
    assert why in refused(whole, Record("compile-model", place, target, settings))


def test_what_was_done_to_the_process_last_holds(tmp_path: Path) -> None:
    path = write(tmp_path, "import torch\n")
    first = Record("matmul-precision", None, "the process", {"precision": "high"})
    second = Record("matmul-precision", line(9), "Net", {"precision": "medium"})
    patch = make_patch([first, second], tmp_path, script=path)
    assert "medium" in patch.diff
    assert "'high'" not in patch.diff
    assert '"high"' not in patch.diff
    back = Record("matmul-precision", line(9), "Net", detail="no TF32 units; taken back", status="not applicable")
    patch = make_patch([first, back], tmp_path, script=path)


LOADS_NICELY: dict[str, Value] = {**LOADER, "start_method": "fork", "niceness": 19}
NICE = (
    "l = DataLoader(d, num_workers=2, prefetch_factor=4, persistent_workers=True, worker_init_fn=lambda _: os.nice(19))"
)
PLAIN_LOADER = "l = DataLoader(d)"


@pytest.mark.parametrize(
    ("module", "text", "technique", "target", "values", "after"),
    [
        (
            "torch",
            "m = DistributedDataParallel(net, find_unused_parameters=True)",
            "ddp-settings",
            "DistributedDataParallel",
            {"gradient_as_bucket_view": True},
            "m = DistributedDataParallel(net, find_unused_parameters=True, gradient_as_bucket_view=True)",
        ),
        # torch takes one form of an optimizer
        (
            "torch",
            "o = Adam(p, foreach=True)",
            "fused-optimizer",
            "Adam",
            FUSED,
            "o = Adam(p, foreach=False, fused=True)",
        ),
        (
            "torch",
            "o = Adam(p, foreach=None)",
            "fused-optimizer",
            "Adam",
            FUSED,
            "o = Adam(p, foreach=None, fused=True)",
        ),
        ("torch", "o = Adam(p, foreach=chosen)", "fused-optimizer", "Adam", FUSED, "the script sets foreach=chosen"),
        ("torch", "o = Adam(p)", "fused-optimizer", "Adam", {}, "was not recorded"),  # from before values were kept
        ("os", PLAIN_LOADER, "loader-workers", "DataLoader", LOADS_NICELY, NICE),
        ("sys", PLAIN_LOADER, "loader-workers", "DataLoader", LOADS_NICELY, "worker_init_fn"),
        ("os as o", PLAIN_LOADER, "loader-workers", "DataLoader", LOADS_NICELY, "worker_init_fn"),
        (
            "os",
            PLAIN_LOADER,
            "loader-workers",
            "DataLoader",
            {**LOADS_NICELY, "start_method": "spawn"},
            "worker_init_fn",
        ),
        (
            "os",
            "l = DataLoader(d, worker_init_fn=seed)",
            "loader-workers",
            "DataLoader",
            LOADS_NICELY,
            "the script sets worker_init_fn=seed",
        ),
        ("torch", "torch.set_num_threads(2)", "thread-count", "the process", {"torch_threads": 4}, "itself (line 2)"),
    ],
)
def test_a_line_becomes_another_or_says_why_not(
    module: str, text: str, technique: str, target: str, values: dict[str, Value], after: str
) -> None:
    place = None if technique == "thread-count" else line(2)
    changed, left_out, used = patch_source(f"import {module}\n{text}\n", [Record(technique, place, target, values)])
    if used:
        assert changed == f"import {module}\n{after}\n"
    else:
        assert after in left_out[0].why
        assert changed == f"import {module}\n{text}\n"


def test_two_objects_of_one_line_that_were_changed_unlike_leave_it() -> None:
    text = "import torch\nl = DataLoader(d)\n"
    records = [Record("loader-workers", line(2), "DataLoader", {"num_workers": count}) for count in (2, 3, 2)]
    changed, left_out, used = patch_source(text, records)
    assert (changed, used, len(left_out)) == (text, (), 3)


def test_a_line_that_also_made_what_was_left_alone_stays() -> None:
    text = "import torch\nl = DataLoader(d)\n"
    other = Record("loader-workers", line(2), "DataLoader", detail="an iterable data set", status="not applicable")
    changed, left_out, _ = patch_source(text, [Record("loader-workers", line(2), "DataLoader", LOADER), other])
    assert (changed, len(left_out)) == (text, 1)


def test_libraries_and_files_elsewhere_are_never_changed(tmp_path: Path) -> None:
    root = tmp_path / "work"
    inside = root / "site-packages" / "lib"
    inside.mkdir(parents=True)
    text = "import torch\nopt = torch.optim.AdamW(p)\n"
    paths = [write(inside, text), write(tmp_path, text, "other.py")]
    (root / "link.py").symlink_to(paths[1])
    records = [Record("fused-optimizer", at(path, "AdamW"), "AdamW", FUSED) for path in [*paths, root / "link.py"]]
    patch = make_patch(records, root)
    assert (patch.diff, patch.files) == ("", ())
    assert [("library" in one.why, "not below" in one.why) for one in patch.left_out].count((False, False)) == 0
    assert len(patch.left_out) == 3


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


LOADS = """import random

import torch
from torch.utils.data import DataLoader


def main(data):
    loader = DataLoader(
        data,
        batch_size=4,  # a few
        shuffle=True,
    )
    return [batch.tolist() for batch in loader]
"""


def load_record(technique: str, **settings: Value) -> AppliedTechnique:
    where = Where(file="train.py", line=8, function="main")
    return replace(Record(technique, where, "DataLoader"), settings=settings)


def test_a_loader_stands_in_a_call_of_hotloop() -> None:
    changed, left_out, used = patch_source(LOADS, [load_record("group-by-length", mega_batches=20, measure_s=10.0)])
    assert (left_out, used) == ((), ("group-by-length",))
    assert changed == LOADS.replace("DataLoader(\n", "hotloop.group_by_length(DataLoader(\n").replace(
        "    )\n", "    ), mega_batches=20)\n"
    ).replace("import DataLoader\n", "import DataLoader\nimport hotloop\n")


def test_a_second_call_around_the_same_loader_is_left_out() -> None:
    both = [load_record("cache-samples"), load_record("group-by-length", mega_batches=20)]
    changed, left_out, used = patch_source(LOADS, both)
    assert (used, [one.technique for one in left_out]) == (("cache-samples",), ["group-by-length"])
    ast.parse(changed)


def test_another_name_hotloop_in_the_script_refuses_the_call() -> None:
    changed, left_out, _ = patch_source(LOADS + "\nhotloop = 3\n", [load_record("cache-samples")])
    assert "uses the name hotloop" in left_out[0].why
    assert "cache_samples" not in changed
