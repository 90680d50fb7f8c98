"""The program that each peer of a run executes: `python SCRIPT`, `python -m MODULE`, or a command."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Self

from ..errors import LaunchError
from ..host.naming import Program


@dataclass(frozen=True, slots=True)
class Target:
    """The program to start.

    Attributes:
        program: the swarm's default name derives from it.
        command: the words of the command.
        kind: `script`, `module` or `command`.
    """

    program: Program
    command: tuple[str, ...]
    kind: str = "script"

    @classmethod
    def script(cls, path: Path, args: Sequence[str] = ()) -> Self:
        return cls(Program.of_script(path, args), (sys.executable, str(path), *args))

    @classmethod
    def module(cls, name: str, args: Sequence[str] = ()) -> Self:
        return cls(Program.of_module(name, args), (sys.executable, "-m", name, *args), "module")

    @classmethod
    def of_command(cls, words: Sequence[str]) -> Self:
        return cls(Program(Path(words[0]).name, words[0], tuple(words[1:])), tuple(words), "command")

    def check(self) -> None:
        """Raise LaunchError if the script does not exist, no module is named, or the package cannot be run."""
        if self.kind == "module" and not self.command[2]:
            raise LaunchError("-m is the name of a module, got ''")
        if self.kind == "module" and (why := _why_not_run(self.command[2])):
            raise LaunchError(f"-m {self.command[2]} {why}")
        if self.kind == "script" and not (path := Path(self.command[1])).is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise LaunchError(f"the script {path} {what}")

    def swarm(self, *, one_host: bool) -> str:
        """The default name of the swarm.

        Raises:
            LaunchError: a command has no name that is common to several hosts.
        """
        if self.kind == "command" and not one_host:
            raise LaunchError("with --seeds or --bind a command needs a name, the same on all hosts: give --swarm NAME")
        return self.program.swarm(one_host=one_host)


def _why_not_run(module: str) -> str:
    """Why `python -m` cannot run the module, in words; empty: it can, or another import mechanism may find it."""
    path = [str(Path.cwd()), *sys.path]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path)
        if spec is None or spec.submodule_search_locations is None:
            return ""
        path = list(spec.submodule_search_locations)
    if PathFinder.find_spec("__main__", path) is not None:
        return ""
    return f"is a package without `__main__`: name a module of it, or add {path[0]}/__main__.py"
