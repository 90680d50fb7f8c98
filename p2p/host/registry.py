"""Peers of one host find each other through a folder, and agree there on who founds the swarm.

Each peer of a swarm keeps one entry in `<home>/<swarm>/`, beside its two sockets:

    lock                    held by who enters, for milliseconds, and bytes of it by launchers; see also last_run.py
    <peer_id>.json          an entry: who, which process, which addresses, which role
    <peer_id>.page          what can be seen of it, also when it is dead; see telemetry/page.py
    <16 hex digits>         a socket

An entry is written before its sockets are bound, so an entry names whatever a crash leaves behind. It counts
as long as its process lives, which the kernel decides: same host, same pid, same start time. Who enters and
finds no living process founds the swarm; everybody else joins. What follows from the roles: entry.py.

Left out: other hosts, which seeds.py calls. What shares the folder but not the pid namespace, as containers may, is
another host: its entries are left alone, and who could not meet it is refused. Linux only.
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
from .entries import Entries, place_of, sweep_pages
from .entry import HEX_NAME, Entry, Role, all_wait, heir, state_lost
from .folders import absolute, check_socket_path, hold, locked, make_private, open_lock, replace_private
from .processes import UnknownOffsets, process_start, read_host, read_offsets

logger = logging.getLogger(__name__)

SWARM_NAME: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Census:
    """This peer's entry, and those of the living others, in order of their ids."""

    own: Entry
    others: tuple[Entry, ...]


