"""hotloop bench comm: real ranks of gloo, started by itself and by torchrun, and over a link of a known rate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.core.link_fit import COLLECTIVES
from tests.apply.compression.test_bytes import load_links

HOTLOOP = str(Path(sys.executable).with_name("hotloop"))
QUICK = ["--budget", "0.5", "--sizes", "1K,16K", "--python", sys.executable]


def test_two_ranks_of_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "comm.html"
    assert main(["bench", "comm", *QUICK, "--json", "-", "--html", str(page)]) == 0
    found = json.loads(capsys.readouterr().out)
    times, fits, gradients, sending = found["tables"]
    assert found["subject"] == "2 ranks on 1 host"
    assert (found["facts"]["backend"], found["facts"]["device"]) == ("gloo", "cpu")
    assert {row["collective"] for row in times} == set(COLLECTIVES)
    assert all(0 < row["min_ns"] <= row["median_ns"] and row["n"] >= 3 for row in times)
    assert [row["fit"] for row in fits] == list(COLLECTIVES)
    assert (gradients, sending) == ([], [])
    assert page.read_text().count("<table") == 2


def test_under_torchrun_the_first_rank_prints() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*launcher, HOTLOOP, "bench", "comm", *QUICK], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("comm: 2 ranks on 1 host") == 1


def test_a_rank_that_fails_ends_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && exit 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert main(["bench", "comm", *QUICK[:-1], str(python)]) == 2
    assert "the benchmark ended with exit code 3" in capfd.readouterr().err


def test_nccl_without_a_device_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "comm", *QUICK, "--backend", "nccl"]) == 2
    assert "use gloo" in capsys.readouterr().err


def test_the_rate_of_a_shaped_link() -> None:
    links = load_links()
    why = links.why_no_link()
    if why is not None:
        pytest.skip(why)
    command = [HOTLOOP, "bench", "comm", "--budget", "4", "--sizes", "1K,1M", "--json", "-", "--python", sys.executable]
    with links.shaped_link("100mbit") as link:
        run = link.run(command, timeout_s=200)
    assert run.return_codes == (0, 0), run.outputs
    found = json.loads(run.outputs[0][run.outputs[0].index("{") :])
    fit = next(row for row in found["tables"][1] if row["fit"] == "all-reduce")
    # 100 Mbit/s are 12.5 MB/s with the headers; the filter lets 256 KB pass at once.
    assert 6e6 < fit["rate_bytes_per_s"] < 18e6
