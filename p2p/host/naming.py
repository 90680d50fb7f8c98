"""The default name of a swarm: derived from the script and its arguments, so that two experiments never meet.

`train.py` becomes `train-1a2b3c4d`. The digits are a hash of the script's path and arguments, so a run with another
learning rate is another swarm. Peers of several hosts, whose paths may differ, use only `train`.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from ..errors import RegistryError
from .arguments import DIGEST_BYTES, by_name, digest, shown
from .entry import ProgramTraits
from .folders import absolute
from .registry import SWARM_NAME, Registry

SCRIPT: Final = "script"
LABEL_MAX: Final = 24
_DIGEST_BYTES: Final = 4

NO_NAME: Final = (
    "this process runs no script to name the swarm after (a notebook, or `python -c`?): name the swarm, "
    "p2p.join(swarm=...)"
)


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a peer.

    Attributes:
        name: of the script's file, of the module, or of the command.
        place: distinguishes it from others of that name on this host.
        args: of the script.
        file: path of the source; empty: unknown.
    """

    name: str
    place: str
    args: tuple[str, ...]
    file: str = ""

    @classmethod
    def of_script(cls, path: Path, args: Sequence[str]) -> "Program":
        return cls(path.name, str(absolute(path).resolve()), tuple(args), str(path))

    @classmethod
    def of_module(cls, name: str, args: Sequence[str], file: str = "") -> "Program":
        return cls(name, name, tuple(args), file)

    def swarm(self, *, one_host: bool) -> str:
        """The default name of its swarm; `one_host`: no other host can take part."""
        label = re.sub(r"[^a-z0-9]+", "-", self.name.lower().removesuffix(".py"))[:LABEL_MAX].strip("-") or "script"
        if not one_host:
            return label
        words = "\0".join((self.place, *self.args)).encode(errors="surrogateescape")
        return f"{label}-{blake2b(words, digest_size=_DIGEST_BYTES).hexdigest()}"

    def traits(self) -> ProgramTraits:
        """The traits that peers of a swarm have to share: the current source, under `SCRIPT`, and the arguments."""
        try:
            source = Path(self.file).read_bytes() if self.file else self.name.encode(errors="surrogateescape")
        except OSError:
            source = b""  # unreadable here, so it differs from the others' source
        of_source = blake2b(source, digest_size=DIGEST_BYTES).digest()
        found = {SCRIPT: (of_source, f"{shown(SCRIPT, self.name)} (digest {of_source.hex()})")}
        return found | {name: (digest(text), shown(name, text)) for name, text in by_name(self.args).items()}


def this_program() -> Program | None:
    """The program of this process; None: no script."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        name = spec.name.removesuffix(".__main__")
        return Program.of_module(name, _args_behind(name), spec.origin or "")
    path = getattr(main, "__file__", None)
    return None if path is None or not Path(path).is_file() else Program.of_script(Path(path), _args_behind(path))


def _args_behind(program: str) -> Sequence[str]:
    """The original arguments: a script may have changed `sys.argv`."""
    names = [Path(word).name for word in sys.orig_argv]
    name = Path(program).name
    return sys.orig_argv[names.index(name) + 1 :] if name in names else sys.argv[1:]


def has_other_hosts(environ: Mapping[str, str], *given: str | None) -> bool:
    """Whether peers of other hosts may take part: seeds or a listen address are `given`, or set in `environ`."""
    return any(given) or any(environ.get(name) for name in ("SHOAL_SEEDS", "SHOAL_BIND"))


def runs_of_script(home: Path, script: str) -> Counter[str]:
    """Number of living peers of this user that run the script of this name, by swarm."""
    found = Counter[str]()
    for folder in sorted(home.iterdir()):
        if SWARM_NAME.fullmatch(folder.name) and any(folder.glob("*.json")):  # most folders only hold a lock
            try:
                living, _ = Registry(home, folder.name).read(apart_from="")
            except RegistryError:
                continue  # a folder that no peer of this user can use
            found.update(entry.swarm for entry in living if entry.script == script)
    return found
