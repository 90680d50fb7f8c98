"""The arguments of a script by name, and what others may be shown of them.

`--lr 0.1` and `--lr=0.1` are `--lr`; what has no flag before it is named by its place: 1, 2. Which flags of a script
take a value is not known here, so a word behind `--verbose` is taken for its value, by all peers alike.
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
    """Each argument as it would be written by hand. A flag that is given twice has both values, in their order.

    All that comes after the first 256 is one argument; a name of more than 64 characters is its digest.
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
    """Of an argument, for whoever may not see it."""
    return blake2b(text.encode(errors="surrogateescape"), digest_size=DIGEST_BYTES).digest()


def shown(name: str, text: str) -> str:
    """An argument for people, in a line; not what may be a secret, nor all of what is long."""
    if _SECRET.search(text):
        return f"{name} (not shown; its digest is {digest(text).hex()})"
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return plain if plain == text and len(plain) <= SHOWN_MAX else f"{plain[:SHOWN_MAX]} (digest {digest(text).hex()})"
