"""The output of `shoal lab show`: tables of hosts and pairs."""

from typing import TYPE_CHECKING, Any

from .messages import Message

if TYPE_CHECKING:
    from rich.table import Table

COUNTS = ("packets", "num_bytes", "dropped_queue", "dropped_loss", "dropped_mtu", "dropped_cut")


def tables(shown: Message) -> "tuple[Table, Table, str]":
    """Hosts, pairs, and a line with the lateness of the lab."""
    from rich.table import Table

    hosts = Table("host", "name", "region", "up", "down", "queue")
    for host in shown["hosts"]:
        state = " (gone)" if host["is_gone"] else ""
        cells = (f"{host['number']}{state}", host["name"], host["region"])
        hosts.add_row(*cells, *(host.get(key, "") for key in ("up", "down", "queue")))
    pairs = Table("from", "to", "link", *(name.removeprefix("num_").replace("_", " ") for name in COUNTS))
    for column in pairs.columns[3:]:
        column.justify = "right"
    for pair in shown["pairs"]:
        pairs.add_row(str(pair["from"]), str(pair["to"]), _link(pair), *(f"{pair[name]:,}" for name in COUNTS))
    late = {share: f"{value / 1e3:.2f} ms" for share, value in shown["lateness_us"].items()}
    missed = shown["num_missed"]
    return (
        hosts,
        pairs,
        f"lateness of {shown['num_frames']:,} frames: "
        + ", ".join(f"{share} {value}" for share, value in late.items())
        + (f"; {missed:,} lost by the lab itself" if missed else ""),
    )


def _link(pair: dict[str, Any]) -> str:
    if "cut" in pair:
        return "cut"
    return ",".join(f"{key}={pair[key]}" for key in ("rate", "delay", "jitter", "loss", "mtu") if key in pair)
