"""ZeRO's table of model states."""

import csv
from pathlib import Path

import pytest

import hotloop
from hotloop.core.errors import UsageError
from hotloop.plan.memory import zero_memory

TABLE_1 = {
    # parameters -> ranks -> GB of stages 1, 2 and 3 as arXiv:1910.02054, table 1 prints them
    7.5e9: {
        1: (120, 120, 120),
        4: (52.5, 41.3, 30),
        16: (35.6, 21.6, 7.5),
        64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47),
        1024: (30.1, 15.1, 0.12),
    },
    128e9: {4: (896, 704, 512), 16: (608, 368, 128), 64: (536, 284, 32), 256: (518, 263, 8), 1024: (513, 257, 2)},
    1e12: {
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        64: (4187, 2218, 250),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}


@pytest.mark.parametrize("params", TABLE_1)
def test_the_papers_table_to_its_last_digit(params: float) -> None:
    # The paper rounds some cells and cuts others (41.25 -> 41.3, 4187.5 -> 4187).
    for ranks, cells in TABLE_1[params].items():
        rows = zero_memory(params, ranks)
        assert rows[0].total_bytes == 16 * params
        for row, cell in zip(rows[1:], cells, strict=True):
            last_digit = 10.0 ** -len(str(cell).partition(".")[2])
            assert abs(row.total_bytes / 1e9 - cell) < last_digit, (ranks, row)


def test_parts_add_up_and_optimizers_differ() -> None:
    stage_2 = zero_memory(1e9, 4)[2]
    assert (stage_2.params_bytes, stage_2.gradients_bytes, stage_2.optimizer_bytes) == (2e9, 0.5e9, 3e9)
    totals = [
        zero_memory(1e9, 1, optimizer=name)[0].total_bytes for name in ("adamw", "sgd", "adamw-8bit", "adafactor")
    ]
    assert totals == sorted(totals, reverse=True)
    assert hotloop.zero_memory is zero_memory


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 4), "params = 0"),
        ((True, 4), "params = True"),
        ((1e9, 0), "ranks = 0"),
        ((1e9, 2.5), "ranks = 2.5"),
    ],
)
def test_nonsense_is_named(arguments: tuple[float, int], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        zero_memory(*arguments)
    with pytest.raises(UsageError, match="mixed, fp32"):
        zero_memory(1e9, 1, precision="bf16")


def test_the_cells_are_the_published_rows() -> None:
    published = Path(__file__).parents[2] / "benchmarks" / "published" / "published.tsv"
    with published.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["source"].startswith("ZeRO (") and row["dp"]]
    cells = [row for row in rows if row["metric"] == "model_states_memory"]
    assert len(cells) == 54
    for row in cells:
        stage, value = int(row["sharding"][5]), float(row["value"])
        assert (
            float(row["params"]) not in TABLE_1
            or int(row["dp"]) == 1
            or (TABLE_1[float(row["params"])][int(row["dp"])][stage - 1] == value)
        )
