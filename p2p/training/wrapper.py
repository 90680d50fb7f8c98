"""The base class of DataParallel and DiLoCo: a module with the model under the name `module`, as in DDP."""

import logging
from typing import Any, Final, NoReturn

from torch import nn

from ..checkpoint import Checkpoint
from ..peer import Peer
from ..session.session import Session
from .state.module_settings import value_of

logger = logging.getLogger("p2p")

PART_OF_MODEL: Final = (
    "{0} was set on the wrapper, but the model has a part of that name and would keep it: set it on `.module.{0}`; in "
    "the middle of a run, plan the change (`changes=` of p2p.DataParallel)"
)
ON_WRAPPER: Final = (
    "%s = %r was set on the wrapper, but the model keeps its own value %r: set it on `.module.%s` (reported once)"
)


def session_of(peer: Peer, checkpoint: Checkpoint | None, wrapper: str) -> Session:
    """Session of `peer`; TypeError if it is no Peer, or `checkpoint` no Checkpoint. `wrapper`: a name for messages."""
    if not isinstance(peer, Peer):
        first = f"{wrapper} takes the peer first, as in {wrapper}(peer, model, optimizer)"
        raise TypeError(f"{first}, but got a {type(peer).__name__}")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            'checkpoint must be a p2p.Checkpoint, as in checkpoint=p2p.Checkpoint("runs/a", every=500), is '
            f"{checkpoint!r}"
        )
    peer._session.callers.check_process(wrapper)
    return peer._session


class Wrapper(nn.Module):
    """A wrapper of one `module` for one peer. `load_state_dict` also accepts the `state_dict` of the module."""

    module: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_take_names_of_module)  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the wrapper; raise or warn if the model has an attribute of that name."""
        model = self.__dict__.get("_modules", {}).get("module")
        if model is not None and not (name in self.__dict__ or name.startswith("_") or name == "module"):
            own = vars(model).get(name)
            if any(name in table for table in (model._modules, model._parameters, model._buffers)):
                raise AttributeError(PART_OF_MODEL.format(name))
            if own is not None and value_of(own) is not None:
                logger.warning(ON_WRAPPER, name, value, own, name)
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `copy.deepcopy`, and pickle, which `torch.save` calls."""
        what = f"p2p.{type(self).__name__}"
        raise TypeError(
            f"{what} belongs to its peer, so it cannot be copied or saved: use `.module` or its state_dict()"
        )


def _take_names_of_module(wrapper: Wrapper, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    for name in wrapper.module.state_dict(keep_vars=True):
        if prefix + name in state_dict:
            state_dict[f"{prefix}module.{name}"] = state_dict.pop(prefix + name)
