"""The protocol with one rule removed at a time: proof that the simulation can fail.

Rules by their names in PROTOCOL.md, and bugs that were found while this was built, put back.
`python -m tests.simulated.mutants` hunts them all.

A name with two rules stands for rules of which either alone is enough. Not here, since nothing needs them for more than
time: the digests in FINISHED, that READY is believed once, that a joiner who is unknown is not considered, that who
followed still does after a second view, that accusers in a cut have no say, that discovery holds down whom G10 and G12
keep out as well (G14), that who was stopped asks for a later view.

Nor what only hosts know: frozen parameters (R30), and where in its script a call is found again (R9). Tests of p2p have
that.
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
