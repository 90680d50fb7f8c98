"""The commands `shoal bench`. Each imports what it needs when it runs."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

app = typer.Typer(help="Measure, and compare with others.", no_args_is_help=True, rich_markup_mode=None)

DRAWN_NET: Final = "rate=200mbit,delay=20ms"


@app.command("all-reduce")
def all_reduce(
    num_peers: Annotated[int, typer.Option("-n", help="Number of peers.")] = 2,
    algos: Annotated[
        str,
        typer.Option(
            help="Of one-shot, direct, ring, tree, binary-tree, halving-doubling, hierarchical and auto, with commas; "
            "@arena: in shared memory, @early: before the commit, @sockets: without shared memory, "
            "@tcp: as between hosts, @curve: the same with a key."
        ),
    ] = "one-shot,direct,ring,tree",
    baseline: Annotated[str | None, typer.Option(help="Whom to compare with: gloo.", show_default=False)] = None,
    first: Annotated[str, typer.Option("-b", help="Size of the first arrays; K, M and G are powers of 1024.")] = "4K",
    last: Annotated[str, typer.Option("-e", help="Largest size.")] = "4M",
    factor: Annotated[int, typer.Option("-f", help="From size to size.")] = 2,
    dtype: Annotated[str, typer.Option(help="Of the elements: float32, float64, float16, int32 or int64.")] = "float32",
    net: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Each peer on a host of its own, of a network lab with such links, as of `shoal lab`: "
            f"{DRAWN_NET}, say, which --draw takes where nothing is said.",
            show_default=False,
        ),
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option(
            help="Timed rounds per size; with --duration or --until at most.  [default: 50]", show_default=False
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Go on for so many seconds, each size for as long.", show_default=False)
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="5%",
            help="Go on until the interval of the crossing of the first two of --algos is that narrow, or the time is "
            "up (--duration, 120 s).",
            show_default=False,
        ),
    ] = None,
    warmup: Annotated[int, typer.Option(help="Rounds of each size before them.")] = 5,
    json: Annotated[Path | None, typer.Option(help="Also write all samples here.", show_default=False)] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write a row per algorithm and size here.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw: FILE.svg, FILE.html or FILE.png.", show_default=False)
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also say what auto takes at each size, and why.")] = False,
    draw: Annotated[
        str | None,
        typer.Option(
            metavar="ALGO",
            help="Measure nothing: draw what ALGO does with -n peers and an array of -b bytes, as ALGO-N.svg.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Sum arrays over all peers, verify every result, and say how long it took on the slowest, and how sure that is."""
    from . import plan as plans

    if draw is not None:
        from .drawing import draw_all_reduce

        print(draw_all_reduce(draw, num_peers, plans.parse_size(first), DRAWN_NET if net is None else net))
        return
    from .all_reduce import Outputs, bench_all_reduce

    num_iters, duration_s, until_width = plans.rounds_wanted(iters, duration, until)
    plan = plans.Plan(
        num_peers=num_peers,
        algorithms=plans.split_names(algos),
        baseline=baseline,
        sizes_bytes=plans.sizes_between(plans.parse_size(first), plans.parse_size(last), factor),
        num_iters=num_iters,
        num_warmup=warmup,
        dtype=dtype,
        net=net,
        duration_s=duration_s,
        until=until_width,
    )
    raise typer.Exit(bench_all_reduce(plan, os.environ, Outputs(json=json, csv=csv, plot=plot, explains=explain)))


@app.command("compare")
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Of --json.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The same, of other code.")],
) -> None:
    """Say for each algorithm and size whether B is faster, slower, the same within 3 %, or whether that is unclear.

    Ends with 1 if B is slower somewhere; with 2 if the runs cannot be compared.
    """
    from .compare import compare_files

    raise typer.Exit(compare_files(a, b))
