"""Training scripts are resolved through methods, attributes, helper functions and the modules beside them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hotloop.judge.lint import lint_paths

from .cases.texts import change

TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader
import torchvision

class Meter:
    def __init__(self):
        self.sum = 0
    def update(self, value):
        self.sum += value

class Trainer:
    def __init__(self, args):
        self.model = torchvision.models.resnet18().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=args.epochs)
        self.criterion = nn.CrossEntropyLoss()
        self.loader = DataLoader(args.data, batch_size=32, shuffle=True, num_workers=4, pin_memory=True)
        self.val_loader = DataLoader(args.valid, batch_size=32, num_workers=4)
        self.args, self.losses, self.meter = args, [], Meter()

    def step(self, x, y):
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = self.criterion(out, y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        for x, y in self.val_loader:
            right = (self.model(x.cuda()).argmax(1) == y.cuda()).sum()
        return right.item()

    def fit(self):
        for epoch in range(self.args.epochs):
            self.model.train()
            for i, (x, y) in enumerate(self.loader):
                loss = self.step(x.cuda(), y.cuda())
                if i % 100 == 0:
                    print(epoch, i, loss.item())
            self.scheduler.step()
            print(self.validate())
"""
DEEP = " " * 16
HEAD = "        self.model.fc = nn.Linear(2, 2).cuda()"
COMPILED = "            self.model = torch.compile(self.model)\n"
LAST = "        return loss.detach()"


def judge(folder: Path, **texts: str) -> set[tuple[str, str]]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    report, _ = lint_paths([str(folder / "train.py")], "0")
    return {(finding.rule, finding.severity.value) for finding in report.findings}


@pytest.mark.parametrize(
    ("old", "new", "rule", "severity"),
    [
        (LAST, f"        self.meter.update(loss)\n{LAST}", "kept-graph", "medium"),
        (LAST, f"        self.losses.append((x, out))\n{LAST}", "kept-graph", "low"),
        (LAST, f"        self.losses.append((x, self.model(x)))\n{LAST}", "kept-graph", "medium"),
        (LAST, f"        self.mean = 0.9 * self.mean + 0.1 * loss\n{LAST}", "kept-graph", "medium"),
        (LAST, f"        print(loss.item())\n{LAST}", "print-each-step", "low"),
        (LAST, f"        torch.save(self.model.state_dict(), 'a.pt')\n{LAST}", "forced-wait-each-step", "high"),
        ("        self.optimizer.zero_grad()\n", "", "missing-zero-grad", "high"),
        ("            self.model.train()\n", "", "eval-mode-kept", "high"),
        ("    @torch.no_grad()\n", "", "gradients-in-validation", "medium"),
        ("        self.model.eval()\n", "", "validation-in-train-mode", "medium"),
        ("self.criterion(out, y)", "self.criterion(out.detach(), y)", "detached-loss", "high"),
        ("self.criterion(out, y)", "self.criterion(y, out)", "activated-loss", "high"),
        ("self.criterion(out, y)", "self.criterion(out.softmax(1), y)", "activated-loss", "medium"),
        (LAST, f"        self.scheduler.step()\n{LAST}", "misused-scheduler", "medium"),
        ("            self.scheduler.step()\n", "", "misused-scheduler", "medium"),
        ("                if i %", f"{DEEP}self.validate()\n                if i %", "repeated-forward", "high"),
        ("        self.criterion =", f"{HEAD}\n        self.criterion =", "stale-optimizer", "high"),
        ("            self.model.train()\n", f"{COMPILED}            self.model.train()\n", "built-in-loop", "high"),
    ],
)  # fmt: skip
def test_a_fault_in_a_class_is_found_where_it_is(old: str, new: str, rule: str, severity: str, tmp_path: Path) -> None:
    assert judge(tmp_path, train=TRAINER) == set()
    assert (rule, severity) in judge(tmp_path, train=change(TRAINER, old, new))


def test_functions_of_modules_beside_a_script_are_followed(tmp_path: Path) -> None:
    head, tail = TRAINER.split("    @torch.no_grad()\n")
    body = "import torch\n\n@torch.no_grad()\ndef validate(model, loader):\n    model.eval()\n"
    main = change(head, "import torchvision", "import torchvision\nfrom helpers import validate")
    main += "    def fit" + change(
        tail.split("    def fit")[1], "self.validate()", "validate(self.model, self.val_loader)"
    )
    silent = change(main, "            self.model.train()\n", "")
    assert judge(tmp_path, train=main, helpers=body) == set()
    assert ("eval-mode-kept", "high") in judge(tmp_path, train=silent, helpers=body)
    assert judge(tmp_path, train=silent, helpers=f"{body}    model.train()\n") == set()


def test_calls_that_lead_to_many_calls_are_followed_in_bounded_time(tmp_path: Path) -> None:
    many = "".join(f"def a{i}(m):\n    m.f()\n" + f"    a{i - 1}(m)\n" * 3 * (i > 0) for i in range(60))
    chain = "".join(f"def f{i}(model):\n    return f{i + 1}(model).step()\n" for i in range(600))
    loop = "for i in range(3):\n    a59(m)\n    loss = f0(model) + y\n    loss.backward()\n    optimizer.step()\n"
    began = time.process_time()
    judge(tmp_path, train=f"import torch\ny = {'+'.join('x' * 900)}\nz = f{'.g()' * 300}\n{many}{chain}{loop}")
    assert time.process_time() - began < 5


def test_a_value_with_many_ways_to_a_parameter_is_followed_once(tmp_path: Path) -> None:
    """Without a memory, 25^5 ways lead from the sum back to the parameter."""
    lines = "".join(f"        v{i + 1} = torch.stack(({f'v{i}, ' * 25}))\n" for i in range(5))
    meter = change(TRAINER, "        self.sum += value", f"        v0 = value\n{lines}        self.sum += v5")
    train = change(meter, LAST, f"        self.meter.update(loss)\n{LAST}")
    assert ("kept-graph", "medium") in judge(tmp_path, train=train)


@pytest.mark.parametrize("sound", sorted((Path(__file__).parent / "sound").glob("*.txt")), ids=lambda path: path.stem)
def test_a_sound_script_has_no_finding_that_counts(sound: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(sound.read_text())
    report, _ = lint_paths([str(script)], "0")
    assert report.unread == ()
    assert [(one.rule, one.line) for one in report.findings if one.severity in ("high", "medium")] == []
