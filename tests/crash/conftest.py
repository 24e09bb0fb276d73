"""Lets the tests of this folder import the parts of the crash program."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE))
