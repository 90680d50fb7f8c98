"""Arenas of simulated processes: regions that other processes of the host read, possibly late.

A *token* stands for the numbers that one member adds to one operation; reading a region returns the tokens that are in
it at that moment. The mapping outlives the process. The first page carries the tag of the view in which the process
takes part (R10 of PROTOCOL.md).
"""

from dataclasses import dataclass, field

from gossip import View

NO_TAG = b""
Tokens = tuple[str, ...]
Region = tuple[str, int]
"""Content of the region (`input` or `result`), and the operation."""


def tag_of(view: View) -> bytes:
    return view.hash[:8]


@dataclass(eq=False, slots=True)
class Arena:
    """One process's regions, and the tag on its board."""

    tag: bytes = NO_TAG
    regions: dict[Region, Tokens] = field(default_factory=dict)

    def write(self, region: Region, tokens: Tokens) -> None:
        self.regions[region] = tokens

    def read(self, region: Region) -> tuple[Tokens, bytes]:
        """The tokens in `region`, and the tag, which is read afterwards."""
        return self.regions.get(region, ()), self.tag
