"""A parquet table of a pipeline training's operations, one row each, -> an OperationTable; by pyarrow.

The columns are those of ByteDance's StragglerAnalysis: ``rank``, ``dp_rank``, ``stage``, ``step``, ``optype``,
``start_ts`` and ``duration`` (seconds), ``mc`` and ``gmc`` (model chunk in the stage and in the model), ``mb_id``
(micro-batch).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hotloop.core.errors import TraceError
from hotloop.core.stragglers import OPERATIONS, OperationTable

SUFFIX = ".parquet"
MAX_ROWS = 50_000_000
MAX_WORKERS_SPAN = 1_000_000
INTEGERS = {
    "step": "step", "rank": "rank", "dp_rank": "dp_rank", "stage": "stage", "mc": "chunk", "gmc": "model_chunk",
    "mb_id": "micro_batch",
}  # fmt: skip
SECONDS = {"start_ts": "start_s", "duration": "duration_s"}


def is_operation_table(path: str) -> bool:
    """Whether a name is that of such a table."""
    return path.lower().endswith(SUFFIX)


def read_operation_table(path: Path) -> OperationTable:
    """Read the whole table. Raises TraceError in one line for a file that is none, or that states the impossible."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TraceError(f"{path} needs pyarrow, which is not installed; run: pip install 'hotloop[data]'") from None
    if not path.is_file():
        raise TraceError(f"{path} does not exist; give a table of operations (.parquet)")
    wanted = [*INTEGERS, *SECONDS, "optype"]
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = [name for name in wanted if name not in file.schema_arrow.names]
            if missing:
                raise TraceError(
                    f"{path} has no column {missing[0]!r}; docs/stragglers.md lists the columns of such a table"
                )
            if not 0 < file.metadata.num_rows <= MAX_ROWS:
                raise TraceError(f"{path} has {file.metadata.num_rows:,} rows; 1 to {MAX_ROWS:,} can be read")
            table = file.read(columns=wanted)
        kinds = table["optype"].cast(pyarrow.string()).combine_chunks().dictionary_encode()
        integers = {name: _column(path, table, name, pyarrow.int64()) for name in INTEGERS}
        seconds = {name: _column(path, table, name, pyarrow.float64()) for name in SECONDS}
    except (pyarrow.ArrowException, OSError) as error:
        raise TraceError(f"{path} cannot be read as a table of operations: {str(error).splitlines()[0]}") from error
    names = kinds.dictionary.to_pylist()
    unknown = [name for name in names if name not in OPERATIONS]
    if unknown or kinds.null_count:
        raise TraceError(f"{path}: unknown optype {(unknown or [None])[0]!r}; known: {', '.join(OPERATIONS)}")
    places = np.array([OPERATIONS.index(name) for name in names], dtype=np.int64)
    for name, values in seconds.items():
        if not np.isfinite(values).all() or (name == "duration" and values.min() < 0):
            raise TraceError(f"{path}: column {name!r} holds a time that is not finite or negative")
    for name in ("dp_rank", "stage"):
        if not 0 <= integers[name].min() <= integers[name].max() < MAX_WORKERS_SPAN:
            raise TraceError(
                f"{path}: column {name!r} holds {integers[name].min()}; 0 to {MAX_WORKERS_SPAN - 1} is possible"
            )
    return OperationTable(
        source=path.name,
        kind=places[kinds.indices.to_numpy()],
        **{field: integers[name] for name, field in INTEGERS.items()},
        **{field: seconds[name] for name, field in SECONDS.items()},
    )


def _column(path: Path, table: Any, name: str, kind: Any) -> Any:
    column = table[name]
    if column.null_count:
        raise TraceError(f"{path}: column {name!r} has {column.null_count:,} missing values; every row needs one")
    return column.cast(kind).to_numpy()
