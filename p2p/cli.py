"""The command `shoal`. Each command imports what it needs when it runs, so that `shoal --help` is quick."""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from p2p.benchmark.command import app as bench
from p2p.errors import LaunchError, ShoalError
from p2p.experiment.commands import add_to as add_experiments
from p2p.netlab.command import app as lab

if TYPE_CHECKING:
    from p2p.launch.target import Target

IS_COMMAND: Final = "p2p.cli.is_command"

app = typer.Typer(
    name="shoal",
    help="Peer-to-peer training for PyTorch, with nobody in charge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")
key = typer.Typer(help="The swarm key: encryption and admission.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(key, name="key")
checkpoint = typer.Typer(help="What a run resumes from.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(checkpoint, name="checkpoint")
app.add_typer(lab, name="lab")


def _show_version(wanted: bool) -> None:
    if wanted:
        import p2p

        print(f"shoal {p2p.__version__}")
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Peer-to-peer training for PyTorch, with nobody in charge."""


class RunCommand(TyperCommand):
    """`shoal run`: its options end where the script or module begins, as python's do; a command follows `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As for any command. If started by a peer, variables of that peer are dropped: this is another run."""
        for name in os.environ.pop("SHOAL_EXPORTED", "").split(","):
            os.environ.pop(name, None)
        end, is_module = self._end_of_options(args)
        if end > len(args):  # the last option lacks its value, which the parser reports
            return super().parse_args(ctx, args)
        ctx.meta[IS_COMMAND] = not is_module and args[end : end + 1] == ["--"]
        return super().parse_args(ctx, [*args[:end], "--", *args[end + ctx.meta[IS_COMMAND] :]])

    def _end_of_options(self, args: list[str]) -> tuple[int, bool]:
        """Index of the script, of `--`, or of the first argument after the module, and whether a module is given.

        Beyond the end if the last option lacks its value.
        """
        flags, with_value = "", set[str]()
        for param in self.params:
            if getattr(param, "is_flag", False):
                flags += "".join(name[1:] for name in param.opts if not name.startswith("--"))
            else:
                with_value |= {*param.opts}
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
            option = args[index]
            option = option if option.startswith("--") else "-" + option[1:].lstrip(flags)  # `-vn 2` is `-v -n 2`
            index += 2 if option in with_value else 1
            if option.startswith("-m"):
                return index, True
        return index, False


# All that follows the script's name belongs to the script, options too.
@app.command(
    cls=RunCommand,
    short_help="Start peers on this host, which found a swarm or join it.",
    context_settings={"allow_interspersed_args": False},
)
def run(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT.PY | -m MODULE | -- COMMAND", help="What each peer runs, with its arguments."),
    ] = None,
    module: Annotated[str | None, typer.Option("-m", help="Run a module instead, like `python -m`.")] = None,
    num_peers: Annotated[
        str, typer.Option("-n", metavar="N|auto", help="Number of peers; auto: one per GPU, 1 without.")
    ] = "1",
    swarm: Annotated[
        str | None,
        typer.Option(
            help="Name that peers meet by; default: the script's name and, without --seeds and --bind, 8 digits "
            "for its path and arguments.",
            envvar="SHOAL_SWARM",
        ),
    ] = None,
    join: Annotated[
        bool,
        typer.Option("--join", help="Only join: wait for a run. If it is over, say so and exit with 0."),
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Only found a run: exit with 2 if it is under way here.")] = False,
    join_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for a seat.  [default: 600]")] = None,
    step_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for a step.  [default: 600]")] = None,
    restarts: Annotated[
        int, typer.Option(help="How often to replace a peer that fails; not after three deaths at the same step.")
    ] = 0,
    fence: Annotated[
        float | None, typer.Option(help="Kill a peer that stays stopped (SIGSTOP, Ctrl-Z) for this many seconds.")
    ] = None,
    log_dir: Annotated[Path | None, typer.Option(help="Folder for one file per peer, with all its output.")] = None,
    web: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve a page, /status.json and /metrics of the peers here, for example at 127.0.0.1:8400; an "
            "address that other hosts can reach needs a token in SHOAL_WEB_TOKEN.",
            envvar="SHOAL_WEB",
        ),
    ] = "",
    verbose: Annotated[bool, typer.Option("-v", help="Show the log of each peer, too.")] = False,
    quiet: Annotated[bool, typer.Option("-q", help="Print only which peers failed, and why.")] = False,
    home: Annotated[Path | None, typer.Option(help="Registry folder of this user.", envvar="SHOAL_HOME")] = None,
    may_differ: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An argument of the script (lr; 1 for the first without a flag) in which these peers may differ from "
            "others, or `script`; can be repeated. A peer that differs otherwise is refused.",
        ),
    ] = None,
    mixed: Annotated[
        str | None,
        typer.Option(
            help="Peers whose processors round differently: resync (they train together) or refuse (one kind)."
        ),
    ] = None,
    slow_peers: Annotated[
        str | None,
        typer.Option(help="A member that is much slower than the others: name (the log says so) or leave (it goes)."),
    ] = None,
    slow_factor: Annotated[
        float | None, typer.Option(help="Much slower: this many times what the others take.  [default: 2]")
    ] = None,
    on_all_dead: Annotated[
        str | None,
        typer.Option(help="What observers do when all members have died: stop, or restart (with the newest state)."),
    ] = None,
    min_peers: Annotated[
        int | None,
        typer.Option(help="The first step waits for this many; without it, for -n.", envvar="SHOAL_MIN_PEERS"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Which peers continue after deaths: live (all that are left) or majority.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="FOLDER/STEP of the checkpoint to resume from; without it, the last one.")
    ] = None,
    receipts: Annotated[
        Path | None, typer.Option(help="Folder for one receipt per committed step, traces, and how peers ended.")
    ] = None,
    receipts_full: Annotated[
        str | None, typer.Option(help="If they cannot be written: warn (continue without) or stop (that peer leaves).")
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="host:port,host:port of some peers, the same on all hosts.", envvar="SHOAL_SEEDS")
    ] = "",
    bind: Annotated[
        str,
        typer.Option(help="host:port for other hosts; two ports per peer, counting up from it.", envvar="SHOAL_BIND"),
    ] = "",
    advertise: Annotated[
        str, typer.Option(help="Host that others connect to, if not the one in --bind.", envvar="SHOAL_ADVERTISE")
    ] = "",
    key: Annotated[
        Path | None, typer.Option(help="File with the swarm key, or env:NAME, or fd:N.", envvar="SHOAL_KEY")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="TCP without a key: anybody may connect.", envvar="SHOAL_INSECURE")
    ] = False,
    network: Annotated[
        str,
        typer.Option(help="Between hosts: lan, or wan for long delays; the same everywhere.", envvar="SHOAL_NETWORK"),
    ] = "lan",
) -> None:
    """Start identical peers on this host; they found the swarm, or join it.

    Exits with 0 if the run was completed and each peer that died was replaced, or if all left on SIGTERM;
    1 if a peer failed; 2 if nothing could be started; 3 if the others continued without a peer; 130 after Ctrl-C
    (128 + N after another signal N).
    """
    from p2p.launch.config import LaunchConfig, parse_num_peers
    from p2p.launch.devices import host_gpus
    from p2p.launch.launcher import Launcher
    from p2p.net.tcp import TcpOptions

    if join and new:
        raise LaunchError("--join and --new contradict each other: give one")
    if not (seeds or bind) and _given(ctx, "key"):
        raise LaunchError("--key is for TCP: give --bind or --seeds, too")
    config = LaunchConfig(
        target=_target(words or [], module, is_command=ctx.meta[IS_COMMAND]),
        num_peers=parse_num_peers(num_peers, os.environ, host_gpus()),
        is_auto=num_peers == "auto",
        swarm=swarm,
        num_restarts=restarts,
        fence_s=fence,
        log_dir=log_dir,
        verbosity=verbose - quiet,
        only="join" if join else "new" if new else "",
        home=home,
        min_peers=min_peers,
        policy=policy,
        resume=resume,
        receipts=receipts,
        join_timeout_s=join_timeout,
        step_timeout_s=step_timeout,
        receipts_full=receipts_full,
        may_differ=may_differ or (),
        mixed=mixed,
        slow_peers=slow_peers,
        slow_factor=slow_factor,
        on_all_dead=on_all_dead,
        tcp=TcpOptions(seeds=seeds, bind=bind, advertise=advertise, key=key, insecure=insecure, network=network),
    )
    launcher = Launcher(config, environ=os.environ, stdout=sys.stdout.fileno(), stderr=sys.stderr.fileno())
    with ExitStack() as stack:
        if web:
            from p2p.host.folders import default_home
            from p2p.status.web import serving

            folder = home or default_home(os.environ)
            url = stack.enter_context(serving(web, folder, config.swarm_name, time.monotonic_ns))
            if not quiet:
                print(f"shoal: {url} shows the peers of this host", file=sys.stderr, flush=True)
        code = launcher.run()
    raise typer.Exit(code)


