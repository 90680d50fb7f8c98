"""Schedules of a user: loading from a file, and messages about invalid ones."""

from pathlib import Path

import pytest

from collectives import ALGORITHMS
from collectives.direct import direct_all_reduce, direct_shares
from p2p.benchmark.measuring.swarm import check
from p2p.benchmark.own import name_of, rates_of, register, register_for_rates, resolved
from p2p.benchmark.plan import Plan
from p2p.errors import LaunchError

pytestmark = pytest.mark.usefixtures("own_algorithms")

EXAMPLE = f"{Path(__file__).parents[3]}/examples/own_schedule.py:recursive_doubling"

FILE = """
from collectives import TransferList, even_chunks

not_a_function = 3

def to_the_first(rank, world_size):
    transfers = TransferList()
    for peer in range(1, world_size) if rank == 0 else ():
        transfers.reduce(peer, 0)
    if rank:
        transfers.send(0, 0)
    return transfers.schedule(even_chunks(1))

def twice(rank, world_size):
    transfers = TransferList()
    for peer in range(world_size):
        if peer != rank:
            transfers.send(peer, 0)
    for peer in (*range(world_size), rank):
        transfers.reduce(peer, 0)
    return transfers.schedule(even_chunks(1))

def lends(rank, world_size):
    transfers = TransferList()
    for distance in (1, 2):
        transfers.send(rank ^ distance, 0)
        transfers.reduce(rank ^ distance, 0)
    return transfers.schedule(even_chunks(1))

def ring(rank, world_size):
    raise AssertionError("never asked: there is one")

def fails(rank, world_size):
    raise KeyError("of two\\nlines")

def nothing(rank, world_size):
    return None
"""


def test_a_function_of_a_file_is_an_algorithm_named_like_it() -> None:
    register([resolved(EXAMPLE)], 4)
    assert "recursive-doubling" in ALGORITHMS
    assert name_of(EXAMPLE) == "recursive-doubling"


def test_a_plan_knows_it_before_it_is_read_and_hands_it_to_each_peer() -> None:
    names = ("recursive-doubling", "recursive-doubling@early", "ring")
    plan = Plan(
        num_peers=3, algorithms=names, baseline=None, sizes_bytes=(4,), num_iters=1, num_warmup=0, schedules=(EXAMPLE,)
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert "schedules" not in plan.shared, "two checkouts may take turns"
    with pytest.raises(LaunchError, match="--swarm carries no code to its peers: leave --schedule out"):
        check(Plan.from_json(plan.to_json().replace('"swarm": null', '"swarm": "pond"')))


@pytest.mark.parametrize(
    ("name", "num_peers", "said"),
    [
        ("to_the_first", 3, r"is not an all-reduce of 3 peers: rank 1, chunk 0: adds up .*; lacks that of rank 0, 2$"),
        ("twice", 2, r"rank 0, chunk 0: adds up .*; has that of rank 0 more than once$"),
        ("lends", 4, r"rank 0, transfer 3 .*: may overwrite what is still lent to rank 0, transfer 2"),
        ("ring", 3, "there is an algorithm 'ring' already, give it another name"),
        ("fails", 3, r"makes no schedules of 3 peers: KeyError: .of two.*lines.$"),
        ("nothing", 3, "makes no schedules of 3 peers: AttributeError: 'NoneType' object has no attribute"),
        ("not_a_function", 3, "the file has no function not_a_function"),
        ("absent", 3, "the file has no function absent"),
    ],
)
def test_what_is_none_is_named_in_one_line(tmp_path: Path, name: str, num_peers: int, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    with pytest.raises(LaunchError, match=said) as error:
        register([resolved(f"{path}:{name}")], num_peers)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (", "SyntaxError: "),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import nosuch", "ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(LaunchError, match=f"mine.py:f: the file cannot be imported: {said}"):
        register([resolved(f"{path}:f")], 2)


@pytest.mark.parametrize("schedule", ["mine.py", "mine:f", "mine.py:", "mine.py:a b", ""])
def test_what_names_no_function_of_a_file_is_refused(schedule: str) -> None:
    with pytest.raises(LaunchError, match=r"--schedule is FILE\.py:NAME"):
        resolved(schedule)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(LaunchError, match=r"there is no file nowhere\.py"):
        resolved("nowhere.py:f")


def test_shares_follow_from_the_lines_of_the_peers_whatever_ranks_they_have() -> None:
    register_for_rates(["ring", "direct/50/100/200@early"], [2, 0, 1])
    shares = direct_shares([200, 50, 100])
    made = ALGORITHMS["direct/50/100/200"](1, 3)
    assert (made.chunks, made.transfers) == ((shares, direct_all_reduce(1, 3, shares).transfers))
    assert rates_of("direct", 3) is rates_of("ring", 3) is None


@pytest.mark.parametrize("name", ["direct/50/100", "direct/50/0/100", "direct/50/x/100", "direct/"])
def test_rates_that_are_not_those_of_the_lines_of_all_peers_are_refused(name: str) -> None:
    with pytest.raises(LaunchError, match="has to have the rate of the line of each of 3 peers"):
        Plan(num_peers=3, algorithms=(name,), baseline=None, sizes_bytes=(4,), num_iters=1, num_warmup=0)


@pytest.mark.parametrize(
    ("name", "operation", "swarm"),
    [
        ("direct/50/100", "broadcast", None),
        ("direct/50/100", "all-reduce", "mine"),
        ("direct/50/100@tcp", "all-reduce", None),
    ],
)
def test_rates_are_of_an_all_reduce_between_peers_that_are_started_for_it(
    name: str, operation: str, swarm: str | None
) -> None:
    with pytest.raises(LaunchError, match="names algorithms of"):
        Plan(
            num_peers=2,
            algorithms=(name,),
            baseline=None,
            sizes_bytes=(4,),
            num_iters=1,
            num_warmup=0,
            operation=operation,
            swarm=swarm,
        )
