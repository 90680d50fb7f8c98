"""Protocol version: of all messages between the peers of a swarm, and of all that they leave for each other to read.

PROTOCOL.md specifies this version. All peers must run the same version: there is no negotiation.
"""

from typing import Final

from .errors import RemoteProtocolError

VERSION: Final = 2

ONE_VERSION: Final = "run the same version of shoal everywhere"
"""Advice for a mismatch of versions."""


class OtherVersion(RemoteProtocolError):
    """A message from a peer of another version. Only its version is read."""

    def __init__(self, version: int) -> None:
        super().__init__(f"a peer speaks version {version} of the wire, and this one version {VERSION}: {ONE_VERSION}")
        self.version = version
