"""Generates docs/api.md from the signatures and docstrings of the names that `p2p` exports: `make api` writes it."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import p2p

PAGE: Final = Path(__file__).parents[2] / "docs" / "api.md"

INTRODUCTION: Final = """# API

What `import p2p` gives: each name with its signature, the first sentences of its docstring, and the errors that it
raises. `help(p2p.Peer.all_reduce)` has the rest: arguments, units, costs. `make api` writes this page from the code.

Names that end in `_s` are seconds, those that end in `_bytes` bytes. One thread at a time may call a peer. Every
error that shoal raises on purpose is a `ShoalError`."""

SECTIONS: Final = {
    "Taking part": ("join", "Peer", "Step", "Handle"),
    "Training": ("DataParallel", "DiLoCo", "Loader", "Checkpoint", "Stateful"),
    "What a peer sees": ("View", "Member", "Receipt", "Contribution"),
    "Settings": ("PeerConfig", "TcpOptions"),
}
"""Sections of the page; the errors follow them."""

WIDTH: Final = 120
MAX_SIGNATURE: Final = 100

_ENTRY: Final = re.compile(r" {4}(\w+(?:, \w+)*): (.*)")
_SPLIT: Final = re.compile(r"(^ {4}\w+(?:, \w+)*,)\n +", re.MULTILINE)
"""A line break between the names of an entry."""
_AS: Final = re.compile(r"^ {4}As `([\w.]+)`", re.MULTILINE)
"""An entry that includes the errors of another function."""


# Exported names


def exported() -> dict[str, Any]:
    return {name: getattr(p2p, name) for name in p2p.__all__}


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def members(cls: type) -> dict[str, Any]:
    """Public properties and methods, including those of bases in p2p; of a dataclass only the properties."""
    ours = [each for each in cls.__mro__ if each.__module__.startswith("p2p.")]
    found = {name: value for each in ours for name, value in vars(each).items() if not name.startswith("_")}
    with_methods = not dataclasses.is_dataclass(cls)
    return {name: value for name, value in found.items() if is_property(value) or (with_methods and callable(value))}


def is_property(member: object) -> bool:
    return isinstance(member, property | cached_property)


def constructor(cls: type) -> Any:
    """The documented `__init__` of a class that is no dataclass; None: there is none."""
    found = vars(cls).get("__init__")
    is_public = not (dataclasses.is_dataclass(cls) or is_error(cls)) and getattr(found, "__doc__", None)
    return found if is_public else None


def getter(member: Any) -> Any:
    """The function of a property; other members unchanged."""
    return member.fget if isinstance(member, property) else getattr(member, "func", member)


def functions() -> Iterator[tuple[str, Any]]:
    """Functions, classes and members that scripts use, by name: `join`, `Peer`, `Peer.rank`."""
    for name, value in exported().items():
        if not isinstance(value, type):
            yield name, value
            continue
        if (init := constructor(value)) is not None:
            yield name, init
        yield from ((f"{name}.{each}", getter(member)) for each, member in members(value).items())


# Docstrings


def sections(value: Any) -> dict[str, str]:
    """The sections of a docstring; the text before the first title is `head`."""
    text = inspect.cleandoc(value.__doc__ or "")
    head, *rest = re.split(r"^(Args|Returns|Yields|Raises|Attributes):\n", text, flags=re.MULTILINE)
    return {"head": head, **dict(zip(rest[::2], rest[1::2], strict=True))}


def entries(section: str) -> dict[str, str]:
    """The text of each name in a section, in order; text for several names is repeated for each."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in _SPLIT.sub(r"\1 ", section).splitlines():
        if match := _ENTRY.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        elif line.startswith(" " * 8):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def raised(value: Any) -> list[str]:
    """Names of the errors that a function raises, each once; those of functions that it refers to come last."""
    section = sections(value).get("Raises", "")
    others = [getter(attrgetter(name)(p2p)) for name in _AS.findall(section)]
    return list(dict.fromkeys([*entries(section), *(error for other in others for error in raised(other))]))


def iteration(cls: type) -> Any:
    """The `__iter__` of a class; None: it has none."""
    return vars(cls).get("__iter__")


def raised_by(error: str) -> list[str]:
    """Functions that name an error, and classes in whose use, or in loops over which, it is raised."""
    classes = [(name, value) for name, value in exported().items() if isinstance(value, type)]
    callers = [f"`{name}`" for name, value in functions() if error in raised(value)]
    callers += [f"use of `{name}`" for name, value in classes if error in raised(value)]
    return callers + [f"a loop over `{name}`" for name, value in classes if error in raised(iteration(value))]


