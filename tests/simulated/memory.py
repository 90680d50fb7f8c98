"""The memory that a process lends: regions that others on its host read whenever they get round to it.

A *token* stands for the numbers that one member adds to one operation; whoever reads a region gets the tokens that are
in it at that moment. The mapping outlives the process. The first page carries the tag of the view in which the process
takes part (R10 of PROTOCOL.md).
"""

from dataclasses import dataclass, field

from gossip import View

NO_TAG = b""
Tokens = tuple[str, ...]
Region = tuple[str, int]
"""What is in it (`input` or `result`), and of which operation."""


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
        """What is in `region`, and the tag, which is looked at afterwards."""
        return self.regions.get(region, ()), self.tag
