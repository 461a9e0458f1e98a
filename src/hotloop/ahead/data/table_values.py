"""A parquet or Arrow file -> the values of one column as bytes, in blocks of bounded size, with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from hotloop.core.errors import UsageError

from .text_files import TextFile

Values = tuple[bytes | None, ...]


def read_values(stored: BinaryIO, file: TextFile, column: str, block_bytes: int) -> Iterator[tuple[int, Values]]:
    """The first row and the values of each block of ``column``; None is a missing value.

    Raises UsageError if pyarrow or the column is missing, or the file is not such a table.
    """
    try:
        import pyarrow as arrow
    except ImportError:
        raise UsageError(
            f"{file.path} needs pyarrow, which is not installed; run: pip install 'hotloop[data]'"
        ) from None
    read = _read_parquet if file.form == "parquet" else _read_arrow
    row = 0
    try:
        for array in read(stored, file, column, block_bytes):
            for values in _cut_values(arrow, array, block_bytes):
                yield row, values
                row += len(values)
    except arrow.ArrowException as error:
        raise UsageError(f"{file.path} is not a {file.form} file, or is damaged: {error}") from error


def _read_parquet(stored: BinaryIO, file: TextFile, column: str, block_bytes: int) -> Iterator[Any]:
    import pyarrow.parquet

    # Without a buffer size, pyarrow would hold a whole column of a row group, often hundreds of megabytes.
    parquet = pyarrow.parquet.ParquetFile(stored, buffer_size=block_bytes, pre_buffer=False)
    _check_column(parquet.schema_arrow, file, column)
    whole = parquet.metadata
    used_bytes = sum(whole.row_group(one).total_byte_size for one in range(whole.num_row_groups))
    rows = max(1, min(65_536, int(whole.num_rows * block_bytes / max(1, used_bytes))))
    for batch in parquet.iter_batches(batch_size=rows, columns=[column], use_threads=False):
        yield batch.column(column)


def _read_arrow(stored: BinaryIO, file: TextFile, column: str, block_bytes: int) -> Iterator[Any]:
    """Either of Arrow's two layouts: the stream of ``save_to_disk``, or the file with a footer."""
    import pyarrow.ipc

    magic = stored.read(6)
    stored.seek(0)
    reader = pyarrow.ipc.open_file(stored) if magic == b"ARROW1" else pyarrow.ipc.open_stream(stored)
    _check_column(reader.schema, file, column)
    batches = reader if hasattr(reader, "__iter__") else map(reader.get_batch, range(reader.num_record_batches))
    for batch in batches:
        yield batch.column(column)


def _check_column(schema: Any, file: TextFile, column: str) -> None:
    if column not in schema.names:
        raise UsageError(f"{file.path} has no column {column!r}; give --column ({', '.join(schema.names)})")
    if schema.names.count(column) > 1:
        raise UsageError(f"{file.path} has {schema.names.count(column)} columns {column!r}; rename all but one")
    kind = str(schema.field(column).type)
    if not any(word in kind for word in ("string", "utf8", "binary")) or "list" in kind or "struct" in kind:
        raise UsageError(f"{file.path}: column {column!r} holds {kind}, not text; give another --column")


def _cut_values(arrow: Any, array: Any, block_bytes: int) -> Iterator[Values]:
    """The array's values, about ``block_bytes`` at a time."""
    rows = max(1, int(len(array) * block_bytes / max(1, array.nbytes)))
    for start in range(0, len(array), rows):
        part = array.slice(start, rows)
        if arrow.types.is_dictionary(part.type):
            part = part.dictionary_decode()
        # Read as bytes: neither format promises that text is valid UTF-8.
        yield tuple(part.cast(arrow.large_binary()).to_pylist())
