"""Compares the fields of a YAML or JSON file with a table of known fields: unknown, missing or of another type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from hotloop.core.findings import Severity
from hotloop.core.lint import Confidence, LintFinding
from hotloop.core.manifest_fields import find_field_faults
from hotloop.core.manifest_tables import known_fields, read_types
from hotloop.judge.lint.yaml_fields import Field, read_value

GIVEN = re.compile(r"[$<{]|^[A-Z][A-Z0-9]*_[A-Z0-9_]+$|YOUR|\.\.\.")
"""A value that a template fills in."""
_LENIENT = {"deepspeed": (), "accelerate": ("root",), "lightning": ("root",)}
"""Table of a program that ignores unknown fields -> the types in which it still refuses them."""


def judge_fields(root: Field, table: str, *, is_part: bool = False) -> Iterator[LintFinding]:
    """One finding for each fault; in a file that another file completes (``is_part``), nothing is missing."""
    types = read_types(table)
    for fault in find_field_faults(read_value(root), table):
        field, name = root.at(fault.path), str(fault.path[-1]) if fault.path else ""
        is_given = GIVEN.search(field.text or "") or name.startswith(("<<", "$", "_"))
        is_free = fault.path[:1] in (("envs",), ("secrets",))
        if is_given or is_free or (fault.reason == "missing" and (is_part or field)):
            continue
        near = difflib.get_close_matches(name, known_fields(types.get(fault.owner, {})), n=1, cutoff=0.8)
        owners = [owner for owner, fields in types.items() if fault.owner and name in known_fields(fields)]
        is_sure = bool(near or not fault.owner or (owners and table not in _LENIENT))
        is_refused = fault.owner in _LENIENT.get(table, (fault.owner,))
        yield LintFinding(
            severity=Severity.HIGH if is_sure or is_refused else Severity.LOW,
            line=field.line,
            message=f"{fault.text[:200]}: the file is refused, or the field does nothing",
            advice=near[0]
            if near
            else f"it belongs in: {owners[0]}"
            if owners
            else "see the documentation of the format",
            confidence=Confidence.CERTAIN if is_sure else Confidence.LIKELY,
        )
