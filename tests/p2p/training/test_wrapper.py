import copy
from collections.abc import Callable

import pytest
import torch

import p2p
from p2p.training.wrapper import Wrapper


def wrapped() -> tuple[Wrapper, torch.nn.Module]:
    wrapper, module = Wrapper(), torch.nn.Linear(2, 1)
    wrapper.module = module
    return wrapper, module


@pytest.mark.parametrize("call", [copy.deepcopy, copy.copy])
def test_what_belongs_to_a_peer_has_no_copy_and_its_model_has(call: Callable[[object], object]) -> None:
    wrapper, module = wrapped()
    with pytest.raises(TypeError, match=r"p2p\.Wrapper belongs to its peer, so it cannot be copied or saved: use"):
        call(wrapper)
    call(module)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_it_loads_what_the_model_returns_and_what_ddp_does(prefix: str) -> None:
    wrapper, module = wrapped()
    wrapper.load_state_dict({f"{prefix}weight": torch.ones(1, 2), f"{prefix}bias": torch.ones(1)})
    assert [each.tolist() for each in module.state_dict().values()] == [[[1.0, 1.0]], [1.0]]


def test_who_sets_an_attribute_of_the_model_on_the_wrapper_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    wrapper, module = wrapped()
    module.tau = 1.0  # type: ignore[assignment]
    wrapper.eval()
    wrapper.other = 0.5
    assert not caplog.messages
    for _ in range(2):
        wrapper.tau = 0.5
    assert caplog.messages == [
        "tau = 0.5 was set on the wrapper, but the model keeps its own value 1.0: set it on `.module.tau` "
        "(reported once)"
    ]
    assert [each.tau for each in (wrapper, module)] == [0.5, 1.0]


def test_a_part_of_the_model_cannot_be_set_on_the_wrapper() -> None:
    wrapper, module = wrapped()
    module.head, head = torch.nn.Linear(1, 1), torch.nn.Linear(1, 2)
    for name, value in (("head", head), ("bias", torch.nn.Parameter(torch.zeros(1)))):
        with pytest.raises(AttributeError, match=rf"{name} was set on the wrapper, .* set it on `.module.{name}`"):
            setattr(wrapper, name, value)
    assert module.head is not head
    wrapper.module = torch.nn.Linear(2, 2)


def test_what_is_no_peer_or_no_checkpoint_is_refused_with_what_is_meant() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrap in (p2p.DataParallel, p2p.DiLoCo):
        first = rf"p2p\.{wrap.__name__} takes the peer first, as in .*, but got a Linear"
        with pytest.raises(TypeError, match=first):
            wrap(model, model, optimizer)  # type: ignore[arg-type]