def _given(ctx: typer.Context, *names: str) -> list[str]:
    """The options among `names` that were given on the command line, not in the environment."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return [f"--{name}" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _target(words: list[str], module: str | None, *, is_command: bool) -> "Target":
    from p2p.launch.target import Target

    if module is not None:
        return Target.module(module, words)
    if not words:
        raise LaunchError("nothing to run: give SCRIPT.PY, or -m MODULE, or -- COMMAND")
    return Target.of_command(words) if is_command else Target.script(Path(words[0]), words[1:])


@app.command(short_help="Show swarms: members, steps, which peer waits for which, what happened last.")
def status(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of a swarm; without it, all of this host.")] = "",
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every second, until Ctrl-C.")] = False,
    home: Annotated[Path | None, typer.Option(help="Registry folder of this user.", envvar="SHOAL_HOME")] = None,
    seeds: Annotated[
        str, typer.Option(help="host:port of one or more peers of another host to ask, with commas.")
    ] = "",
    key: Annotated[
        Path | None, typer.Option(help="File with the swarm key, or env:NAME, or fd:N.", envvar="SHOAL_KEY")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="That peer runs without a key.")] = False,
    network: Annotated[str, typer.Option(help="Network setting of that peer: lan or wan.")] = "lan",
) -> None:
    """Show the swarms of this host, also peers that hang, are stopped, or have died; or ask a peer of another host."""
    from p2p.status.screen import show

    tcp = None
    if not seeds and (given := _given(ctx, "key", "insecure", "network")):
        raise LaunchError(f"{', '.join(given)}: only for a peer of another host: give --seeds HOST:PORT, too")
    if seeds:
        from p2p.net.tcp import TcpOptions

        tcp = TcpOptions(seeds=seeds, key=None if insecure else key, insecure=insecure, network=network)
    show(home, name, tcp, is_json=json, watches=watch)


@app.command(short_help="Show a row per peer, with its last steps, until Ctrl-C.")
def top(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of a swarm; without it, all of this host.")] = "",
    home: Annotated[Path | None, typer.Option(help="Registry folder of this user.", envvar="SHOAL_HOME")] = None,
) -> None:
    """Show the peers of this host, a row for each: what its last steps took, what it does, and what happened last.

    Bars are steps: the third height is the median of the last 240, two heights more are a factor of 2. If the output
    is not a terminal, it is shown once.
    """
    from p2p.status.screen import top as show_top

    show_top(home, name)


add_experiments(app)


@key.command("new")
def key_new(
    out: Annotated[
        Path | None, typer.Option(help="A new file, which only you can read; without it, stdout.", show_default=False)
    ] = None,
) -> None:
    """Make a swarm key. Any process that has it may take part; copy it to every host, and nowhere else."""
    from p2p.host.keys import show_key, write_key

    if out is None:
        show_key(sys.stdout.fileno())
    else:
        write_key(out)


@app.command(short_help="Show what peers can do on this machine, and what limits them.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    parameters: Annotated[
        str, typer.Option(metavar="N", help="Parameters of the model to show costs for; K, M and G are powers of 1000.")
    ] = "100M",
) -> None:
    """Look at cores, memory, shared memory, open files, GPUs and what the network lab needs, and try what can be tried.

    Also what an exchange of rounds costs, by codec and number of peers. Takes some seconds, and leaves nothing behind.
    """
    from p2p.doctor.command import run

    raise typer.Exit(run(parameters, is_json=json))


Checkpoints = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of all checkpoints of a run, or of one.")]


@checkpoint.command("show")
def checkpoint_show(folder: Checkpoints) -> None:
    """List checkpoints: step, epoch, size, run, how often the run had started, and which one came before."""
    from p2p.checkpoint.show import show

    print("\n".join(show(folder)))


@checkpoint.command("verify")
def checkpoint_verify(folder: Checkpoints) -> None:
    """Read checkpoints, and compare each tensor with its digest. Ends with 1 if one is not as it was written."""
    from p2p.checkpoint.show import verify

    lines, are_whole = verify(folder)
    print("\n".join(lines))
    raise typer.Exit(0 if are_whole else 1)


def main() -> None:
    """Run the command line; an error of a user or peer is printed as one line, with exit code 2."""
    try:
        app()
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
