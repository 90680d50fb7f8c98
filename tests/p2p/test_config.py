"""What settings of a peer mean for its loop."""

from pathlib import Path
from typing import Any

from p2p import PeerConfig
from p2p.config import LEAST_ARENA_BYTES
from p2p.memory.arena import available_bytes


def test_an_arena_may_take_a_quarter_of_the_memory_of_all_local_peers_unless_its_size_is_said() -> None:
    def arena_bytes(**given: Any) -> int:
        return PeerConfig(swarm="pond", home=Path("/"), **given).for_loop().arena_bytes

    assert arena_bytes(arena_bytes=0) == 0 and arena_bytes(arena_bytes=1 << 20) == 1 << 20
    alone, quarter = arena_bytes(), available_bytes() // 4
    assert alone == LEAST_ARENA_BYTES or 0.5 < alone / quarter < 2
    assert arena_bytes(local_peers=1 << 20) == LEAST_ARENA_BYTES
