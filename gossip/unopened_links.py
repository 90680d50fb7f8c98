"""Links that could not be opened for too long (PROTOCOL.md, G11).

If one direction is blocked (a firewall, NAT, a wrong address), the other side hears no frames, but its own link works,
and is answered by the sockets alone. So the side that cannot connect has to report it.
"""

import math
from collections.abc import Mapping

from .view import Member


class UnopenedLinks:
    """Links that are not open, and since when."""

    def __init__(self, connect_timeout_s: float) -> None:
        """`connect_timeout_s`: how long opening a link may take."""
        self._connect_timeout_s = connect_timeout_s
        self._since: dict[Member, float] = {}
        self._resumed = -math.inf

    def resume(self, now: float) -> None:
        """This process was stopped, and opened no link meanwhile."""
        self._since.clear()
        self._resumed = now

    def has_just_resumed(self, now: float) -> bool:
        """Whether this process was stopped recently, so that attempts may have failed for that reason."""
        return now - self._resumed < self._connect_timeout_s

    def update(self, now: float, unopened: Mapping[Member, str]) -> dict[Member, str]:
        """Links that have been closed for too long, with a sentence why; `unopened`: all links that are not open."""
        self._since = {member: self._since.get(member, now) for member in unopened}
        late = [member for member, since in self._since.items() if now - since >= self._connect_timeout_s]
        why = f"for {self._connect_timeout_s:g} s: is a firewall or a NAT in between?"
        return {member: f"{unopened[member]}, {why}" for member in late}
