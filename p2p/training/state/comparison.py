"""Comparison of an observer's replica with those of the members: its parameters, and the state that changes them.

A seated member sends a digest of its parameters; an observer is compared with its feeder by name, so that the error
names the difference, before the observer counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
import xxhash

from ...errors import JoinRefused, RemoteProtocolError, RemovedFromView, ShoalError
from ...net.bounds import MAX_BYTES_LEN
from ...net.trees import pack_tree, unpack_tree
from .module_settings import check_shown, differences
from .numerics import FLAGS
from .replica_state import Stateful, raw_bytes

NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
MOST_ELEMENTS: Final = 16
"""The most elements of a list or a tensor that are shown as values; larger ones as digests."""

INTO_EXTRA: Final = (
    "put whatever changes it (a schedule, an optimizer, a part of the model's state) into extra= of p2p.DataParallel "
    "on every peer, and count by peer.done, not by a counter of the script"
)
BY_DONE: Final = "freeze and unfreeze by peer.done, on every peer alike"
SAME_BITS: Final = f"{INTO_EXTRA}; if nothing changes it, the devices compute different bits"


def show(
    parts: Mapping[str, Stateful],
    named: Mapping[str, torch.nn.Parameter],
    updated: str | None,
    reached: str = "",
    settings: Mapping[str, str] = NO_SETTINGS,
) -> bytes:
    """Serialise the values by which a replica is compared.

    Args:
        parts: the parts that change the parameters, by name.
        named: the parameters, in an order that is the same on all peers.
        updated: the optimizers that have made an update since the last commit; None: unknown.
        reached: the models that belong to the step, if there are several.
        settings: attributes of modules that have changed since the wrap, by name.
    """
    tree = {
        "reached": reached,
        "settings": dict(settings),
        "updated": updated,
        "values": dict(_values(parts)),
        "trained": _trained(named),
        "digests": b"".join(xxhash.xxh3_64_digest(raw_bytes(each.detach())) for each in named.values()),
    }
    if len(packed := pack_tree(tree)) > MAX_BYTES_LEN:
        for name in ("values", "digests"):
            tree[name] = xxhash.xxh3_64_digest(pack_tree(tree[name]))
        packed = pack_tree(tree)
    return packed


def check(step: int, ours: bytes, theirs: bytes, names: Sequence[str], *, is_akin: bool = True) -> ShoalError | None:
    """The error to raise if this replica differs in `step` from that of a member; None: no difference.

    Args:
        step: the step.
        ours: the result of `show` here.
        theirs: the result of `show` at the member.
        names: of the parameters.
        is_akin: both are of one numerics class, so that their parameters have the same bits.
    """
    try:
        here, there = unpack_tree(ours), unpack_tree(theirs)
        if None not in (here["updated"], there["updated"]) and here["updated"] != there["updated"]:
            return RemovedFromView(
                f"before step {step} the script of this peer updated {here['updated'] or 'nothing'}, but those of the "
                f"members updated {there['updated'] or 'nothing'}: it is at another point of its loop",
                is_astray=True,
            )
        if here["reached"] != there["reached"]:
            return RemovedFromView(
                f"step {step} is one of {here['reached']} in the script of this peer, but one of {there['reached']} "
                "in those of the members: it is at another point of its loop",
                is_astray=True,
            )
        if not is_akin:
            here["digests"] = there["digests"] = b""
        difference = next(_differences(here, there, names), None)
    except (RemoteProtocolError, KeyError, TypeError, AttributeError) as error:
        return RemoteProtocolError(f"a member sent an unreadable description of its replica of step {step}: {error!r}")
    if difference is None:
        return None
    what, mine, other, way_out = difference
    return JoinRefused(
        f"this peer received the members' state, but differs from them in step {step}: {what} is {mine} here, {other} "
        f"there; {way_out}. The swarm continues without this peer"
    )


def unlike_settings(ours: bytes, theirs: bytes) -> str:
    """The attributes of modules that differ, in words; empty: none. May be harmless, as a counter of forward passes.

    Args:
        ours: the result of `show` here.
        theirs: that of a member, in which `check` has found no difference.
    """
    try:
        here, there = (check_shown(unpack_tree(each)["settings"]) for each in (ours, theirs))
    except (RemoteProtocolError, KeyError, TypeError):
        return ""
    return differences(here, there)


def are_at(
    steps: Sequence[bytes], named: Mapping[str, torch.nn.Parameter], updated: str | None, reached: str = ""
) -> bool:
    """Whether this script is at the place in its loop where the members' scripts were in each of these steps.

    A step after which no optimizer has made an update is not compared by optimizers: a GradScaler has skipped it.

    Args:
        steps: the results of `show` at members.
        named: the parameters of the script.
        updated: the optimizers that have made an update here since the last commit; None: unknown.
        reached: the models of its open step.
    """
    try:
        shown = [unpack_tree(each) for each in steps]
        is_alike = {(each["reached"], each["trained"]) for each in shown} == {(reached, _trained(named))}
        return is_alike and len({updated, *(each["updated"] for each in shown)} - {None, ""}) <= 1
    except (RemoteProtocolError, KeyError, TypeError):
        return False


def _trained(named: Mapping[str, torch.nn.Parameter]) -> bytes:
    return bytes(each.requires_grad for each in named.values())


def _differences(here: Any, there: Any, names: Sequence[str]) -> Iterator[tuple[str, object, object, str]]:
    mine, theirs = here["values"], there["values"]
    if isinstance(mine, bytes) or isinstance(theirs, bytes):
        if mine != theirs:
            yield "param_groups and extra (too long to show)", _hex(mine), _hex(theirs), INTO_EXTRA
    else:
        for name in [*mine, *(name for name in theirs if name not in mine)]:
            if not _is_same(mine.get(name), theirs.get(name)):
                yield name, mine.get(name, "missing"), theirs.get(name, "missing"), INTO_EXTRA
    for name, one, other in zip_longest(names, here["trained"], there["trained"]):
        if one != other:
            yield f"requires_grad of {name}", bool(one), bool(other), BY_DONE
    pairs = [[each[i : i + 8] for i in range(0, len(each), 8)] for each in (here["digests"], there["digests"])]
    for name, one, other in zip_longest(names, *pairs, fillvalue=b""):
        if one != other:
            yield f"parameter {name}", _hex(one), _hex(other), SAME_BITS


def settings_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Plain values in the groups of the optimizers among `parts`, by name."""
    return dict(_values({name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}))


