"""The demo: four peers train, one is killed, another joins. `python -m examples.demo`, or `make demo`."""
