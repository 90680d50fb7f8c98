"""To whom this peer has found no way: no connection to it could be opened for too long (PROTOCOL.md, G11).

Where one direction is shut (a firewall, NAT, an address that is wrong), the other side hears no frames, but its own
link works, and is answered by the machinery of sockets. So it is who cannot get through that has to say so.
"""

import math
from collections.abc import Mapping

from .view import Member


class Ways:
    """Since when which links are not open."""

    def __init__(self, opening_s: float) -> None:
        """`opening_s`: how long opening a link may take."""
        self._opening_s = opening_s
        self._since: dict[Member, float] = {}
        self._resumed = -math.inf

    def resume(self, now: float) -> None:
        """This process was stopped, and opened nothing."""
        self._since.clear()
        self._resumed = now

    def are_opening(self, now: float) -> bool:
        """Whether this process was stopped until lately, so that attempts may have ended in vain on that account."""
        return now - self._resumed < self._opening_s

    def look(self, now: float, unopened: Mapping[Member, str]) -> dict[Member, str]:
        """Which links are not open, all of them, and why; those that have been so for too long, in a sentence."""
        self._since = {member: self._since.get(member, now) for member in unopened}
        late = [member for member, since in self._since.items() if now - since >= self._opening_s]
        why = f"for {self._opening_s:g} s: is a firewall or a NAT in between?"
        return {member: f"{unopened[member]}, {why}" for member in late}
