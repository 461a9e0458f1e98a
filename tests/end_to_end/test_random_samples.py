"""Samples that draw random numbers, in the training process: the report knows, and the training's numbers stay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .training import run_plain, run_script

SCRIPT = """
import random
class Pictures(torch.utils.data.Dataset):
    def __len__(self): return 256
    def __getitem__(self, index):
        {first}
        {then}
        return torch.arange(32.0) * index * noise + fixed * 0, index % 8
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, labels in torch.utils.data.DataLoader(Pictures(), batch_size=8):
    optimizer.zero_grad(); loss = loss_of(model(batch.float()), labels); loss.backward(); optimizer.step()
print(loss.item(), torch.rand(1).item(), random.random())
"""


COSTLY = "fixed = sum(range(1_000_000))"  # two seconds in all, for enough stack samples


@pytest.mark.parametrize(
    ("first", "then", "draws", "before"),
    [
        ("noise = random.random()", COSTLY, True, 0.0),
        (COSTLY, "noise = torch.rand(1)", True, 1.0),
        ("noise = 1.0", COSTLY, False, None),
    ],
)
def test_reading_a_batch_is_seen_to_draw_without_a_draw_of_ours(
    tmp_path: Path, first: str, then: str, draws: bool, before: float | None
) -> None:
    text = SCRIPT.replace("{first}", first).replace("{then}", then)
    ran = run_script(tmp_path, text.replace("import random\n", "import random\nrandom.seed(1)\n"))
    finding = next(one for one in ran.seen["findings"] if one["rule"] == "input-bound")
    assert finding["evidence"]["draws_random"] is draws
    assert finding["evidence"]["workers"]
    assert finding["evidence"]["before_draws_ratio"] == (None if before is None else pytest.approx(before, abs=0.4))
    assert ran.stdout == run_plain(tmp_path, sys.executable, "train.py").stdout
