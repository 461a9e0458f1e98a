"""What ranks keep of compressed gradients survives kill -9: a resumed training ends with the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("compressed_ranks.py")
METHODS = ("topk", "powersgd")


def launch(folder: Path) -> tuple[int, int]:
    """Start both ranks; their exit codes. A rank whose peer was killed ends by itself."""
    store = folder / f"port-{len(list(folder.glob('port-*')))}"
    store.touch()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, str(SCRIPT), str(folder), str(folder / "found.json"), str(store)]
    ranks = [
        subprocess.Popen(words, env={**environment, "RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.DEVNULL)
        for rank in ("0", "1")
    ]
    try:
        first, second = (process.wait(120) for process in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return first, second


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compressed")
    for _ in METHODS:
        first, second = launch(folder)
        assert second == -9
        assert first != 0
    assert launch(folder) == (0, 0)
    result: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return result


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_training_ends_with_the_bits_of_an_uninterrupted_one(found: dict[str, Any], name: str) -> None:
    whole, killed = found["whole"][name], found["killed"][name]
    said = ["applied", "applied"] if name == "topk" else ["applied"]  # top-k takes over the optimizer's momentum
    assert whole["applied"] == killed["applied"] == said
    assert (whole["resumed"], killed["resumed"]) == (False, True)
    assert len(whole["losses"]) == 16
    assert killed["losses"] == whole["losses"]
    assert killed["bits"] == whole["bits"]
