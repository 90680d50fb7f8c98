"""`python -m p2p`: the command `shoal`."""

from .cli import main

if __name__ == "__main__":
    main()
