"""The command `shoal lab`."""

import json as json_text
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ..errors import LabError

COMMAND: Final = "p2p.netlab.command"
STDOUT: Final = 1
STDERR: Final = 2


class LabGroup(TyperGroup):
    """A command group that takes the words after `--` as the command of the hosts, not as a subcommand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the words after `--` in `ctx.meta`, then parse the rest as usual."""
        first = args[:1]
        if "--" in args and first and first[0] not in self.commands:
            end = args.index("--")
            ctx.meta[COMMAND] = args[end + 1 :]
            args = args[:end]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=LabGroup,
    invoke_without_command=True,
    subcommand_metavar="-- COMMAND | set ... | show | exec ...",
    rich_markup_mode=None,
)


@app.callback(short_help="Hosts and links on this machine, to try anything on, without root.")
def lab(
    ctx: typer.Context,
    hosts: Annotated[int | None, typer.Option(help="Number of hosts.  [default: 2]")] = None,
    net: Annotated[
        str,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="rate (of each host's line, up and down), up, down, queue; delay (one way), jitter, loss.",
        ),
    ] = "",
    config: Annotated[Path | None, typer.Option(help="A TOML file instead: hosts that differ, links, regions.")] = None,
    name: Annotated[str, typer.Option(help="Name of the lab for `shoal lab set` and `show`, if several run.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of loss and jitter.")] = 0,
) -> None:
    """Make hosts with a network of their own, and run COMMAND in each, with {host}, {address} and {peers} replaced.

    Exits with 0 if all commands did; with the code of the first host, by number, that failed (128 + N if signal N
    ended it); with 2 if there can be no lab here; with 130 after Ctrl-C (128 + N after another signal N). Nothing of
    the lab is left then.
    """
    if ctx.invoked_subcommand is not None:
        if hosts is not None or net or config is not None:
            raise LabError(
                f"--hosts, --net and --config make a lab: leave them out of `shoal lab {ctx.invoked_subcommand}`"
            )
        return
    from dataclasses import replace

    from .config import LabConfig
    from .run import Run

    if config is not None and (hosts is not None or net):
        raise LabError("--config says how many hosts there are, and what joins them: leave --hosts and --net out")
    made = LabConfig.uniform(2 if hosts is None else hosts, net) if config is None else LabConfig.read(config)
    if words := ctx.meta.get(COMMAND):
        made = replace(made, command=tuple(words))
    run = Run(made, name=name or str(os.getpid()), seed=seed, stdout=STDOUT, stderr=STDERR)
    raise typer.Exit(run.run())


@app.command("set")
def change(
    words: Annotated[
        list[str],
        typer.Argument(metavar="HOST [HOST] CHANGE", help="HOST: a number, a name, a region, '*' or all."),
    ],
    one_way: Annotated[
        bool, typer.Option("--one-way", help="Only from the first to the second, or what HOST sends.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the lab, if several run.")] = "",
) -> None:
    """Change a lab that runs: `set 2 '*' cut`, `set 1 2 delay=80ms,loss=1%`, `set 0 up=10mbit`, `set all heal`."""
    from .control import ask

    ask(name, {"do": "set", "words": words, "one_way": one_way})


@app.command("show")
def show(
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    name: Annotated[str, typer.Option(help="Name of the lab, if several run.")] = "",
) -> None:
    """Show a lab that runs: its links, what was dropped, and how late it is."""
    from .control import ask

    shown = ask(name, {"do": "show"})
    if json:
        print(json_text.dumps({"version": 1, **shown}))
        return
    from rich.console import Console

    from .table import tables

    console = Console() if sys.stdout.isatty() else Console(width=160, color_system=None)
    console.print(*tables(shown), sep="\n")


@app.command("exec")
def execute(
    host: Annotated[int, typer.Argument(help="Number of the host.")],
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run there.")],
    name: Annotated[str, typer.Option(help="Name of the lab, if several run.")] = "",
) -> None:
    """Run one more command in a host of a lab that runs: `exec 1 -- shoal status`. Exits with its code."""
    from functools import partial

    from .commands import start
    from .control import ask
    from .places import environment

    asks = partial(ask, name)
    num_hosts = len(asks({"do": "show"})["hosts"])
    if not 0 <= host < num_hosts:
        raise LabError(f"there is no host {host}: numbers are 0 to {num_hosts - 1}")
    environ = {**os.environ, **environment(host, num_hosts, os.environ)}
    command = start(asks, host, words, streams=(0, STDOUT, STDERR), environ=environ, folder=Path.cwd())
    try:
        code = command.wait()
    except KeyboardInterrupt:
        command.send_signal(signal.SIGINT)
        code = command.wait()
    raise typer.Exit(code if code >= 0 else 128 - code)
