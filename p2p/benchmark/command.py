"""The commands `shoal bench`. Each imports what it needs when it runs."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

app = typer.Typer(help="Measure, and compare with others.", no_args_is_help=True, rich_markup_mode=None)

DRAWN_NET: Final = "rate=200mbit,delay=20ms"

WAYS: Final = (
    "@arena: in shared memory, @early: before the commit, @sockets: without shared memory, @tcp: as between hosts, "
    "@curve: the same with a key, @adds: summed on the GPUs."
)

Swarm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Measure with the peers that wait in `shoal bench --serve --swarm NAME`, here and on other machines; this "
        "one joins them, and -n is the least number of peers.",
        show_default=False,
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="HOST:PORT,...", help="Peers of the swarm, on other machines.", show_default=False)
]
Key = Annotated[Path | None, typer.Option(help="File with the swarm key.", show_default=False)]

OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "num_peers": (Annotated[int, typer.Option("-n", help="Number of peers.")], 2),
    "algos": (str, ""),
    "root": (Annotated[int, typer.Option(help="The rank that gives or gets the arrays.")], 0),
    "baseline": (
        Annotated[str | None, typer.Option(help="What to compare with: gloo.", show_default=False)],
        None,
    ),
    "first": (
        Annotated[str, typer.Option("-b", help="Size of the first arrays; K, M and G are powers of 1024.")],
        "4K",
    ),
    "last": (Annotated[str, typer.Option("-e", help="Largest size.")], "4M"),
    "factor": (Annotated[int, typer.Option("-f", help="Factor from size to size.")], 2),
    "sizes_from": (
        Annotated[
            Path | None,
            typer.Option(
                metavar="TRACE",
                help="Instead of -b, -e and -f: the buckets of a real step, from a trace that `shoal run --receipts` "
                "or an experiment has left, or a folder of traces.",
                show_default=False,
            ),
        ],
        None,
    ),
    "dtype": (
        Annotated[str, typer.Option(help="Type of the elements: float32, float64, float16, bfloat16, int32 or int64.")],
        "float32",
    ),
    "device": (
        Annotated[
            str,
            typer.Option(
                help="Where the arrays lie: cpu, or cuda, with a GPU for each peer, or one that peers share.",
            ),
        ],
        "cpu",
    ),
    "net": (
        Annotated[
            str | None,
            typer.Option(
                metavar="KEY=VALUE,...",
                help="Each peer on its own host of a network lab with these links, as in `shoal lab --net`, for "
                f"example {DRAWN_NET}, the default of --draw.",
                show_default=False,
            ),
        ],
        None,
    ),
    "per_host": (
        Annotated[int, typer.Option("--per-host", help="Peers on each host of --net; -n counts all of them.")],
        1,
    ),
    "swarm": (Swarm, None),
    "seeds": (Seeds, None),
    "key": (Key, None),
    "iters": (
        Annotated[
            int | None,
            typer.Option(
                help="Timed rounds per size; with --duration or --until, at most.  [default: 50]", show_default=False
            ),
        ],
        None,
    ),
    "duration": (
        Annotated[
            float | None,
            typer.Option(help="Measure for this many seconds, each size equally long.", show_default=False),
        ],
        None,
    ),
    "until": (
        Annotated[
            str | None,
            typer.Option(
                metavar="5%",
                help="Measure until the interval of the crossing of the first two of --algos is this narrow, or the "
                "time is up (--duration, 120 s).",
                show_default=False,
            ),
        ],
        None,
    ),
    "turns": (
        Annotated[
            str | None,
            typer.Option(
                metavar="PATH",
                help="Take turns, some rounds each, with another run that starts at the same time with the same "
                "PATH, for example of other code; `shoal bench compare` then compares round by round.",
                show_default=False,
            ),
        ],
        None,
    ),
    "warmup": (Annotated[int, typer.Option(help="Untimed rounds of each size before the timed ones.")], 5),
    "json": (Annotated[Path | None, typer.Option(help="Also write all samples here.", show_default=False)], None),
    "csv": (
        Annotated[Path | None, typer.Option(help="Also write a row per algorithm and size here.", show_default=False)],
        None,
    ),
    "plot": (
        Annotated[Path | None, typer.Option(help="Also draw: FILE.svg, FILE.html or FILE.png.", show_default=False)],
        None,
    ),
    "explain": (
        Annotated[bool, typer.Option("--explain", help="Also say what auto takes at each size, and why.")],
        False,
    ),
    "draw": (
        Annotated[
            str | None,
            typer.Option(
                metavar="ALGO",
                help="Measure nothing: draw what ALGO does with -n peers and an array of -b bytes, as ALGO-N.svg.",
                show_default=False,
            ),
        ],
        None,
    ),
    "schedule": (
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="FILE.py:NAME",
                help="Also measure an algorithm of your own (examples/own_schedule.py), if it is proven for -n peers: "
                "a function of rank and number of peers. In --algos it is NAME, with - for _. Can be repeated.",
                show_default=False,
            ),
        ],
        None,
    ),
}
"""Options of all operations: type and default."""

OF_ALL_REDUCE: Final = ("explain", "draw", "device", "schedule")
SIZES: Final = ("first", "last", "factor", "sizes_from", "dtype", "until")

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "all-reduce": ("Sum arrays over all peers", "one-shot,direct,ring,tree"),
    "reduce-scatter": ("Sum arrays over all peers, a part of the sum for each", "direct,ring"),
    "all-gather": ("Give all peers the arrays of all", "one-shot,ring"),
    "broadcast": ("Give all peers the array of one", "one-shot,binary-tree,ring"),
    "reduce": ("Sum arrays over all peers, for one of them", "binary-tree"),
    "gather": ("Give one peer the arrays of all", "direct"),
    "scatter": ("Give each peer a part of the array of one", "direct"),
    "all-to-all": ("Give each peer a part of the array of each", "direct"),
    "barrier": ("Wait for all peers", "one-shot"),
}
"""For each operation its description, and the algorithms that are measured by default."""
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")


def _add(operation: str, what: str, algos: str) -> None:
    def run(**given: Any) -> None:
        raise typer.Exit(_measure(operation, {**{name: default for name, (_, default) in OPTIONS.items()}, **given}))

    left_out = [name for name in OF_ALL_REDUCE if operation != "all-reduce"]
    left_out += ["root"] * (operation not in ROOTED)
    left_out += SIZES if operation == "barrier" else ()
    others = ", tree, binary-tree, halving-doubling, hierarchical" if operation == "all-reduce" else ""
    named = f"Any of {algos.removesuffix(',tree').replace(',', ', ')}{others} and auto, with commas; {WAYS}"
    options = OPTIONS | {"algos": (Annotated[str, typer.Option(help=named)], algos)}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
            if name not in left_out
        ]
    )
    run.__doc__ = f"{what}, verify every result, and show how long it took on the slowest peer, and how sure that is."
    app.command(operation)(run)


for _name, (_what, _algos) in COMMANDS.items():
    _add(_name, _what, _algos)


def _measure(operation: str, given: Mapping[str, Any]) -> int:
    """Run `shoal bench OPERATION`; returns the exit code."""
    from . import plan as plans

    num_peers, net = given["num_peers"], given["net"]
    schedules, algorithms = _own_schedules(given, plans.split_names(given["algos"]))
    if given["draw"] is not None:
        from ..errors import LaunchError
        from .drawing import draw_all_reduce

        if unwritten := [f"--{name}" for name in ("json", "csv", "plot", "explain") if given[name]]:
            raise LaunchError(f"--draw measures nothing, so leave {', '.join(unwritten)} out")
        size_bytes = plans.parse_size(given["first"])
        drawn_net = DRAWN_NET if net is None else net
        print(draw_all_reduce(given["draw"], num_peers, size_bytes, drawn_net, given["per_host"]))
        return 0
    from .director import Outputs, run_bench

    if given["sizes_from"] is not None:
        from .recorded import bucket_sizes, say_buckets

        buckets = bucket_sizes(given["sizes_from"])
        print(say_buckets(buckets))
        sizes = plans.sizes_of_buckets(buckets, given["dtype"])
    else:
        first, last = plans.parse_size(given["first"]), plans.parse_size(given["last"])
        sizes = plans.sizes_between(first, last, given["factor"])
    num_iters, duration_s, until_width = plans.rounds_wanted(given["iters"], given["duration"], given["until"])
    plan = plans.Plan(
        operation=operation,
        root=given["root"],
        num_peers=num_peers,
        algorithms=algorithms,
        baseline=given["baseline"],
        sizes_bytes=plans.whole_sizes(operation, sizes, num_peers, given["dtype"]),
        num_iters=num_iters,
        num_warmup=given["warmup"],
        dtype=given["dtype"],
        device=given["device"],
        net=net,
        per_host=given["per_host"],
        duration_s=duration_s,
        until=until_width,
        swarm=given["swarm"],
        turns=given["turns"] and os.path.abspath(given["turns"]),
        schedules=schedules,
    )
    outputs = Outputs(json=given["json"], csv=given["csv"], plot=given["plot"], explains=given["explain"])
    if plan.swarm is None:
        return run_bench(plan, os.environ, outputs)
    from .director import run_in_swarm

    return run_in_swarm(plan, {name: given[name] for name in ("seeds", "key")}, outputs)


def _own_schedules(given: Mapping[str, Any], algorithms: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The proven schedules of --schedule; and the algorithms, extended by the schedules that --algos does not name."""
    from . import own
    from .plan import PEERS_MAX

    schedules = tuple(own.resolved(each) for each in given["schedule"] or ())
    own.register(schedules, min(max(1, given["num_peers"]), PEERS_MAX))  # the plan checks -n
    named = {name.partition("@")[0] for name in algorithms}
    return schedules, (*algorithms, *(name for name in map(own.name_of, schedules) if name not in named))


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    serves: Annotated[
        bool,
        typer.Option("--serve", help="Wait in a swarm, and measure what other peers ask for (OPERATION --swarm NAME)."),
    ] = False,
    swarm: Swarm = None,
    seeds: Seeds = None,
    bind: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Listen there for other machines.", show_default=False),
    ] = None,
    key: Key = None,
) -> None:
    """Measure, and compare with others."""
    from ..errors import LaunchError

    if (operation := context.invoked_subcommand) is not None:
        if any(value not in (None, False) for value in context.params.values()):
            raise LaunchError(
                f"the options before {operation} are for peers that wait, and would be ignored: write either "
                f"shoal bench {operation} --swarm NAME, or, without an operation, shoal bench --serve --swarm NAME"
            )
        return
    if not serves or not swarm:
        raise LaunchError("`shoal bench` is followed by an operation, or by --serve --swarm NAME; see --help")
    from .measuring.swarm import serve as wait_for_plans

    raise typer.Exit(wait_for_plans(swarm, {"seeds": seeds, "bind": bind, "key": key}))


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="File of --json.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The same, with other code.")],
) -> None:
    """Say for each algorithm and size whether B is faster, slower, the same within 3 %, or whether that is unclear.

    Exits with 1 if B is slower somewhere; with 2 if the runs cannot be compared.
    """
    from .results.compare import compare_files

    raise typer.Exit(compare_files(a, b))
