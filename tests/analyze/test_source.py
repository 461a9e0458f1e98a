import textwrap
from pathlib import Path

import pytest

from hotloop.core.findings import Where
from hotloop.evidence.analyze.source import (
    MAX_SOURCE_BYTES,
    SourceFiles,
    calls_around,
    parse_source,
)

SCRIPT = textwrap.dedent(
    """\
    import json
    import math
    import numpy as np
    import torch
    from PIL import Image as Picture
    import wandb as tracker

    def clip(model, limit):
        total = 0.0
        for p in model.parameters():
            if p.grad is not None:
                total += float(p.grad.norm()) ** 2
        scale = limit / math.sqrt(total)
        return scale

    @torch.no_grad()
    def score(model, loader):
        model.eval()
        right = 0
        for x, y in loader:
            out = model(x)
            right += (out.argmax(1) == y).sum()
        return right

    def decay(optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.data.mul_(0.99)

    def main(model, loader, optimizer, criterion, path, log, history):
        for step, (x, y) in enumerate(loader):
            x = np.clip(x, 0, 1)
            small = Picture.open(path).resize((8, 8))
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            print("loss", step)
            tracker.log({"loss": step})
            y = torch.log(y)
            history.append(loss.item())
            with open("log.jsonl", "a") as f:
                f.write(json.dumps({"step": step}) + "\\n")
            torch.save(model.state_dict(), "x.pt")
            z = compute(x)
            for name, p in model.named_parameters():
                shape = p.shape
    """
)


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def test_calls_start_with_the_statements_own_and_go_on_with_the_loops():
    module = parse_source(SCRIPT)
    calls = calls_around(module, line_of("tracker.log("))
    assert calls[0] == "tracker.log"
    assert {"loss.backward", "optimizer.step", "print", "model.named_parameters"} <= set(calls)
    inner = calls_around(module, line_of("total += float"))
    assert inner[:2] == ("float", "p.grad.norm")
    assert ("model.parameters" in inner, "math.sqrt" in inner) == (True, False)
    assert calls_around(module, 10_000) == ()


@pytest.mark.parametrize(
    ("content", "line", "text"),
    [
        (SCRIPT.encode(), line_of("loss.backward"), "loss.backward()"),
        (SCRIPT.encode(), 9999, ""),
        (b"root:x:0:0:root:/root:/bin/sh\n", 1, ""),
        (b"x = 1  # caf\xe9\n", 1, "x = 1  # caf\ufffd"),
        (b"(" * 100_000, 1, ""),
        (b"x = '\\d'\n", 1, "x = '\\d'"),  # a warning of the user's source stays silent
        (b"#" * (MAX_SOURCE_BYTES + 1), 1, ""),
    ],
)
def test_the_text_is_the_line_of_a_python_file_as_it_stands(tmp_path, content, line, text):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    assert SourceFiles().text(Where(file=str(path), line=line, function="main")) == text


SAMPLES = textwrap.dedent(
    """\
    def encode(text):
        return [ord(letter) for letter in text]

    def cut(ids):
        start = torch.randint(len(ids), ())
        return ids[start:]

    class Texts:
        def __getitem__(self, index):
            ids = encode(self.texts[index])
            for word in ids:
                self.count(word)
                if random.random() < 0.1:
                    word = 0
            ids = cut(ids)
            return encode(ids)
    """
)


def test_only_what_a_sample_reads_before_its_first_draw_is_the_same_in_every_epoch(tmp_path) -> None:
    (tmp_path / "texts.py").write_text(SAMPLES)
    files = SourceFiles(base=str(tmp_path))

    def is_before(*frames: tuple[int, str]) -> bool:
        main = Where(file="train.py", line=1, function="main")
        return files.is_before_draws((main, *(Where(file="texts.py", line=n, function=name) for n, name in frames)))

    reading = "Texts.__getitem__"
    assert is_before((10, reading))
    assert is_before((10, reading), (2, "encode"))
    assert not is_before((10, reading), (5, "cut"))  # draws on the way
    assert not is_before((12, reading))  # the loop draws further down
    assert not is_before((15, reading), (6, "cut"))
    assert not is_before((16, reading), (2, "encode"))
    assert not is_before((2, "encode"))  # not while a sample was read
    (tmp_path / "texts.py").write_text(SAMPLES.replace("random.random()", "self.seed").replace("torch.randint", "min"))
    assert not SourceFiles(base=str(tmp_path)).is_before_draws((Where(file="texts.py", line=10, function=reading),))


def test_two_methods_of_one_name_in_a_file_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "callbacks.py"
    script.write_text(
        "class Scores:\n    def on_step_end(self):\n        score()\n\n\n"
        "class Saver:\n    def on_step_end(self):\n        if due():\n            save()\n\n"
        "    def close(self):\n        pass\n"
    )
    files = SourceFiles()

    def named(line: int, function: str) -> str:
        return files.qualify(Where(file=str(script), line=line, function=function)).function

    assert [named(3, "on_step_end"), named(9, "on_step_end")] == ["Scores.on_step_end", "Saver.on_step_end"]
    assert named(12, "close") == "close"
    assert named(1, "<module>") == "<module>"
    assert Where(file="f.py", line=1, function="Saver.on_step_end").name == "on_step_end"
