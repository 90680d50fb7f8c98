"""Named scenarios on production cores that determine each message, write, death and proof.

Each passes with all rules. Without the rule that it is about (mutants.py) it breaks an invariant.
"""

from .scenarios_all_dead import ALL_DEAD
from .scenarios_founding import FOUNDING
from .scenarios_heirs import HEIRS
from .scenarios_lags import LAGS
from .scenarios_links import LINKS
from .scenarios_numerics import NUMERICS
from .scenarios_roots import ROOTS
from .scenarios_rows import ROWS
from .scenarios_runs import RUNS
from .scenarios_shares import SHARES
from .scenarios_steps import COUNTEREXAMPLES
from .scenarios_views import STORIES
from .scenarios_who_goes import WHO_GOES

SCENARIOS = {
    **COUNTEREXAMPLES,
    **STORIES,
    **LAGS,
    **LINKS,
    **WHO_GOES,
    **NUMERICS,
    **ROWS,
    **ROOTS,
    **ALL_DEAD,
    **HEIRS,
    **FOUNDING,
    **SHARES,
    **RUNS,
}
