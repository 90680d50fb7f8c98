"""Linux namespaces: creation, and diagnosis where the system forbids it.

Source: unshare(2), setns(2), user_namespaces(7), pid_namespaces(7).

The namespaces have no names: they vanish with the last process or descriptor that refers to them.
"""

import contextlib
import ctypes
import errno
import os
import signal
from pathlib import Path
from typing import Final

from ..errors import LabError

NEWNS: Final = 0x00020000
NEWUTS: Final = 0x04000000
NEWIPC: Final = 0x08000000
NEWUSER: Final = 0x10000000
NEWPID: Final = 0x20000000
NEWNET: Final = 0x40000000

_MS_NOSUID_NODEV: Final = 2 | 4
_MS_BIND: Final = 4096
_MS_REC_PRIVATE: Final = 16384 | 1 << 18
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29

SYSCTLS: Final = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}
"""Settings that can forbid user namespaces, each with the value that does."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Enter new network and mount namespaces and, for children, a new pid namespace; in a user namespace if required.

    Raises:
        LabError: the system forbids it; the message names the setting.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            unshare(NEWNET | NEWPID | NEWNS)
        except PermissionError:
            unshare(NEWUSER | NEWNET | NEWPID | NEWNS)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        make_mounts_private()
    except OSError as error:
        raise LabError(why_not(error.strerror or str(error), uid)) from error


def why_not(error: str, uid: int, sysctls: Path = Path("/proc/sys")) -> str:
    """The message of the error: which settings forbid user namespaces here, as far as can be seen."""
    found = [
        f"{name} is {value}" for name, value in SYSCTLS.items() if _read(sysctls / name.replace(".", "/")) == value
    ]
    said = f"cannot make namespaces as user {uid}: {error}"
    if found:
        turned = ", ".join(f"sysctl -w {name.split(' ')[0]}={_allowing(name.split(' ')[0])}" for name in found)
        return f"{said}; {' and '.join(found)}: an administrator may allow it ({turned}), or run the lab as root"
    return (
        f"{said}; look at {', '.join(SYSCTLS)}; a container needs a security profile "
        "that allows unshare and mount (docker: --privileged, or --security-opt seccomp=unconfined)"
    )


def _allowing(name: str) -> str:
    return {"user.max_user_namespaces": "10000", "kernel.unprivileged_userns_clone": "1"}.get(name, "0")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def set_namespace(descriptor: int, flag: int) -> None:
    _check(_libc.setns(descriptor, flag))


def make_mounts_private() -> None:
    """Make later mounts visible in this mount namespace only."""
    _check(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None))


def mount(kind: str, target: str, options: str = "") -> None:
    """Mount a new file system of this kind at `target`."""
    flags = _MS_NOSUID_NODEV
    _check(_libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode() or None), target)


def bind(source: str, target: str) -> None:
    """Mount the file `source` over `target`, in this namespace."""
    _check(_libc.mount(source.encode(), target.encode(), None, _MS_BIND, None), target)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit if process `parent` is gone."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def wake_on_time() -> None:
    """Make waits of this thread precise: no timer slack (50 us by default) and, as root, real-time priority."""
    _check(_libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0))
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _check(result: int, path: str | None = None) -> None:
    if result != 0:
        number = ctypes.get_errno() or errno.EINVAL
        raise OSError(number, os.strerror(number), path)
