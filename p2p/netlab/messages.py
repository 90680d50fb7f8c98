"""Messages between the processes of a lab, and from `shoal lab set`: JSON, with descriptors.

The text lies in a memfd whose descriptor is sent (unix(7), SCM_RIGHTS), so a message of any length is one packet.
"""

import json
import os
import socket
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

Message = dict[str, Any]

_MOST_DESCRIPTORS: Final = 8
_MOST_BYTES: Final = 16 << 20


def send(channel: socket.socket, message: Message, descriptors: Sequence[int] = ()) -> None:
    """Send a message with descriptors. Raises OSError if the other side is gone."""
    text = json.dumps(message).encode()
    file = os.memfd_create("shoal-lab", os.MFD_CLOEXEC)
    try:
        os.write(file, text)
        socket.send_fds(channel, [b"."], [file, *descriptors])
    finally:
        os.close(file)


def receive(channel: socket.socket) -> tuple[Message, list[int]]:
    """Receive a message and its descriptors, which the caller has to close.

    Raises:
        EOFError: the other side is gone.
        ValueError: the packet is no message.
    """
    try:
        # Not `socket.recv_fds`, which forgets its flags (CPython 3.11): every command would inherit the descriptors.
        data, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        raise EOFError from None
    if not data:
        raise EOFError
    descriptors = [*chain.from_iterable(array("i", content) for _, _, content in ancillary)]
    if not descriptors:
        raise ValueError("a message without its text")
    file, *rest = descriptors
    try:
        message = json.loads(os.pread(file, _MOST_BYTES, 0))
        if not isinstance(message, dict):
            raise ValueError("a message is a table")
    except (ValueError, OSError):
        for descriptor in rest:
            os.close(descriptor)
        raise ValueError("a message that is no JSON") from None
    finally:
        os.close(file)
    return message, rest
