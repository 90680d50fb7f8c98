"""The command `shoal`, also as `python -m p2p`. `shoal status` answers without the imports of other commands."""

import os
import sys


def main() -> None:
    """Run the command line; an error of a user or peer is printed as one line, with exit code 2."""
    _open_closed()
    if sys.argv[1:2] == ["status"]:
        from .status.arguments import parse_arguments

        found = parse_arguments(sys.argv[2:], os.environ)
        if found is not None:
            from .status.screen import run_status

            sys.exit(run_status(found))
    from .cli import main as parse

    parse()


def _open_closed() -> None:
    """Open /dev/null for each closed one of stdin, stdout and stderr: the next file or socket would get its number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(fd, True)
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


if __name__ == "__main__":
    main()
