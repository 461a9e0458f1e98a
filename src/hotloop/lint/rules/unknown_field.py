"""unknown-field: a manifest has a field that its kind does not know."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from hotloop.core.findings import Severity
from hotloop.core.lint import LintFinding, lint_rule
from hotloop.core.manifest_tables import TABLES, known_fields, read_types
from hotloop.lint.manifests import Field, Manifests

KINDS = ("Job", "JobSet", "TrainJob")
Types = Mapping[str, Mapping[str, str]]


@lint_rule("unknown-field", "a manifest has a field that its kind does not know", reads="kubernetes")
def unknown_field(manifests: Manifests) -> Iterator[LintFinding]:
    """## What it does
    Compares the fields of a Job, JobSet or TrainJob, down to its containers, with those of its kind.

    ## Why it costs
    kubectl refuses the object (since 1.27, and with `--validate=strict`), or the field is dropped without a word: a
    `restartPolicy` one level too high, a `nodeSelectors`.

    ## How to tell
    The tables of fields are those of `hotloop launch`, for the version that the file names. `medium` where a known name
    is near or the field belongs to another level, else `low`: a newer version may know it.

    ## What to do
    Write the name that is meant, or indent the field where it belongs. `kubectl apply --dry-run=server` asks the
    cluster.

    ## When it is wrong
    If the cluster's version is newer than the tables.
    """
    for one in manifests.objects:
        kind = one["kind"].text or ""
        types = read_types(TABLES[kind]) if kind in KINDS else None
        if types is None or types["root"]["apiVersion!"] != one["apiVersion"].text:
            continue
        everywhere = {name: owner for owner, fields in types.items() for name in known_fields(fields)}
        for name, field, owner in _find_unknown(one, "@root", types, set()):
            near = difflib.get_close_matches(name, known_fields(types[owner]), n=1, cutoff=0.8)
            elsewhere = everywhere.get(name)
            advice = f"{near[0]}" if near else f"it belongs to: {elsewhere}" if elsewhere else "see kubectl explain"
            yield LintFinding(
                severity=Severity.MEDIUM if near or elsewhere else Severity.LOW,
                line=field.line,
                message=f"{name} is no field of this {kind if owner == 'root' else owner}",
                advice=advice,
            )


def _find_unknown(
    field: Field, kind: str, types: Types, seen: set[tuple[int, str]]
) -> Iterator[tuple[str, Field, str]]:
    """Name, value and type of each field that its type does not know; what an alias repeats is read once."""
    if (id(field.node), kind) in seen:
        return
    seen.add((id(field.node), kind))
    for choice in kind.split(", "):
        if choice.startswith("@") and field.is_mapping:
            known = known_fields(types[choice[1:]])
            for name, value in field.items:
                if name in known:
                    yield from _find_unknown(value, known[name], types, seen)
                elif name != "<<":
                    yield name, value, choice[1:]
        elif choice.startswith("["):
            for one in field.elements:
                yield from _find_unknown(one, choice[1:-1], types, seen)
        elif choice.startswith("{"):
            for _, value in field.items:
                yield from _find_unknown(value, choice[1:-1], types, seen)
