import torch
from torch.optim import SGD

from p2p.training.rounds.iterations import Iterations


def optimizers(number: int) -> list[SGD]:
    return [SGD([torch.zeros(1, requires_grad=True)]) for _ in range(number)]


def ends(which: Iterations, updates: str, batches: str = "") -> str:
    """Ends of inner steps for these updates by number: on these batches, or on the script's own data."""
    found = ""
    for place, update in enumerate(updates):
        batch = int(batches[place]) if batches else None
        found += "x" if which.count_update(which.optimizers[int(update)], batch) else "."
    return found


def test_each_update_of_one_optimizer_is_an_inner_step() -> None:
    which = Iterations(optimizers(1))
    assert ends(which, "000") == "xxx" and which.num_steps == 3
    which.end_round()
    assert ends(which, "00", "12") == "xx" and (which.num_steps, which.num_updates) == (2, 2)


def test_a_batch_is_done_with_as_many_updates_as_that_had_which_had_most() -> None:
    assert ends(Iterations(optimizers(1)), "0" * 9, "112223333") == "xx.xx..xx"
    assert ends(Iterations(optimizers(2)), "101010", "112233") == ".x.x.x"
    which = Iterations(optimizers(2))
    assert ends(which, "0001000", "1233456") == ".xxx..."  # a generator's, on each third batch
    assert which.num_steps == 6


def test_the_optimizer_whose_first_update_came_last_ends_a_step_of_ones_own_data() -> None:
    for updates, expected in (("101010", ".x.x.x"), ("010101", "...x.x"), ("111101111011110", "....x....x....x")):
        which = Iterations(optimizers(2))
        assert ends(which, updates) == expected
        assert which.num_steps == 3
    which = Iterations(optimizers(3))
    assert ends(which, "102102102") == ".x...x..x"  # the middle optimizer counts until the order is known
    assert which.num_steps == 3
