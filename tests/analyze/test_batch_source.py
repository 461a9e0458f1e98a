import textwrap

import pytest

from hotloop.evidence.analyze.batch_source import batch_binding, prefetching_lines
from hotloop.evidence.analyze.source import parse_source


def line_of(source: str) -> str | None:
    """The text of the line that makes the batch which the call marked with 'HERE' is given."""
    text = textwrap.dedent(source)
    module = parse_source(text)
    marked = next(i for i, line in enumerate(module.lines, 1) if "HERE" in line)
    found = batch_binding(module, marked)
    return None if found is None else module.lines[found - 1].strip()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            """
            X, Y = get_batch("train")
            for step in range(100):
                for micro in range(4):
                    logits, loss = model(X, Y)  # HERE
                    X, Y = get_batch("train")  # the next one
                    loss.backward()
            """,
            'X, Y = get_batch("train")  # the next one',
        ),
        (
            """
            def main():
                data = load()
                while True:
                    ix = torch.randint(len(data) - 8, (32,))
                    x = torch.stack([data[i : i + 8] for i in ix])
                    x = x.to(device)
                    out = model(x, mask=mask)  # HERE
            """,
            "ix = torch.randint(len(data) - 8, (32,))",
        ),
        (
            """
            for epoch in range(3):
                order = torch.randperm(len(X))
                for i in range(0, len(X), 32):
                    loss = criterion(model(X[order[i : i + 32]]), y)  # HERE
            """,
            "for i in range(0, len(X), 32):",
        ),
        (
            """
            def main():
                while step < 100:
                    for tokens, tags in plan.epoch(epoch):
                        if tokens.numel():
                            logits = model(tokens)  # HERE
            """,
            "for tokens, tags in plan.epoch(epoch):",
        ),
        (
            """
            def step(self):
                x, y = self.sampler.draw(64)
                return self.net(x)  # HERE
            """,
            "x, y = self.sampler.draw(64)",
        ),
    ],
)
def test_a_batch_is_followed_back_to_what_makes_it(source: str, line: str) -> None:
    assert line_of(source) == line


@pytest.mark.parametrize(
    "source",
    [
        "X = load()\nfor epoch in range(9):\n    out = model(X)  # HERE",  # the whole data set, every step
        "for step in range(9):\n    out = model(step)  # HERE",
        "def train_d(self, real):\n    fake = self.G(self.noise(len(real)))\n    self.D(real), self.D(fake)  # HERE",
        "out = model(X)  # HERE",
        "for step in range(9):\n    out = model()  # HERE",
    ],
)
def test_nothing_is_named_where_the_loop_makes_no_batch(source: str) -> None:
    assert line_of(source) is None


def fates_of(source: str) -> dict[str, bool | None]:
    """The lines of a loop around ``loss.backward()`` -> whether they make the next batch."""
    module = parse_source(textwrap.dedent(source))
    at = next(i for i, line in enumerate(module.lines, 1) if "backward()" in line)
    return {module.lines[line - 1].strip(): makes for line, makes in prefetching_lines(module, at).items()}


def test_a_batch_that_is_fetched_behind_the_forward_is_the_next_one() -> None:
    source = """
    X, Y = get_batch("train")
    while True:
        for micro_step in range(4):
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / 4
            accuracy = (logits.argmax(-1) == Y).float().mean().item()
            X, Y = get_batch("train")
            scaler.scale(loss).backward()
    """
    makes = fates_of(source)
    assert [line for line, fate in makes.items() if fate] == ['X, Y = get_batch("train")']
    assert makes["accuracy = (logits.argmax(-1) == Y).float().mean().item()"] is False


def test_what_only_the_next_batch_needs_is_part_of_making_it() -> None:
    source = """
    for step in range(100):
        out = model(x)
        loss = F.cross_entropy(out, y)
        ix = torch.randint(len(data) - 8, (32,))
        x = torch.stack(
            [data[i : i + 8] for i in ix]
        )
        y = torch.stack([data[i + 1 : i + 9] for i in ix])
        loss.backward()
    """
    makes = fates_of(source)
    assert makes["ix = torch.randint(len(data) - 8, (32,))"]
    assert makes["[data[i : i + 8] for i in ix]"]
    assert not makes["loss = F.cross_entropy(out, y)"]


@pytest.mark.parametrize(
    "between",
    [
        "loss = criterion(out, batch_targets(y))",
        "weight = batch_weights(loss)",
        "x = hardest(x, out)",
        "x = sample_batch(loss.detach())",
        "x = play(model)",
        "penalty = regularise(w); loss = loss + penalty",
        "seen = tokenize_samples(out)",
    ],
)
def test_what_needs_the_forward_or_serves_this_step_is_no_next_batch(between: str) -> None:
    source = f"""
    for step in range(100):
        out = model(x)
        loss = criterion(out, y)
        {between}
        (loss * weight).backward()
    """
    assert not any(fates_of(source).values())


def test_a_batch_on_the_line_of_the_loss_is_unknown() -> None:
    source = """
    for step in range(100):
        loss = f(model(x), y); x, y = get_batch()
        loss.backward()
    """
    assert fates_of(source)["loss = f(model(x), y); x, y = get_batch()"] is None
