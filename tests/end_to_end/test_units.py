"""Work per step of real trainings whose batches differ in length: what the attention masks of the steady steps hold."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from .training import Ran, run_command, run_script, write_script

TEXT = """
import json, random, sys
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
random.seed(0)
STEPS, SIZE = 40, 16

def lengths_of(order, count=STEPS * SIZE):
    lengths = [random.randint(8, 128) for _ in range(count)]
    if order == "ascending":
        return sorted(lengths)
    groups = [lengths[i : i + 20 * SIZE] for i in range(0, count, 20 * SIZE)]
    return [one for group in groups for one in sorted(group, reverse=True)]

class Texts(torch.utils.data.Dataset):
    def __init__(self, lengths): self.lengths = lengths
    def __len__(self): return len(self.lengths)
    def __getitem__(self, i): return torch.randint(1, 1000, (self.lengths[i],))

def collate(texts):
    ids = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return {"labels": torch.zeros(len(texts), dtype=torch.long), "input_ids": ids, "attention_mask": (ids != 0).long()}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(1000, 16), nn.Linear(16, 10))
    def forward(self, input_ids, attention_mask=None):
        return self.body(input_ids).mean(1)

model = Model()
told = []
def train(batches, accumulate=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = 0
    for i, batch in enumerate(batches):
        held += int(batch["attention_mask"].sum())
        output = model(batch["input_ids"], attention_mask=batch["attention_mask"])
        nn.functional.cross_entropy(output, batch["labels"]).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            told.append(held)
            held = 0
"""
LOADER = "loader = torch.utils.data.DataLoader(Texts(lengths_of({order!r})), batch_size=SIZE, collate_fn=collate)\n"
# In one piece: under torchrun nothing is buffered, and ranks mix pieces.
TELL = "sys.stdout.write(f'HELD {json.dumps(told)}\\n')\n"


def held_by_steady_steps(ran: Ran) -> float:
    """Mean over ranks and steps of what the script itself counted, times the ranks."""
    held = [json.loads(told) for told in re.findall(r"HELD (\[[^]]*\])", ran.stdout)]  # ranks may share a line
    steady = ran.seen["step"]["steady_count"]
    return sum(sum(one[-steady:]) / steady for one in held)


def check_tokens(ran: Ran, rel: float = 0.005) -> None:
    step = ran.seen["step"]
    assert step["unit"] == "token"
    assert step["units_noise_ratio"] < 0.02
    allowed = max(rel, 4 * step["units_noise_ratio"])
    assert step["units_per_step"] == pytest.approx(held_by_steady_steps(ran), rel=allowed)
    ranks = len(ran.seen["ranks"])
    assert step["tokens_per_s"] == pytest.approx(step["units_per_step"] * 1e9 / step["mean_ns"], rel=0.1 * ranks)


def warns_of_drift(ran: Ran) -> bool:
    return any("work per step drifts" in one["message"] for one in ran.seen["health"])


def test_lengths_that_rise_are_counted_to_the_end_and_told(tmp_path: Path) -> None:
    ran = run_script(tmp_path, LOADER.format(order="ascending") + "train(loader)\n" + TELL, "--no-deep", head=TEXT)
    check_tokens(ran)
    drift = ran.seen["step"]["unit_drift"]
    assert drift["last_third"] > 1.4 * drift["first_third"]  # 1.57 where the first half of the run is left out
    assert warns_of_drift(ran)


def test_groups_of_like_length_longest_first(tmp_path: Path) -> None:
    text = LOADER.format(order="grouped") + "train(loader, accumulate=2)\n" + TELL
    check_tokens(run_script(tmp_path, text, "--no-deep", head=TEXT))


def test_batches_made_by_hand(tmp_path: Path) -> None:
    text = """
    texts = Texts(lengths_of("ascending"))
    train(collate([texts[i * SIZE + k] for k in range(SIZE)]) for i in range(STEPS))
    """
    check_tokens(run_script(tmp_path, textwrap.dedent(text) + TELL, "--no-deep", head=TEXT))


def test_two_ranks_with_other_lengths_add_up(tmp_path: Path) -> None:
    text = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    lengths = [8 * (1 + i // SIZE % 4) if dist.get_rank() else 8 for i in range(STEPS * SIZE)]  # a period of 4 steps
    train(torch.utils.data.DataLoader(Texts(lengths), batch_size=SIZE, collate_fn=collate))
    dist.destroy_process_group()
    """
    script = write_script(tmp_path, textwrap.dedent(text) + TELL, head=TEXT)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    check_tokens(
        run_command(tmp_path, *torchrun, script.name, options=("--no-deep",)), rel=0.06
    )  # each rank has steady steps of its own
