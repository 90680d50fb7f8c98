"""Membership, views and the commit of steps: pure state machines without I/O, clock or threads."""

from . import effects, messages
from .claim import Claim, State, overrides
from .commit import Phase
from .config import WAN, CoreConfig
from .core import Core
from .founding import Foundation
from .messages import Envelope
from .run_description import Run, RunDescription, Trait
from .view import NO_VIEW, Contact, Decision, Member, Policy, Seat, Stamp, View, is_quorum, propose_view

__all__ = [
    "NO_VIEW",
    "WAN",
    "Claim",
    "Contact",
    "Core",
    "CoreConfig",
    "Decision",
    "Envelope",
    "Foundation",
    "Member",
    "Phase",
    "Policy",
    "Run",
    "RunDescription",
    "Seat",
    "Stamp",
    "State",
    "Trait",
    "View",
    "effects",
    "is_quorum",
    "messages",
    "overrides",
    "propose_view",
]
