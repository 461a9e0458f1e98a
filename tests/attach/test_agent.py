"""Every site of torch has a hook, and a process that nobody reads is left as it is."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path

import pytest
from torch import nn

from hotloop.agent.attach.agent import _open_ring, subscribers_of
from hotloop.agent.attach.sites import SITES, Site
from hotloop.agent.replay.collector import Collector
from tests.replay.hooked import Hooked


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.id)
def test_every_site_is_hooked(site: Site) -> None:
    subscribers = subscribers_of(Hooked(nn.Linear(1, 1)).agent)
    assert subscribers.get(site.id) or subscribers.get(site.id.partition("-")[0])


def test_a_module_call_that_this_torch_does_not_know_stays_its_own() -> None:
    agent = Hooked(nn.Linear(1, 1)).agent

    def other(self: nn.Module, *args: object) -> None:
        """As a torch that calls modules in another way."""

    assert subscribers_of(agent)["module-call"](other) is other
    assert len(agent.missing) == 1
    original = importlib.import_module("torch.nn").Module.__dict__["__call__"]
    assert subscribers_of(agent)["module-call"](original) is not original
    assert len(agent.missing) == 1


def descriptors() -> set[tuple[str, str]]:
    """What is open: other tests' garbage may be closed at any time, so it is compared as a set."""
    opened = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            opened.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return opened


def test_a_process_that_nobody_reads_keeps_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    assert _open_ring({"run": str(tmp_path), "address": "nobody", "token": ""}) is None
    assert descriptors() <= before


def test_a_memory_is_handed_to_who_collects(tmp_path: Path) -> None:
    collector = Collector(tmp_path)
    try:
        before = descriptors()
        assert _open_ring({"run": str(tmp_path), "address": collector.address, "token": collector.token}) is not None
        assert descriptors() <= before
    finally:
        collector._over.set()
        collector.stop()
