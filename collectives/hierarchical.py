"""All-reduce in three steps: within each host, between hosts, within each host.

Hosts exchange as many bytes as single ranks would, however many ranks they have, since links between hosts are slow.
"""

from collections.abc import Callable, Sequence

from collectives.direct import direct_all_reduce
from collectives.schedule import Kind, Schedule, TransferList


def hierarchical_all_reduce(
    rank: int,
    world_size: int,
    hosts: Sequence[int] = (),
    between: Callable[[int, int], Schedule] = direct_all_reduce,
) -> Schedule:
    """Add up within each host, sum over the hosts, distribute the result within each host.

    The bucket has a *lane* for each rank of the largest host. In a lane one rank of each host is the leader: it adds up
    the inputs of its host, and takes part in a schedule of `between`. For h hosts of g ranks, S bytes, and `direct`
    between hosts: four hops; each rank sends 2S(g-1)/g bytes within its host, and each host sends 2S(h-1)/h to others.

    `hosts` has a number for each rank; empty: each has a separate host. `between` is any all-reduce but `one-shot`: the
    host's own sum always comes first here, which in `one-shot` would be a different order of addition on each host.
    """
    hosts = tuple(hosts) or tuple(range(world_size))
    members = [[each for each in range(world_size) if hosts[each] == host] for host in dict.fromkeys(hosts)]
    (own,) = (index for index, ranks in enumerate(members) if rank in ranks)
    num_lanes, schedule = max(map(len, members)), between(own, len(members))
    transfers, num_chunks = TransferList(), len(schedule.chunks)
    for lane in range(num_lanes):
        leaders = [ranks[lane % len(ranks)] for ranks in members]
        others = [each for each in members[own] if each != leaders[own]]
        chunks = range(lane * num_chunks, (lane + 1) * num_chunks)
        if rank != leaders[own]:
            for chunk in chunks:
                transfers.send(leaders[own], chunk)
            for chunk in chunks:
                transfers.recv(leaders[own], chunk)
            continue
        for chunk in chunks:
            for other in others:
                transfers.reduce(other, chunk)
        _copy(schedule, own, leaders, chunks.start, transfers)
        for chunk in chunks:
            for other in others:
                transfers.send(other, chunk)
    return transfers.schedule(schedule.chunks * num_lanes)


def _copy(schedule: Schedule, own: int, leaders: Sequence[int], first_chunk: int, transfers: TransferList) -> None:
    """List the transfers of host `own` as those of its leader, whose chunks are sums already."""
    for transfer in schedule.transfers:
        if transfer.peer != own:
            peer, chunk = leaders[transfer.peer], first_chunk + transfer.chunk
            if transfer.kind is Kind.SEND:
                transfers.send(peer, chunk, is_copied=transfer.is_copied)
            else:
                (transfers.recv if transfer.kind is Kind.RECV else transfers.reduce)(peer, chunk)
