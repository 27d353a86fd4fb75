"""Scripts of ``benchmarks`` import from their folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
