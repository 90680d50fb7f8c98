"""Peers of this process, mostly two, each with a device of its own, and a script in a thread."""

import mmap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from p2p import Peer, PeerConfig
from p2p.config import LoopConfig
from tests.p2p.staging.standin import StandIn, Unordered

TIMEOUT_S = 20.0

REFUSES_EVERY = 3
"""One in this many registrations is refused, so that operations use pinned extents, unpinned ones, and both."""

Script = Callable[[Peer, Any], None]
Make = Callable[[int], Any]
"""Creates a device for a seed: a stand-in, or a GPU with delays drawn by the seed."""


def play(script: Script, seeds: Sequence[int] = (0, 1), make: Make = StandIn, *, device_adds: bool = False) -> None:
    """Run `script` in each peer, with devices of these seeds; raise the first error."""
    errors: list[BaseException] = []
    all_are_done = threading.Barrier(len(seeds))
    with TemporaryDirectory(prefix="shoal") as folder:

        def run(seed: int) -> None:
            device = make(seed)
            device.refuses_every = REFUSES_EVERY
            loop = LoopConfig(device_of=device.device_of, extent_bytes=mmap.PAGESIZE, device_adds=device_adds)
            config = PeerConfig(
                swarm="pond", home=Path(folder) / "home", min_peers=len(seeds), step_timeout_s=TIMEOUT_S, loop=loop
            )
            try:
                with Peer(config) as peer:
                    script(peer, device)
                    all_are_done.wait(TIMEOUT_S)
                if device.pinned:
                    raise Unordered(f"{len(device.pinned)} extents are pinned, and nobody has them any more")
            except threading.BrokenBarrierError:
                pass  # another peer reports the cause
            except BaseException as error:
                errors.append(error)
                all_are_done.abort()

        threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
