"""Parameters whose gradients can be averaged: their types and devices."""

from collections.abc import Mapping

import torch

from .buckets import DTYPES
from .layouts import DEVICES

AMONG = "the CPU or a CUDA device"


def summable_of(model: str, module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters whose gradients are averaged, in about the order in which backward reaches them."""
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        what = f"model {model}" if model else type(module).__name__
        advice = ": leave it out of the dict, and each peer keeps its own" if model else ""
        raise ValueError(f"{what} has no parameter that needs a gradient{advice}")
    for name, parameter in named:
        if parameter.dtype not in DTYPES or parameter.device.type not in DEVICES:
            needed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ValueError(
                f"parameter {name} is {parameter.dtype} on {parameter.device}: it must be one of {needed}, on {AMONG}"
            )
        if getattr(parameter, "grad_dtype", None) not in (None, parameter.dtype):  # since torch 2.9
            raise ValueError(
                f"parameter {name} is {parameter.dtype}, but its grad_dtype is {parameter.grad_dtype}: gradients are "
                "averaged in the type of their parameter, so leave grad_dtype as it is"
            )
    return [parameter for _, parameter in reversed(named)]


def check_one_device(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError unless all parameters that need a gradient are on one device."""
    named = [(name, parameter) for name, parameter in parameters.items() if parameter.requires_grad]
    first, one = named[0]
    for name, other in named:
        if other.device != one.device:
            raise ValueError(
                f"parameter {name} is on {other.device}, but {first} is on {one.device}: a peer trains on one device, "
                "so move the whole model there, and start one peer for each device"
            )


def kind_of(tensor: torch.Tensor) -> str:
    """The properties that a gradient must share with its parameter, in words."""
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
