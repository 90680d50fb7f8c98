"""The registry: a folder through which the peers of one host find each other, and agree on the founder of the swarm.

Each peer of a swarm keeps one entry in `<home>/<swarm>/`, beside its two sockets:

    lock                    locked by entering peers, for milliseconds; bytes of it by launchers; see also last_run.py
    <peer_id>.json          an entry: identity, process, addresses, role
    <peer_id>.page          the peer's telemetry, readable after its death; see telemetry/page.py
    <16 hex digits>         a socket

An entry is written before its sockets are bound, so it names all files that a crash leaves behind. It is valid as long
as its process lives, by the kernel's word: same host, same pid, same start time. A peer that enters and finds no living
process founds the swarm; all others join. For the meaning of the roles see entry.py.

Leaves out: other hosts (seeds.py). A peer that shares the folder but not the pid namespace, as in containers, belongs
to another host: its entry is left alone, and a peer that could not reach it over TCP is refused. Linux only.
"""

import json
import logging
import os
import re
import secrets
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from gossip import Member

from ..errors import RegistryError, RunEnded
from ..version import ONE_VERSION, VERSION
from . import last_run
from .acceptor_page import record_path
from .entries import Entries, sweep_pages
from .entry import HEX_NAME, Entry, Role, all_wait, heir, state_lost
from .folders import absolute, check_socket_path, lock_byte, locked, make_private, open_lock, place_of, replace_private
from .processes import UnknownOffsets, process_start, read_host, read_offsets

logger = logging.getLogger(__name__)

SWARM_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Census:
    """The entry of this peer, and those of the other living peers, in order of their ids."""

    own: Entry
    others: tuple[Entry, ...]


