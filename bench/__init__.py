"""Benchmarks of whole runs. `python -m bench.elastic`: what a kill costs. `python -m bench.replay`: same losses?

On a machine without the project's environment, missing packages are taken from .whl, if `make gpu-wheels` has filled
it.
"""

import sys
from pathlib import Path

if (_wheels := Path(__file__).parents[1] / ".whl").is_dir():
    sys.path.append(str(_wheels))
