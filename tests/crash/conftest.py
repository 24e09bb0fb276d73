"""Lets the tests of this folder import the parts of the crash program."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
