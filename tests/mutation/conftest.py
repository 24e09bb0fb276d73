"""Lets the tests of this folder import the parts of the mutation program."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