class Registry:
    """The folder of one swarm, as one peer uses it. One thread at a time.

    Attributes:
        ends_well: whether the script of this peer comes to its end, rather than failing; `leave` records it.
    """

    def __init__(
        self,
        home: Path,
        swarm: str,
        *,
        script: str = "",
        program: str = "",
        place: int = -1,
        lock_timeout_s: float = 10.0,
    ) -> None:
        """Create the folder, or check the existing one.

        Args:
            home: holds a folder per swarm; see `folders.default_home`.
            swarm: 1 to 64 letters, digits and `._-`.
            script: as in `Entry`.
            program: as in `Entry`.
            place: as in `Entry`.
            lock_timeout_s: after this time the holder of the lock is taken for a stopped process.

        Raises:
            RegistryError: the name is invalid, the path too long for a socket, the folder not private, or the clocks
                of this process are unknown.
        """
        if not SWARM_NAME.fullmatch(swarm):
            raise RegistryError(f"a swarm's name has 1 to 64 letters, digits, '.', '_' or '-', got {swarm!r}")
        whole = Path(os.path.abspath(absolute(home)))
        # All peers use one spelling of the path, but `home` itself is not resolved: a link is refused below.
        home = whole.parent.resolve() / whole.name
        self.swarm = swarm
        self.folder = home / swarm
        self.lock = self.folder / "lock"
        self._script, self._program, self._place = script, program, place
        self._lock_timeout_s = lock_timeout_s
        self.host = read_host()
        try:
            self.offsets = read_offsets()
        except UnknownOffsets as error:
            raise RegistryError(
                f"this process has unshared its time namespace, and its clocks are not those of its children "
                f"({error.args[0]}): unshare it before the process starts, or not at all"
            ) from None
        self._founds, self._stays, self.ends_well = True, False, True
        self._own: Entry | None = None
        self._held = -1  # descriptor of the lock file, open as long as this peer has an entry
        self._entries = Entries(self.folder, swarm, self.host, self.offsets)
        check_socket_path(self.folder / ("0" * 16))
        make_private(home)
        make_private(self.folder)

    def enter(
        self,
        peer_id: str,
        incarnation: int,
        *,
        remote: tuple[str, str] = ("", ""),
        network: str = "lan",
        founds: bool = True,
    ) -> Census:
        """Write the entry of this process, as founder if no other entry has a living process.

        Draws the addresses of its sockets, which are bound later. Removes files of dead peers.

        Args:
            peer_id: 16 hex digits.
            incarnation: nanoseconds.
            remote: its control and data address for other hosts.
            network: the network between hosts.
            founds: False: the founder is chosen elsewhere, and this peer is a joiner in any case.

        Raises:
            RegistryError: the folder stays locked or cannot be written; or a peer here has another network, other
                clocks, another version, or another pid namespace without addresses for other hosts.
        """
        if not HEX_NAME.fullmatch(peer_id):
            raise ValueError(f"a peer_id has 16 hex digits, got {peer_id!r}")
        start = process_start(os.getpid())
        assert start is not None, "who asks is running"
        self._founds = founds
        stays, self._stays = self._stays, False
        with self._locked(), ExitStack() as undo:
            living, dead, elsewhere = self._entries.read(apart_from=peer_id)
            self._clean_up(dead, keep_members=bool(living) and all_wait(living) and not stays)
            sweep_pages(self.folder, peer_id, is_over=not living and not elsewhere)
            self._check_fits(living, network)
            self._check_can_meet(elsewhere, remote[0])
            undo.callback(self._let_go)
            self._hold(peer_id)
            own = Entry(
                swarm=self.swarm,
                peer_id=peer_id,
                incarnation=incarnation,
                role=Role.FOUNDER if stays or (founds and not living) else Role.JOINER,
                control_address=self._new_address(),
                data_address=self._new_address(),
                pid=os.getpid(),
                process_start=start,
                host=self.host,
                remote_control_address=remote[0],
                remote_data_address=remote[1],
                network=network,
                script=self._script,
                program=self._program,
                place=self._place,
                monotonic_offset_ns=self.offsets.monotonic_ns,
                boottime_offset_ns=self.offsets.boottime_ns,
            )
            self._write(own)
            undo.pop_all()
        return Census(own, living)

    def take_over(self, held: int = -1) -> Census:
        """Turn a waiting joiner into the founder, if the founder it waited for is gone.

        Of all waiting joiners only the first by (incarnation, peer_id) becomes the founder; if members have died, the
        joiner that holds the newest of their states, once all have declared theirs. Reads every entry; takes the lock
        only if neither a founder nor a member lives.

        Args:
            held: as in `Entry`; -1: do not continue the state of dead members.

        Raises:
            RegistryError: all members died, so their state is lost.
        """
        own = self._entered()
        living, _ = self.read(apart_from=own.peer_id)
        if own.role is not Role.JOINER or not self._founds or not all_wait(living):
            return Census(own, living)
        with self._locked():
            living, dead = self.read(apart_from=own.peer_id)
            if all_wait(living):
                first: Entry | None = min((own, *living), key=lambda entry: (entry.incarnation, entry.peer_id))
                if held >= 0 and self._died_here(dead):
                    own = replace(own, held=held)
                    self._write(own)
                    first = heir((own, *living))
                if first is None or not first.held > 0:
                    self._check_state_not_lost(dead if first is not None else ())
                if own == first:
                    own = replace(own, role=Role.FOUNDER)
                    self._write(own)
        return Census(own, living)

    def _died_here(self, dead: tuple[Entry, ...]) -> bool:
        """Whether members have died, all of them on this host, by proof of its kernel."""
        members = [entry for entry in dead if entry.role is Role.MEMBER]
        return bool(members) and all(entry.host == self.host for entry in members)

    def inherit(self) -> None:
        """Become the founder that continues the state of the members, all of which are dead, on other hosts too."""
        self._write(replace(self._entered(), role=Role.FOUNDER))

    def stay(self) -> None:
        """If this peer is the founder, make the next `leave` a no-op: the peer enters again as founder."""
        self._stays = self._entered().role is Role.FOUNDER

    def knows(self, peer_id: str) -> bool:
        """Whether this peer has an entry, so that its sockets are in this folder."""
        return self._path(peer_id).exists()

    def run_has_ended(self) -> bool:
        """Whether a run of this swarm on this host has ended; waiting joiners do not count as a run."""
        living, _ = self.read(apart_from="")
        return all_wait(living) and last_run.ended_at_ns(self.lock) is not None

    def has_ended_well_since(self, time_ns: int) -> bool:
        """Whether a run of this swarm has ended well on this host since `time_ns`, and no other one has begun."""
        return last_run.has_ended_well_since(self.lock, time_ns)

    def check_can_join(self) -> None:
        """For a joiner that never founds: check that a run exists on this host, or may still begin.

        Raises:
            RunEnded: the last run has ended.
            RegistryError: its members died.
        """
        if self.run_has_ended():
            raise RunEnded(self.swarm)
        living, dead = self.read(apart_from=self._entered().peer_id)
        if all_wait(living):
            self._check_state_not_lost(dead)

    def mark_member(self) -> None:
        """Record that this peer is in an agreed view, so that others know that its death costs state.

        Raises:
            RegistryError: the entry cannot be written.
        """
        own = self._entered()
        if own.role is not Role.MEMBER:
            self._write(replace(own, role=Role.MEMBER))
            last_run.mark_begun(self.lock)

    def is_whole(self) -> bool:
        """Whether the file of this peer's entry still exists, if it has one: the folder may have been removed."""
        return self._own is None or self.knows(self._own.peer_id)

    def write_again(self) -> None:
        """Recreate the removed folder, with the entry of this peer. Takes no lock.

        Raises:
            RegistryError: this fails, for now or permanently; or the parent folder of the registry is gone.
        """
        own, around = self._entered(), self.folder.parent.parent
        if not around.is_dir():
            raise RegistryError(f"there is no folder {around}")
        make_private(self.folder.parent)
        make_private(self.folder)
        self._let_go()
        self._hold(own.peer_id)
        self._write(own)

    def leave(self) -> None:
        """Remove this peer's sockets and entry, and files of dead peers, so that the last peer leaves none.

        A second call, or a call in a forked child, does nothing.
        """
        own = self._own
        if own is None or own.pid != os.getpid() or self._stays:
            return
        self._own = None
        try:
            with self._locked():
                self._path(own.peer_id).unlink(missing_ok=True)  # in the lock: one of two leavers is the last
                living, dead, elsewhere = self._read(own.peer_id)
                self._clean_up(dead, keep_members=bool(living) and all_wait((own, *living)))
                sweep_pages(self.folder, own.peer_id, is_over=not living and not elsewhere)
                if own.role is Role.MEMBER and all_wait(living) and not own.remote_control_address:
                    last_run.mark_ended(self.lock, is_well=self.ends_well)
        except (RegistryError, OSError) as error:
            logger.warning("what dead peers left stays for the next to clean up: %s", error)
        finally:
            self._remove_all_but_entry(own)
            self._path(own.peer_id).unlink(missing_ok=True)
            self._let_go()

    def _entered(self) -> Entry:
        if self._own is None:
            raise ValueError("enter() the registry first")
        return self._own

    def _new_address(self) -> str:
        return f"ipc://{self.folder / secrets.token_hex(8)}"

    def _path(self, peer_id: str) -> Path:
        return self.folder / f"{peer_id}.json"

    def _check_fits(self, living: tuple[Entry, ...], network: str) -> None:
        """Raise RegistryError if a living peer is incompatible with this one."""
        for other in living:
            who = f"process {other.pid} of swarm {self.swarm!r}"
            if other.version != VERSION:
                raise RegistryError(
                    f"{who} speaks version {other.version} of the wire, and this one version {VERSION}: "
                    f"{ONE_VERSION}, or give this peer another --swarm"
                )
            if other.offsets != self.offsets:
                raise RegistryError(
                    f"{who} has other clocks than this one, by its time namespace ({other.offsets}; here "
                    f"{self.offsets}): start all peers of a host in one time namespace"
                )
            if other.network != network:
                raise RegistryError(
                    f"{who} runs with --network {other.network}, and this one with --network {network}: "
                    "give all peers the same"
                )

    def _check_can_meet(self, elsewhere: tuple[Entry, ...], remote: str) -> None:
        """Raise RegistryError if a peer in another pid namespace shares the folder but cannot be reached over TCP."""
        for other in elsewhere:
            if not remote or not other.remote_control_address:
                raise RegistryError(
                    f"process {other.pid} of swarm {self.swarm!r} shares {self.folder} with this one, but not its PID "
                    f"namespace (theirs {other.host}, here {self.host}), so neither would see the other's death: start "
                    "all in one PID namespace, or treat them as two hosts, which meet by --bind and --seeds"
                )

    def _hold(self, peer_id: str) -> None:
        """Lock this peer's byte, which shows to other pid namespaces that this process lives."""
        if self._held < 0:
            self._held = open_lock(self.lock)
        lock_byte(self._held, place_of(peer_id))

    def _let_go(self) -> None:
        if self._held >= 0:
            os.close(self._held)
        self._held = -1

    def read(self, *, apart_from: str) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
        """Entries of the living and of the dead peers of this host. Other files are ignored, with one warning each.

        So are living peers of another version: they entered later, and were refused or could not read our entry.
        """
        living, dead, _ = self._read(apart_from)
        return living, dead

    def _read(self, apart_from: str) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
        living, dead, elsewhere = self._entries.read(apart_from=apart_from)
        return tuple(entry for entry in living if entry.version == VERSION), dead, elsewhere

    def _clean_up(self, dead: tuple[Entry, ...], *, keep_members: bool) -> None:
        """Remove files of dead peers. `keep_members`: keep entries of members, of which waiting joiners must learn."""
        for entry in dead:
            self._remove_all_but_entry(entry)
            if not (keep_members and entry.role is Role.MEMBER):
                self._path(entry.peer_id).unlink(missing_ok=True)

    def _remove_all_but_entry(self, entry: Entry) -> None:
        # Members that may use the acceptor record of a dead peer have it open already.
        record_path(self.folder, Member(entry.peer_id, entry.incarnation)).unlink(missing_ok=True)
        self._path(entry.peer_id).with_suffix(".draft").unlink(missing_ok=True)
        for address in (entry.control_address, entry.data_address):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _check_state_not_lost(self, dead: tuple[Entry, ...]) -> None:
        if lost := [(entry.peer_id, entry.pid) for entry in dead if entry.role is Role.MEMBER]:
            raise RegistryError(state_lost(self.swarm, lost))

    def _write(self, entry: Entry) -> None:
        """Replace this peer's entry atomically, for readers without the lock."""
        path = self._path(entry.peer_id)
        try:
            replace_private(path, json.dumps(asdict(entry), indent=2) + "\n")
        except OSError as error:
            raise RegistryError(f"cannot write the registry entry {path}: {error.strerror}") from error
        self._own = entry

    def warn_of_end(self) -> None:
        """Warn if this peer founds right after the end of a run, which it may have been meant to join."""
        ended_ns = last_run.ended_at_ns(self.lock)
        ago_s = 0.0 if ended_ns is None else max(0.0, (self._entered().incarnation - ended_ns) / 1e9)  # or set back
        if ended_ns is not None and ago_s < last_run.JUST_NOW_S:
            logger.warning(
                "the last run of swarm %r ended %.0f s ago: this peer founds another one, from step 0 or a checkpoint "
                "(with `shoal run --join` it would not)",
                self.swarm,
                ago_s,
            )

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.lock, timeout_s=self._lock_timeout_s)
