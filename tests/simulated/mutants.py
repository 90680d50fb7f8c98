"""The protocol with one rule removed at a time: proof that the simulation can fail.

Rules by their names in PROTOCOL.md, and earlier bugs, put back. `python -m tests.simulated.mutants` hunts all of them.

A name with two rules stands for rules of which either alone is enough. Left out, since they only save time: the digests
in FINISHED, that READY is believed once, that an unknown joiner is not considered, that an observer still follows after
a second view, that accusers in a cut have no say, that discovery holds down members that G10 and G12 exclude as well
(G14), that a member that was stopped asks for a later view.

Also left out are rules of the hosts: frozen parameters (R30), and where in its script a call is found again (R9). Tests
of p2p cover them. So is the rule that HEAD of a swarm that is behind ends no gap, which hardly any draw of seeds shows:
tests/gossip/test_two_swarms.py does.
"""

import sys

from .mutant import Mutant
from .mutants_agreement import AGREEMENT
from .mutants_discovery import DISCOVERY
from .mutants_founding import FOUNDING
from .mutants_heirs import HEIRS
from .mutants_lags import LAGS
from .mutants_numerics import NUMERICS
from .mutants_open_step import OPEN_STEP
from .mutants_roots import ROOTS
from .mutants_rows import ROWS
from .mutants_runs import RUNS
from .mutants_shares import SHARES
from .mutants_steps import STEPS
from .mutants_views import VIEWS
from .mutants_who_goes import WHO_GOES

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: dict[str, Mutant] = {
    **AGREEMENT,
    **STEPS,
    **OPEN_STEP,
    **VIEWS,
    **DISCOVERY,
    **WHO_GOES,
    **NUMERICS,
    **ROWS,
    **ROOTS,
    **SHARES,
    **LAGS,
    **HEIRS,
    **FOUNDING,
    **RUNS,
}

if __name__ == "__main__":
    from .hunt import main

    sys.exit(main())
