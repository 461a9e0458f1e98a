"""Makes the zoo's programs and the benchmarks importable: their modules import each other as siblings."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "benchmarks")]
