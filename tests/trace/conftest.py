"""Makes the helpers beside these tests importable, and finds the real traces beside the repository."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

REAL_TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real traces; what is in it must not be copied into the project."""
    if not REAL_TRACES.is_dir():
        pytest.skip("the real traces lie beside the repository, in ../shared/traces")
    return REAL_TRACES
