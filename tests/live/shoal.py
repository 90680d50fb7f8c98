"""The program `shoal`, as a script that a fork server can run (p2p/forking/server.py)."""

from p2p.__main__ import main

if __name__ == "__main__":
    main()
