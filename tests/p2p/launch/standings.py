"""Reports of a peer that waits for its first step."""

from p2p.telemetry.snapshot import Identity, Snapshot


def standing(peer_id: str = "a" * 16) -> Snapshot:
    return Snapshot(
        identity=Identity(
            peer_id=peer_id,
            swarm="pond",
            name="0",
            pid=1,
            process_start=1,
            host="f" * 16,
            script="train.py",
            joined_ns=10**9,
            wall_ns=10**18,
        ),
        time_ns=2 * 10**9,
        phase="INSTALLING",
        view=1,
        members=((peer_id, 1),),
        needed=3,
        others=(),
        step=-1,
        has_begun=False,
        reason="",
        events=(),
        resident_bytes=1 << 20,
        dropped={},
    )
