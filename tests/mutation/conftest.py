"""Make the modules of the mutation program importable in its tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
