import pytest
import torch
from torch import nn

from p2p.training.tensors.summable import check_one_device, summable_of


def test_parameters_on_two_devices_are_refused_and_both_are_named() -> None:
    model = nn.ParameterDict({"a": torch.zeros(2), "b": torch.zeros(2, device="meta")})
    with pytest.raises(ValueError, match="parameter b is on meta, but a is on cpu: a peer trains on one device"):
        check_one_device(dict(model.named_parameters()))
    model["b"].requires_grad_(False)
    check_one_device(dict(model.named_parameters()))


def test_a_parameter_without_memory_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"parameter weight is torch.float32 on meta: it must be .* CPU or a CUDA device"
    ):
        summable_of("", nn.Linear(2, 2, device="meta"))


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch has grad_dtype since 2.9")
def test_a_parameter_whose_gradient_has_another_type_is_refused_with_both() -> None:
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    summable_of("", model)
    model.bias.grad_dtype = torch.float32
    with pytest.raises(ValueError, match=r"bias is torch\.bfloat16, but its grad_dtype is torch\.float32"):
        summable_of("", model)
