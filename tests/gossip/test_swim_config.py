import re
from typing import Any

import pytest

from gossip.swim_config import SwimConfig


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"probe_timeout_s": 1.0}, "need 0 < probe_timeout_s < probe_interval_s < inf, got 1.0 and 1.0"),
        ({"probe_timeout_s": 0.0}, "need 0 < probe_timeout_s < probe_interval_s < inf, got 0.0 and 1.0"),
        ({"probe_interval_s": float("inf")}, "got 0.3 and inf"),
        ({"gossip_interval_s": 0.0}, "gossip_interval_s must be positive and finite, is 0.0"),
        ({"tombstone_s": float("nan")}, "tombstone_s must be positive and finite, is nan"),
        ({"claims_per_message": 0}, "claims_per_message must be at least 1, is 0"),
        ({"suspicion_mult": -1.0}, "suspicion_mult must be finite and not negative, is -1.0"),
        ({"num_indirect": -1}, "num_indirect must be finite and not negative, is -1"),
        ({"hold_down_s": 700.0}, "need hold_down_s <= hold_down_max_s, got 700.0 and 600.0"),
    ],
)
def test_a_config_that_cannot_work_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SwimConfig(**config)


def test_plain_swim_is_a_config() -> None:
    SwimConfig(lifeguard=False, suspicion_mult=0.0, num_indirect=0)
