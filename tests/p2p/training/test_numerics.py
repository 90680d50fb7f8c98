import torch

from p2p.device import HOST
from p2p.training.state.numerics import FLAGS, class_of, describe_numerics
from p2p.training.state.replica_state import pack, unpack_into


def optimizer(**flags: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], **flags)  # type: ignore[arg-type]


def test_what_computes_an_update_makes_a_class() -> None:
    text = describe_numerics(HOST, [optimizer(), object()])
    assert text.startswith("cpu ") and torch.backends.cpu.get_cpu_capability() in text and torch.__version__ in text
    others: list[list[torch.optim.Optimizer]] = [
        [optimizer(fused=True)],
        [optimizer(foreach=True)],
        [torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)],
    ]
    texts = {text, *(describe_numerics(HOST, each) for each in others)}
    assert len({class_of(each) for each in texts}) == 4
    assert all(class_of(each)[4:] == bytes(4) != class_of(each)[:4] for each in texts)


def test_what_an_update_is_and_by_how_many_threads_makes_none() -> None:
    before, num_threads = describe_numerics(HOST, [optimizer(lr=0.1)]), torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads + 1)
        assert describe_numerics(HOST, [optimizer(lr=0.2)]) == before
    finally:
        torch.set_num_threads(num_threads)


def test_a_state_that_is_loaded_leaves_the_code_of_the_optimizer_as_it_is() -> None:
    ours, theirs = optimizer(foreach=True, lr=0.1), optimizer(fused=True, lr=0.2)
    unpack_into(pack({}, [theirs], None), {}, [ours])
    (group,) = ours.param_groups
    assert (group["lr"], group["foreach"], group["fused"]) == (0.2, True, None)
    assert {"foreach", "fused"} < {*FLAGS}


def test_the_number_of_threads_changes_no_clipped_update() -> None:
    """So the number is not part of the numerics class; sums and means of that length do depend on it."""
    num_threads = torch.get_num_threads()
    found = set()
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            generator = torch.Generator().manual_seed(0)
            weights = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in (50_000, 1_000_001)]
            updater = torch.optim.AdamW(weights)
            for _ in range(3):
                for weight in weights:
                    weight.grad = torch.randn(weight.shape, generator=generator)
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                updater.step()
            found.add(b"".join(weight.detach().numpy().tobytes() for weight in weights))
    finally:
        torch.set_num_threads(num_threads)
    assert len(found) == 1
