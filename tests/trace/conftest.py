"""Makes the helpers beside these tests importable, and finds the real traces beside the repository."""

import sys
from pathlib import Path

import pytest
from real_traces import TRACES

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real traces; what is in it must not be copied into the project."""
    if not TRACES.is_dir():
        pytest.skip("the real traces lie beside the repository, in ../shared/traces")
    return TRACES
