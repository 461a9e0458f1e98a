"""How often a validation happens is told as the script says it."""

from __future__ import annotations

from pathlib import Path

from .training import run_script

EVERY_EIGHT = """
def evaluate():
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            for _ in range(5):
                model(x)
            sum(range(200_000))
    model.train()

optimizer = torch.optim.SGD(model.parameters())
for step in range(200):
    if step % 8 == 0:
        evaluate()
    optimizer.zero_grad()
    loss_of(model(x), y).backward()
    optimizer.step()
"""


def test_a_validation_on_one_batch_is_told_with_its_interval(tmp_path: Path) -> None:
    ran = run_script(tmp_path, EVERY_EIGHT)
    found = {one["rule"]: one["evidence"] for one in ran.seen["findings"]}
    assert 7.5 < found["frequent-validation"]["steps_per_validation"] < 8.5
