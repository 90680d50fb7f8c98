"""The command `shoal`. Each command imports what it needs when it runs, so that `shoal --help` is quick."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from p2p.errors import ShoalError

app = typer.Typer(
    name="shoal",
    help="Peer-to-peer training for PyTorch, with nobody in charge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
bench = typer.Typer(help="Measure, and compare with others.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench, name="bench")
key = typer.Typer(help="The swarm key: encryption and admission.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(key, name="key")


@app.callback()
def shoal() -> None:
    """Peer-to-peer training for PyTorch, with nobody in charge."""


# What follows the script's name belongs to the script, options too.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[Path, typer.Argument(help="A Python script; each peer runs it.", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(help="Passed to the script as they are.")] = None,
    num_peers: Annotated[int, typer.Option("-n", help="Number of peers.")] = 1,
    swarm: Annotated[str, typer.Option(help="Who may meet.", envvar="SHOAL_SWARM")] = "default",
    home: Annotated[Path | None, typer.Option(help="Registry folder of this user.", envvar="SHOAL_HOME")] = None,
    min_peers: Annotated[
        int | None, typer.Option(help="The first step waits for this many; without it, for -n.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Who goes on after deaths: live (whoever is left) or majority.")
    ] = None,
    receipts: Annotated[Path | None, typer.Option(help="Folder for one receipt per committed step.")] = None,
    seeds: Annotated[
        str, typer.Option(help="host:port,host:port of some peers, the same on all hosts.", envvar="SHOAL_SEEDS")
    ] = "",
    bind: Annotated[
        str, typer.Option(help="host:port for other hosts; two ports per peer from there on.", envvar="SHOAL_BIND")
    ] = "",
    advertise: Annotated[
        str, typer.Option(help="Host that others are told, if not the one in --bind.", envvar="SHOAL_ADVERTISE")
    ] = "",
    key: Annotated[Path | None, typer.Option(help="File with the swarm key.", envvar="SHOAL_KEY")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TCP without a key: anybody may connect.", envvar="SHOAL_INSECURE")
    ] = False,
    network: Annotated[
        str,
        typer.Option(help="Between hosts: lan, or wan for long delays; the same everywhere.", envvar="SHOAL_NETWORK"),
    ] = "lan",
) -> None:
    """Start identical peers on this host; they found the swarm, or join it."""
    from p2p.launch.config import LaunchConfig
    from p2p.launch.launcher import Launcher
    from p2p.net.tcp import TcpOptions

    config = LaunchConfig(
        script=script,
        args=tuple(args or ()),
        num_peers=num_peers,
        swarm=swarm,
        home=home,
        min_peers=min_peers,
        policy=policy,
        receipts=receipts,
        tcp=TcpOptions(seeds=seeds, bind=bind, advertise=advertise, key=key, insecure=insecure, network=network),
    )
    launcher = Launcher(config, environ=os.environ, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno())
    raise typer.Exit(launcher.run())


@key.command("new")
def key_new(
    out: Annotated[
        Path | None, typer.Option(help="A new file, readable for you only; without it, stdout.", show_default=False)
    ] = None,
) -> None:
    """Make a swarm key. Whoever has it may take part; copy it to every host, and to nobody else."""
    from p2p.host.keys import new_key, protect, write_key

    if out is not None:
        write_key(out)
        return
    protect(sys.stdout.fileno())
    print(new_key())


@bench.command("all-reduce")
def bench_all_reduce(
    num_peers: Annotated[int, typer.Option("-n", help="Number of peers.")] = 2,
    algos: Annotated[
        str,
        typer.Option(
            help="Of one-shot, direct, ring, tree and auto, with commas; "
            "@arena: in shared memory, @early: before the commit, @sockets: without shared memory."
        ),
    ] = "one-shot,direct,ring,tree",
    baseline: Annotated[str | None, typer.Option(help="Whom to compare with: gloo.", show_default=False)] = None,
    first: Annotated[str, typer.Option("-b", help="Size of the first arrays; K, M and G are powers of 1024.")] = "4K",
    last: Annotated[str, typer.Option("-e", help="Largest size.")] = "4M",
    factor: Annotated[int, typer.Option("-f", help="From size to size.")] = 2,
    iters: Annotated[int, typer.Option(help="Timed iterations per size.")] = 50,
    warmup: Annotated[int, typer.Option(help="Iterations before them.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Also write the results here.", show_default=False)] = None,
) -> None:
    """Sum arrays over all peers, verify every result, and say how long it took on the slowest."""
    from p2p import benchmark

    plan = benchmark.Plan(
        num_peers=num_peers,
        algorithms=benchmark.split_names(algos),
        baseline=baseline,
        sizes_bytes=benchmark.sizes_between(benchmark.parse_size(first), benchmark.parse_size(last), factor),
        num_iters=iters,
        num_warmup=warmup,
    )
    raise typer.Exit(benchmark.bench_all_reduce(plan, os.environ, json))


def main() -> None:
    """Run the command line; what a user or a peer did wrong is one line and exit code 2."""
    try:
        app()
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
