"""The first source with content: whether it holds what the job asks for, before hours are spent on the rest."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.core.errors import UsageError

from .documents import find_columns
from .text_chunks import CutRules, form_of, name_damage, read_lines
from .text_files import TABLES, TextFile, open_plain, unpack


def check_first_file(files: Sequence[TextFile], rules: CutRules) -> None:
    """That the first file with content has the column. Raises UsageError; a corrupt line is left to be counted."""
    file = next((one for one in files if one.size_bytes), None)
    if file is None or file.form == "text":
        return
    with open_plain(file.path) as stored:
        if file.form in TABLES:
            from .table_values import list_columns

            names = list_columns(stored, file)
        else:
            blocks = read_lines(
                unpack(stored, file.packing, file.path), file.path, form_of(file, rules), rules.limit_bytes
            )
            block = next(name_damage(blocks, file.path), None)
            line = next((one for one in block.content.split(b"\n") if one.strip()), b"") if block else b""
            if line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
                raise UsageError(
                    f"{file.path} is a JSON array, not one object a line; convert it: jq -c '.[]' {file.path}"
                )
            names = find_columns(line)
    if names and rules.column not in names:
        raise UsageError(f"{file.path} has no column {rules.column!r}; give --column ({', '.join(names[:20])})")
