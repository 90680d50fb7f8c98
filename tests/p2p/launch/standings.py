"""What a peer that waits for its first step reports."""

from p2p.launch.standing import Standing


def standing(peer_id: str = "a" * 16) -> Standing:
    return Standing(
        pid=1,
        peer_id=peer_id,
        swarm="pond",
        done=-1,
        has_begun=False,
        steps=0,
        samples=0,
        view=1,
        needed=3,
        members=((peer_id, 1),),
        reasons=(),
        waits="",
    )
