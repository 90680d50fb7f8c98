"""The arguments of a script by name, and their form in messages, without secrets.

`--lr 0.1` and `--lr=0.1` both have the name `--lr`; an argument without a flag before it is named by its position: 1,
2.
Which flags take a value is unknown here, so a word after `--verbose` counts as its value, on all peers alike.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

NAME_MAX: Final = 64
SHOWN_MAX: Final = 200
ARGUMENTS_MAX: Final = 256
DIGEST_BYTES: Final = 8

_FLAG: Final = re.compile(r"(--\w|-[^\W\d])[^=]*", re.DOTALL)
_SECRET: Final = re.compile(
    r"(^|[-_.])((api)?key|token|secret|pass(word|wd|phrase)?|credentials?|auth)(?![a-z0-9])|://[^/\s]*@", re.IGNORECASE
)


def by_name(args: Sequence[str]) -> dict[str, str]:
    """Text of each argument, flag included, by name. A repeated flag has all its values, in order.

    All arguments after the first 256 are one argument; a name of more than 64 characters is replaced by its digest.
    """
    found: dict[str, str] = {}
    num_places = index = 0
    while index < len(args):
        word, index = args[index], index + 1
        flag, is_given, value = word.partition("=")
        if not _FLAG.fullmatch(flag):
            num_places += 1
            name, text = str(num_places), word
        else:
            if not is_given and index < len(args) and not _FLAG.fullmatch(args[index].partition("=")[0]):
                value, is_given, index = args[index], "=", index + 1
            name, text = flag, f"{flag} {value}" if is_given else flag
        if len(found) >= ARGUMENTS_MAX:
            name = f"{ARGUMENTS_MAX + 1}"
        if len(name) > NAME_MAX or not name.isprintable():
            name = f"--{digest(name).hex()}"
        found[name] = f"{found[name]} {text}" if name in found else text
    return found


def digest(text: str) -> bytes:
    """Digest of an argument, for comparison where the text may not be shown."""
    return blake2b(text.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).digest()


def shown(name: str, text: str) -> str:
    """An argument on one line for messages: possible secrets are replaced by a digest, long texts are shortened."""
    if _SECRET.search(text):
        return f"{name} (not shown; its digest is {digest(text).hex()})"
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return plain if plain == text and len(plain) <= SHOWN_MAX else f"{plain[:SHOWN_MAX]} (digest {digest(text).hex()})"
