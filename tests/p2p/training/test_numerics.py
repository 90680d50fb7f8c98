import torch

from p2p.training.numerics import FLAGS, class_of, describe_numerics
from p2p.training.replica_state import pack, unpack_into


def optimizer(**flags: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], **flags)  # type: ignore[arg-type]


def test_what_computes_an_update_makes_a_class() -> None:
    parameters = [torch.zeros(2)]
    text = describe_numerics(parameters, [optimizer(), object()])
    assert text.startswith("cpu ") and torch.backends.cpu.get_cpu_capability() in text and torch.__version__ in text
    others: list[list[torch.optim.Optimizer]] = [
        [optimizer(fused=True)],
        [optimizer(foreach=True)],
        [torch.optim.SGD(parameters, lr=0.1)],
    ]
    texts = {text, *(describe_numerics(parameters, each) for each in others)}
    assert len({class_of(each) for each in texts}) == 4
    assert all(class_of(each)[4:] == bytes(4) != class_of(each)[:4] for each in texts)


def test_what_an_update_is_and_by_how_many_threads_makes_none() -> None:
    parameters = [torch.zeros(2)]
    before, num_threads = describe_numerics(parameters, [optimizer(lr=0.1)]), torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads + 1)
        assert describe_numerics(parameters, [optimizer(lr=0.2)]) == before
    finally:
        torch.set_num_threads(num_threads)


def test_a_state_that_is_loaded_leaves_the_code_of_the_optimizer_as_it_is() -> None:
    ours, theirs = optimizer(foreach=True, lr=0.1), optimizer(fused=True, lr=0.2)
    unpack_into(pack({}, [theirs], None), {}, [ours])
    (group,) = ours.param_groups
    assert (group["lr"], group["foreach"], group["fused"]) == (0.2, True, None)
    assert {"foreach", "fused"} < {*FLAGS}
