"""Last committed step of a lineage whose members have all died, from their flight recorders."""

from contextlib import suppress

from ..errors import RegistryError, RemoteProtocolError
from ..host.entry import Role
from ..host.registry import Registry
from ..step.receipts import Continued
from ..telemetry.page import page_path, read_page
from ..telemetry.records import Kind


def continued(registry: Registry, lineage: str, step: int) -> Continued:
    """The continuation of `lineage` after `step`, by a peer that does not know what members committed after that."""
    last = step
    for entry in registry.read(apart_from="")[1]:
        if entry.role is Role.MEMBER:
            with suppress(OSError, RegistryError, RemoteProtocolError):  # no page, or an unreadable one
                records = read_page(page_path(registry.folder, entry.peer_id)).records
                last = max([last, *(each.step for each in records if each.kind == Kind.COMMITTED)])
    return Continued(lineage, last, step)
