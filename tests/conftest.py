"""For every test: signals are as in a terminal, also where the tests were started in the background; none is timed,
and what is printed has the width of a pipe."""

import importlib.util
import os
import signal
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control starts `command &` so
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("COLUMNS", None)  # a worker of pytest-xdist sets it, and what is printed would have that width

if importlib.util.find_spec("hypothesis") is not None:  # tests on an accelerator do without
    from hypothesis import settings

    # By default an example that takes 200 ms fails, which other programs decide on a shared machine.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")

LONG_FIRST = tuple(f"tests/{folder}/" for folder in ("end_to_end", "harm", "gpu", "tune", "train", "apply", "zoo"))
"""Folders whose tests start trainings. They begin first, so that no worker is left alone with them at the end."""
SLOW = [
    line.replace("[", "[[]")
    for line in (Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FIRST))
    for item in items:
        if any(fnmatchcase(item.nodeid, pattern) for pattern in SLOW):
            item.add_marker(pytest.mark.slow)
