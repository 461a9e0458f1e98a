"""ZeRO's table of model states."""

import csv
from pathlib import Path

import hotloop
from hotloop.ahead.plan.memory import zero_memory

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published" / "published.tsv"


def test_the_papers_table_to_its_last_digit() -> None:
    """arXiv:1910.02054, table 1. It rounds some cells and cuts others (41.25 -> 41.3, 4187.5 -> 4187)."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["metric"] == "model_states_memory"]
    cells = [row for row in rows if row["source"].startswith("ZeRO (")]
    assert len(cells) == 54
    for row in cells:
        ours = zero_memory(float(row["params"]), int(row["dp"]))[int(row["sharding"][5])].total_bytes
        last_digit = 10.0 ** -len(row["value"].partition(".")[2])
        assert abs(ours / 1e9 - float(row["value"])) < last_digit, row


def test_parts_add_up_and_optimizers_differ() -> None:
    plain, _, stage_2, _ = zero_memory(1e9, 4)
    assert plain.total_bytes == 16e9
    assert (stage_2.params_bytes, stage_2.gradients_bytes, stage_2.optimizer_bytes) == (2e9, 0.5e9, 3e9)
    totals = [
        zero_memory(1e9, 1, optimizer=name)[0].total_bytes for name in ("adamw", "sgd", "adamw-8bit", "adafactor")
    ]
    assert totals == sorted(totals, reverse=True)
    assert hotloop.zero_memory is zero_memory
