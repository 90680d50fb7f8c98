"""The version of the wire: of all that the peers of a swarm say to each other, and leave for each other to read.

PROTOCOL.md says what peers of this version say. There is no other way than to run one version: nothing is negotiated.
"""

from typing import Final

from .errors import RemoteProtocolError

VERSION: Final = 2

ONE_VERSION: Final = "run the same version of shoal everywhere"
"""What to do about two."""


class OtherVersion(RemoteProtocolError):
    """A peer of another version said something. Nothing of it is read but that."""

    def __init__(self, version: int) -> None:
        super().__init__(f"a peer speaks version {version} of the wire, and this one version {VERSION}: {ONE_VERSION}")
        self.version = version
