"""An accelerate YAML file -> Settings."""

from __future__ import annotations

import re

from hotloop.lint.files import LintFormat, SourceFile, Surroundings
from hotloop.lint.formats.deepspeed import Settings
from hotloop.lint.yaml_fields import read_documents


def parse_accelerate(file: SourceFile, around: Surroundings) -> Settings | None:
    """None for YAML that sets nothing. Raises NotRead."""
    documents = read_documents(file.text)
    return Settings(root=documents[0], table="accelerate") if documents and documents[0].is_mapping else None


ACCELERATE = LintFormat(
    id="accelerate",
    title="accelerate settings",
    may_name=lambda name: name.lower().endswith((".yaml", ".yml")),
    holds=lambda data: bool(re.search(rb"(?m)^(compute_environment|distributed_type):", data)),
    parse=parse_accelerate,
    order=2,
)
