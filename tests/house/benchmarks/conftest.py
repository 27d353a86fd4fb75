"""Adds the folder of the benchmarks, from which its scripts import, to the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
