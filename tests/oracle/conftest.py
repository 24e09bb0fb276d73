"""Make the oracle importable in its test, and in the processes of ranks."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
