"""Make the program importable in its test."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