def digest_of(part: Stateful) -> int:
    """Digest of the plain values in the state of a part, without tensors, which may be as large as the model."""
    plain = {
        key: _plain(value) for key, value in part.state_dict().items() if not isinstance(value, Mapping | torch.Tensor)
    }
    return xxhash.xxh3_64_intdigest(pack_tree(plain)) >> 1


def first_change(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Name and both values of the first changed value; None: no change."""
    pairs = ((name, value, after.get(name)) for name, value in before.items())
    return next((pair for pair in pairs if not _is_same(*pair[1:])), None)


def _is_same(one: object, other: object) -> bool:
    return pack_tree(one) == pack_tree(other)  # NaN equals NaN here


def _hex(digest: object) -> str:
    return digest.hex() if isinstance(digest, bytes) else "shown"


def _values(parts: Mapping[str, Stateful]) -> Iterator[tuple[str, Any]]:
    """All plain values in `parts`, by name; of optimizers the groups, without moments."""
    for name, part in parts.items():
        if isinstance(part, torch.optim.Optimizer):
            for number, group in enumerate(part.param_groups):
                for key, value in group.items():
                    if key == "params":
                        yield f"number of params of group {number} of {name}", len(value)
                    elif key not in FLAGS:  # part of its numerics class
                        yield f"{key} of group {number} of {name}", _plain(value)
        else:
            for key, value in part.state_dict().items():
                yield f"{key} of {name}", _plain(value)


def _plain(value: Any) -> Any:
    """`value`, or a stand-in that is equal for equal values; for other kinds of objects the name of the type."""
    if isinstance(value, np.generic):  # before float, since numpy.float64 is a float
        value = value.item()
    if value is None or type(value) in (bool, float, str):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return str(value.layout)
        if value.numel() > MOST_ELEMENTS:
            return xxhash.xxh3_64_hexdigest(raw_bytes(value.detach()))
        return value.detach().tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        shown = [_plain(each) for each in value]
        return shown if len(shown) <= MOST_ELEMENTS else xxhash.xxh3_64_hexdigest(pack_tree(shown))
    if isinstance(value, bytes):
        return value.hex() if len(value) <= MOST_ELEMENTS else xxhash.xxh3_64_hexdigest(value)
    return type(value).__name__
