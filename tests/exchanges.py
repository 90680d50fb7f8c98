"""Operations drawn by seeds, among peers that die, join and are stopped; results are compared with plain sums.

`python -m tests.exchanges --seconds 300 --seed 0` runs as many as fit; tests/live/exchanged.py has the invariants.
After all runs, exits with 1 and the seeds of those that failed.
"""

from tests.live.exchanged import Exchanged
from tests.scripts import run_seeds

if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, Exchanged))