class Registry:
    """The folder of one swarm, as one peer uses it. One thread at a time.

    Attributes:
        ends_well: the script of this peer comes to its end, and is not cut off: what `leave` says of the run.
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
        """Make the folder, or check the one that is there.

        Args:
            home: holds a folder per swarm; `folders.default_home` says which.
            swarm: 1 to 64 letters, digits and `._-`.
            script: that this peer runs, as in `Entry`.
            program: as in `Entry`.
            place: of this peer, as in `Entry`.
            lock_timeout_s: who waits this long for the lock waits for a stopped process.

        Raises:
            RegistryError: the name is unfit, the path too long for a socket, the folder not private, or the clocks of
                this process are unknown.
        """
        if not SWARM_NAME.fullmatch(swarm):
            raise RegistryError(f"a swarm's name has 1 to 64 letters, digits, '.', '_' or '-', got {swarm!r}")
        whole = Path(os.path.abspath(absolute(home)))
        # One spelling for all peers, but `home` itself stays what it is: a link is refused below.
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
        self._held = -1  # the lock file, open as long as this peer has an entry
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
        """Write this process's entry, as founder if no other entry has a living process.

        Draws the addresses of its sockets, which are bound afterwards. Removes what dead peers left.

        Args:
            peer_id: 16 hex digits.
            incarnation: nanoseconds.
            remote: its control and data address for other hosts.
            network: between them.
            founds: False: who founds is decided elsewhere, and this peer is a joiner whoever lives here.

        Raises:
            RegistryError: the folder stays locked, cannot be written, or somebody here expects another network, has
                other clocks, is of another version, or in another pid namespace without addresses for other hosts.
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
        """For a joiner that still waits: become the founder, if the one it waited for is gone.

        Of all who wait only the first by (incarnation, peer_id) is turned into a founder; where members have died, who
        holds the newest of their states, once all have said. Reads every entry; takes the lock only if it finds neither
        a living founder nor a living member.

        Args:
            held: as in `Entry`; -1: nobody goes on where members have died.

        Raises:
            RegistryError: members died and none lives, so what they trained is gone.
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
        """Whether members have died, and the kernel of this host has said so of all of them."""
        members = [entry for entry in dead if entry.role is Role.MEMBER]
        return bool(members) and all(entry.host == self.host for entry in members)

    def inherit(self) -> None:
        """All members are dead, those of other hosts too, and this peer goes on: it is the founder."""
        self._write(replace(self._entered(), role=Role.FOUNDER))

    def stay(self) -> None:
        """The next `leave` is none: this peer enters again, as the founder that it has become."""
        self._stays = self._entered().role is Role.FOUNDER

    def knows(self, peer_id: str) -> bool:
        """Whether there is an entry of this peer, so that its sockets are in this folder."""
        return self._path(peer_id).exists()

    def run_has_ended(self) -> bool:
        """Whether there was a run of this swarm on this host, and it is over; who waits for another is none."""
        living, _ = self.read(apart_from="")
        return all_wait(living) and last_run.ended_at_ns(self.lock) is not None

    def has_ended_well_since(self, time_ns: int) -> bool:
        """Whether a run of this swarm has come to its end on this host since then, and no other one has begun."""
        return last_run.has_ended_well_since(self.lock, time_ns)

    def check_can_join(self) -> None:
        """For a joiner that never founds: there is a run on this host, or there may be one yet.

        Raises:
            RunEnded: the last one ended well.
            RegistryError: its members died.
        """
        if self.run_has_ended():
            raise RunEnded(self.swarm)
        living, dead = self.read(apart_from=self._entered().peer_id)
        if all_wait(living):
            self._check_state_not_lost(dead)

    def mark_member(self) -> None:
        """Say that this peer is in an agreed view, so that its death is known to cost state.

        Raises:
            RegistryError: the entry cannot be written.
        """
        own = self._entered()
        if own.role is not Role.MEMBER:
            self._write(replace(own, role=Role.MEMBER))
            last_run.mark_begun(self.lock)

    def is_whole(self) -> bool:
        """Whether the entry of this peer is there, if it has one: somebody may have removed the folder."""
        return self._own is None or self.knows(self._own.peer_id)

    def write_again(self) -> None:
        """Make the folder that was removed, with the entry of this peer. Waits for no lock.

        Raises:
            RegistryError: that cannot be, for now or for ever; or where the registry was is no folder any more.
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
        """Remove this peer's sockets and entry, and what dead peers left, so that the last to go leaves none.

        A second call or a forked child changes nothing.
        """
        own = self._own
        if own is None or own.pid != os.getpid() or self._stays:
            return
        self._own = None
        try:
            with self._locked():
                self._path(own.peer_id).unlink(missing_ok=True)  # now, so that of two that leave one is the last
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
        """Raise RegistryError if one of those who are here cannot talk to this peer."""
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
        """Raise RegistryError if this peer cannot meet one over TCP that shares the folder, and is another host."""
        for other in elsewhere:
            if not remote or not other.remote_control_address:
                raise RegistryError(
                    f"process {other.pid} of swarm {self.swarm!r} shares {self.folder} with this one, but not its PID "
                    f"namespace (theirs {other.host}, here {self.host}), so neither would see the other's death: "
                    "start all in one PID namespace, or take them for two hosts, which meet by --bind and --seeds"
                )

    def _hold(self, peer_id: str) -> None:
        """Show those who cannot see this process that it lives, as long as it does."""
        if self._held < 0:
            self._held = open_lock(self.lock)
        hold(self._held, place_of(peer_id))

    def _let_go(self) -> None:
        if self._held >= 0:
            os.close(self._held)
        self._held = -1

    def read(self, *, apart_from: str) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
        """Entries of the living and the dead of this host. A file that is no entry is ignored, and named once.

        So are the living of another version, who came later, and were told so, or did not understand our entry.
        """
        living, dead, _ = self._read(apart_from)
        return living, dead

    def _read(self, apart_from: str) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
        living, dead, elsewhere = self._entries.read(apart_from=apart_from)
        return tuple(entry for entry in living if entry.version == VERSION), dead, elsewhere

    def _clean_up(self, dead: tuple[Entry, ...], *, keep_members: bool) -> None:
        """Remove what the dead left. Joiners that wait in vain still have to learn of dead members."""
        for entry in dead:
            self._remove_all_but_entry(entry)
            if not (keep_members and entry.role is Role.MEMBER):
                self._path(entry.peer_id).unlink(missing_ok=True)

    def _remove_all_but_entry(self, entry: Entry) -> None:
        # Who may use the acceptor record of a dead peer has opened it already.
        record_path(self.folder, Member(entry.peer_id, entry.incarnation)).unlink(missing_ok=True)
        self._path(entry.peer_id).with_suffix(".draft").unlink(missing_ok=True)
        for address in (entry.control_address, entry.data_address):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)

    def _check_state_not_lost(self, dead: tuple[Entry, ...]) -> None:
        if lost := [(entry.peer_id, entry.pid) for entry in dead if entry.role is Role.MEMBER]:
            raise RegistryError(state_lost(self.swarm, lost))

    def _write(self, entry: Entry) -> None:
        """Replace this peer's entry at once: readers, who may hold no lock, see the old or the new."""
        path = self._path(entry.peer_id)
        try:
            replace_private(path, json.dumps(asdict(entry), indent=2) + "\n")
        except OSError as error:
            raise RegistryError(f"cannot write the registry entry {path}: {error.strerror}") from error
        self._own = entry

    def warn_of_end(self) -> None:
        """This peer founds: was it to join a run that has just ended?"""
        ended_ns = last_run.ended_at_ns(self.lock)
        ago_s = 0.0 if ended_ns is None else max(0.0, (self._entered().incarnation - ended_ns) / 1e9)  # or set back
        if ended_ns is not None and ago_s < last_run.JUST_NOW_S:
            logger.warning(
                "the last run of swarm %r ended %.0f s ago: this peer founds another one, from step 0 "
                "(with `shoal run --join` it would not)",
                self.swarm,
                ago_s,
            )

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self.lock, timeout_s=self._lock_timeout_s)
