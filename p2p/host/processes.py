"""What the kernel knows of processes, and which kernel it is. Linux only."""

import os
from hashlib import blake2b
from pathlib import Path


def read_host() -> str:
    """16 hex digits: which boot of which kernel this is, and whose numbers processes have here (its pid namespace)."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return blake2b(b"%b %d" % (boot_id.strip(), namespace), digest_size=8).hexdigest()


def process_start(pid: int) -> int | None:
    """Clock ticks from boot to the start of process `pid`; None if it has ended, reaped or not.

    Raises:
        OSError: that cannot be found out, say because no file can be opened.
    """
    found = look_at(pid)
    return None if found is None else found[1]


def is_stopped(pid: int) -> bool:
    """Whether process `pid` is stopped, by SIGSTOP or Ctrl-Z, so that somebody has to wake it. OSError as above."""
    found = look_at(pid)
    return found is not None and found[0] == "T"


def look_at(pid: int) -> tuple[str, int] | None:
    """State of process `pid` (one letter, as of ps: T is stopped) and its start; None, and errors, as above."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Field 2 is the program's name in parentheses and may itself hold blanks and parentheses.
    state, *rest = status.rpartition(")")[2].split()
    return None if state in ("Z", "X") else (state, int(rest[18]))
