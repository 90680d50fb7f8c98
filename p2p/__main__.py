"""The command `shoal`, also as `python -m p2p`. `shoal status` answers without the imports of other commands."""

import os
import sys


def main() -> None:
    """Run the command line; what a user or a peer did wrong is one line and exit code 2."""
    if sys.argv[1:2] == ["status"]:
        from .status.asked import asked

        found = asked(sys.argv[2:], os.environ)
        if found is not None:
            from .status.screen import answer

            sys.exit(answer(found))
    from .cli import main as parse

    parse()


if __name__ == "__main__":
    main()
