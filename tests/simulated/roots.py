"""Broadcasts in a simulated swarm: their roots, the peers' inputs, and S25."""

import numpy as np

from gossip import View
from p2p.step.collective import GenericCollective
from p2p.step.operation import Operation, Task

from .memory import Tokens

NOTHING = "nothing of it"
"""Input of a peer that is not the root."""


def broadcast(step: int) -> Operation:
    """A broadcast from p1, p2 and p3 in turn, whether the root is a member or not."""
    number = np.zeros(1, np.int64)
    return Operation(GenericCollective("broadcast", root=f"p{1 + step % 3}"), number, number, (1,))


def token_of(task: Task, peer_id: str) -> str:
    """A peer's input: its name, if it is the root of the view in which the broadcast runs."""
    return f"of {peer_id}" if task.rank == task.root and not task.operation.is_root_missing else NOTHING


def wrong_with(operation: Operation, view: View, results: tuple[Tokens, ...]) -> str:
    """The error in a broadcast's results in `view`; empty: none."""
    root = operation.collective.root
    is_there = any(member.peer_id == root for member in view.members)
    expected = [f"of {root}"] if is_there else []
    for chunk in results:
        found = [token for token in chunk if token != NOTHING]
        if found != expected or operation.is_root_missing == is_there:
            where = "with it" if is_there else "without it"
            return f"a broadcast from {root} leaves {found}, void {operation.is_root_missing}, in a view {where}"
    return ""
