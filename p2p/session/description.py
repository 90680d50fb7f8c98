"""Run description of this peer, and explanations of a refusal by members that have another one.

JOIN has names and digests only. The refusing member tells a refused peer its own values of whatever differs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import xxhash

from gossip import Run, RunDescription, Trait
from gossip.messages import Difference, Refuse

from ..catchup.replica import BUCKETS, MODEL, Replica
from ..data.sample_tracker import SampleTracker
from ..host.arguments import SHOWN_MAX
from ..host.entry import ProgramTraits
from ..net.parcels import PackedState
from ..net.trees import pack_tree, unpack_tree

NO_MODEL_HERE: Final = (
    "the swarm trains a model, and this peer has none: construct p2p.DataParallel before the first operation"
)
NO_MODEL_THERE: Final = "the swarm's members have no model, and this peer has one: start it in a swarm of its own"

UNFROZEN: Final = (
    "if layers were unfrozen since the members began (`refresh`), a peer that joins now must unfreeze them before the "
    "wrap; scripts that plan it (`changes=`) need not"
)

LEFT: Final = "this peer has left its swarm: call `p2p.join` to join as another peer"
AMID_BATCH: Final = (
    "this peer is between two updates of one batch, and the members begin another batch, so it cannot follow them: "
    "start it again (`shoal run --restarts`); which updates a script makes in a step may depend on `peer.done`, not on "
    "a counter of its own"
)
INTERRUPTED: Final = "the previous step was interrupted, so this peer leaves, and the others finish it: join again"

NO_POLICIES: Final[Mapping[str, bytes]] = MappingProxyType({})

_TEXT_MAX: Final = SHOWN_MAX + 64


def describe_program(program: ProgramTraits, may_differ: Sequence[str]) -> Run:
    """Run description of the program alone, without training."""
    traits = tuple([Trait(name, digest) for name, (digest, _) in program.items()])
    description = RunDescription(program=traits, may_differ=tuple([name.lstrip("-") for name in may_differ]))
    return Run(description, {name: text.encode() for name, (_, text) in program.items()})


def without_model(share: SampleTracker) -> Replica:
    """Replica of a peer without a model: its state is which samples of `share` are used up."""
    return Replica(
        traits={},
        pack=lambda: PackedState(pack_tree(share.pack()), ()),
        load=lambda state: share.load(unpack_tree(state.tree)),
        compare=str,
    )


def describe_run(
    replica: Replica, program: ProgramTraits, may_differ: Sequence[str], policies: Mapping[str, bytes] = NO_POLICIES
) -> Run:
    """Run description of training, `policies` and program; `may_differ`: names of arguments, or `script`."""
    run = describe_program(program, may_differ)
    how = {**replica.traits, **policies} if replica.trains_model else {}
    training = tuple([Trait(name, xxhash.xxh3_128_digest(text)) for name, text in how.items()])
    description = replace(run.description, trains_model=replica.trains_model, training=training)
    return Run(description, {**how, **run.texts}, replica.numerics)


def explain_refusal(replica: Replica, run: Run, refusal: Refuse) -> str:
    """Message with both values of whatever differs, and what to do."""
    if refusal.trains_model != replica.trains_model:
        return NO_MODEL_HERE if refusal.trains_model else NO_MODEL_THERE
    names = {trait.name for trait in run.description.training}
    training = [each for each in refusal.differences if each.name in names]
    program = [each for each in refusal.differences if each.name not in names]
    parts = []
    if program:
        parts.append(f"this peer does not run what the swarm's members do: {explain_program(run, program)}")
    for each in training:
        is_model = each.name == MODEL
        way_out = f"; {UNFROZEN}" if each.name == BUCKETS else ""
        parts.append(
            replica.compare(each.text or b"")
            if is_model
            else f"it does not train as they do: {_both(run, each)}{way_out}"
        )
    return "; ".join(parts)


def explain_program(run: Run, differences: Sequence[Difference]) -> str:
    """Message with both values of what differs in `run`, and what to do."""
    names = [each.name.lstrip("-") for each in differences]
    may = " ".join(f"--may-differ {name}" for name in names)
    both = "; ".join(_both(run, each) for each in differences)
    return (
        f"{both}; start it as they were, or with another --swarm, or, if peers may differ in that, with {may} "
        f"(p2p.join(may_differ={names}))"
    )


def _both(run: Run, difference: Difference) -> str:
    ours, theirs = (_in_words(difference.name, text) for text in (run.texts.get(difference.name), difference.text))
    return f"{ours} here, {theirs} in the swarm"


def _in_words(name: str, text: bytes | None) -> str:
    """Text received from a peer, perhaps missing, sanitized to one line."""
    if text is None:
        return f"no {name}" if name.startswith("-") else f"no argument {name}"
    return "".join(filter(str.isprintable, text.decode(errors="replace")))[:_TEXT_MAX]


def explain_late(replica: Replica) -> str:
    """Message for a model that is wrapped after the peer has asked for its seat with `replica`."""
    why = "trains a model already" if replica.trains_model else "asked for its seat without this model"
    return (
        f"this peer {why}: wrap all models at once, before any operation, as in p2p.DataParallel(peer, "
        '{"G": g, "D": d}, {"G": optimizer_g, "D": optimizer_d}); p2p.DiLoCo takes an nn.ModuleDict of them, and '
        "their other optimizers in extra=; for one run after the other (folds, learning rates) leave this one, and "
        'join again by another name, p2p.join(swarm=f"fold{k}")'
    )


def explain_unread(resume: Path) -> str:
    """Message for a script that is to resume from a checkpoint, but does not read checkpoints."""
    return (
        f"--resume {resume}: this script asks for its seat without checkpoints, so it would begin anew: give "
        "checkpoint=p2p.Checkpoint(...) to p2p.DataParallel or p2p.DiLoCo, or start it without --resume"
    )