# Signatures


def say(annotation: Any) -> str:
    """A type as written in a file that imports all names."""
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(say, get_args(annotation)))
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", inspect.formatannotation(annotation))
    return text.replace("NoneType", "None").replace("'", '"')


def say_default(default: object, factory: Any) -> str:
    if factory is not None:
        return f"{factory.__name__}()"
    text = f"{type(default).__name__}.{default.name}" if isinstance(default, Enum) else repr(default)
    return text.replace("'", '"')


def parameters(value: Any) -> list[str]:
    """The parameters of a signature, including `*`."""
    hints = get_type_hints(vars(value)["__init__"] if isinstance(value, type) else value, localns=exported())
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    factories = {field.name: field.default_factory for field in fields if callable(field.default_factory)}
    texts: list[str] = []
    is_starred = False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_starred:
            texts.append("*")
        is_starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        text = f"{str(parameter).split(':')[0]}: {say(hints[parameter.name])}"  # keeps the parameter's stars
        if parameter.default is not parameter.empty:
            text += f" = {say_default(parameter.default, factories.get(parameter.name))}"
        texts.append(text)
    return texts


def returned(function: Any) -> str:
    """The type that a call returns; for a generator that is a context manager, the context manager."""
    text = say(get_type_hints(function, localns=exported())["return"])
    return re.sub("^Iterator", "AbstractContextManager", text) if hasattr(function, "__wrapped__") else text


def signature(name: str, value: Any) -> str:
    """The signature on one line, or with one parameter per line."""
    texts, result = parameters(value), "" if isinstance(value, type) else f" -> {returned(value)}"
    line = f"{name}({', '.join(texts)}){result}"
    return (
        line
        if len(line) <= MAX_SIGNATURE
        else "\n".join([f"{name}(", *(f"    {each}," for each in texts), f"){result}"])
    )


# Page


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def summary(value: Any) -> str:
    """The first sentences of a docstring."""
    return sections(value)["head"].split("\n\n")[0]


def raises(value: Any, verb: str = "Raises") -> str:
    names = ", ".join(f"`{name}`" for name in raised(value))
    return f" {verb} {names}." if names else ""


def attributes(value: Any) -> Iterator[str]:
    if named := entries(sections(value).get("Attributes", "")):
        yield "\n".join(wrapped(f"- `{name}`: {text}", "  ") for name, text in named.items())


def of_function(name: str, function: Any) -> Iterator[str]:
    yield code(signature(name, function))
    yield wrapped(summary(function) + raises(function))


def of_property(name: str, member: Any) -> Iterator[str]:
    function = getter(member)
    yield code(f"{name}: {say(get_type_hints(function)['return'])}")
    if text := summary(function) + raises(function):
        yield wrapped(text)


def of_error(name: str, error: type) -> Iterator[str]:
    yield code(f"class {name}({error.__bases__[0].__name__})")
    yield wrapped(summary(error))
    yield from attributes(error)
    if error is not p2p.ShoalError:
        yield wrapped(f"Raised by {', '.join(raised_by(name))}.")


def of_class(name: str, cls: type) -> Iterator[str]:
    init = constructor(cls)
    if init is not None or dataclasses.is_dataclass(cls):
        yield code(signature(name, cls))
    yield wrapped(
        summary(cls)
        + raises(init)
        + raises(cls, "Raises" if dataclasses.is_dataclass(cls) else "Its use raises")
        + raises(iteration(cls), "A loop over it raises")
    )
    yield from attributes(cls)
    for each, member in members(cls).items():
        yield from (of_property if is_property(member) else of_function)(f"{name}.{each}", member)


def of_name(name: str, value: Any) -> Iterator[str]:
    """The paragraphs about one name."""
    yield f"### `{name}`"
    kind = of_error if is_error(value) else of_class if isinstance(value, type) else of_function
    yield from kind(name, value)


def render() -> str:
    """The whole page."""
    errors = [name for name, value in exported().items() if is_error(value)]
    errors.sort(key=lambda name: name != "ShoalError")
    parts = [INTRODUCTION]
    for title, names in {**SECTIONS, "Errors": errors}.items():
        parts.append(f"## {title}")
        parts += [part for name in names for part in of_name(name, getattr(p2p, name))]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
