"""What a command was started with reaches a Trainer in the script; what the script chose itself stays."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hotloop.change.apply import offer
from hotloop.change.apply.offer import Offer, offer_choices
from hotloop.core.applied import AppliedTechnique
from hotloop.core.strategy import Choice, Strategy

sys.path.insert(0, str(Path(__file__).parent))
from small import Losses, make_loader, make_trainer

PARTS = Choice(technique="accumulation", settings={"micro_batches": 2})


class Outside:
    """What the attached agent would be told."""

    def __init__(self, *choices: Choice) -> None:
        self.records: list[AppliedTechnique] = []
        self.given_up: list[str] = []
        offer_choices(Offer(strategy=Strategy(choices=choices), emit=self.records.append, give_up=self.given_up.extend))

    def told(self) -> list[tuple[str, str, str]]:
        return [(one.technique, one.status, one.detail) for one in self.records]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    kept, python = torch.get_rng_state(), random.getstate()
    yield
    offer._offers.clear()
    torch.set_rng_state(kept)
    random.setstate(python)


def train(**options: Any) -> tuple[Any, dict[int, float]]:
    callback = Losses()
    trainer = make_trainer(callback, dropout=0.0, **options)
    trainer.fit(make_loader(), epochs=1)
    return trainer, callback.losses


def test_a_trainer_takes_over_what_only_it_can_do() -> None:
    _, whole = train()
    outside = Outside(PARTS, Choice(technique="zero-optimizer"))
    trainer, parts = train()
    assert trainer.split == 2
    assert outside.given_up == ["accumulation", "zero-optimizer"]
    assert ("zero-optimizer", "not applicable", "there is only one rank") in outside.told()
    assert ("accumulation", "applied", "each batch of 4 samples in 2 parts") in outside.told()
    assert parts == pytest.approx(whole, rel=1e-4)
    assert len(outside.records) == 2


def test_what_the_script_chose_stays() -> None:
    outside = Outside(PARTS)
    own = Strategy(choices=(Choice(technique="accumulation", settings={"micro_batches": 4}),))
    trainer, _ = train(strategy=own)
    assert trainer.split == 4
    assert [status for _, status, _ in outside.told()] == ["not applicable"]


def test_a_built_optimizer_and_a_batch_that_cannot_be_split_do_not_end_the_training() -> None:
    outside = Outside(Choice(technique="fsdp2"), PARTS)
    callback = Losses()
    trainer = make_trainer(callback)
    loader = [(torch.arange(4), torch.randn(4, 8), torch.randn(4)) for _ in range(3)]
    uneven = [(indices, x, y, torch.zeros(7)) for indices, x, y in loader]
    trainer._step = lambda model, batch: torch.nn.functional.mse_loss(model(batch[1]).squeeze(1), batch[2])
    trainer.fit(uneven, epochs=1)
    told = {technique: (status, detail) for technique, status, detail in outside.told()}
    assert told["fsdp2"][0] == "not applicable"
    assert told["accumulation"][0] == "not applicable"
    assert "cannot be split" in told["accumulation"][1]
    assert trainer.place.step == 3
