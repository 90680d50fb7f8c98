"""The names exported by p2p: the page agrees with the code, and the docstrings are complete."""

import builtins
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

import gossip
import p2p
from p2p.checkpoint.manifest import UnusableCheckpointError
from p2p.config import LoopConfig
from p2p.errors import ExperimentError, LabError, LaunchError
from p2p.forking.program import ImportFailed
from p2p.loop.seat_request import AllMembersDead
from p2p.memory.arena import ArenaError, MappingRefused
from p2p.version import OtherVersion
from tests.p2p.api_page import (
    PAGE,
    entries,
    exported,
    functions,
    is_error,
    is_property,
    members,
    raised,
    render,
    sections,
)

CLASSES = {name: value for name, value in exported().items() if isinstance(value, type)}
OURS = {name: cls for name, cls in CLASSES.items() if cls.__module__.startswith("p2p.")}
PROPERTIES = {f"{name}.{each}" for name, cls in CLASSES.items() for each, it in members(cls).items() if is_property(it)}
FUNCTIONS = {name: function for name, function in functions() if not name.startswith("Stateful.")}  # others' to write


def named(value: Any, title: str) -> list[str]:
    """The names that a section of a docstring explains."""
    return list(entries(sections(value).get(title, "")))


def test_the_page_says_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make api`, and look at what has changed"


def test_every_name_has_one_place_on_the_page() -> None:
    assert sorted(re.findall(r"^### `(\w+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == p2p.__all__


def test_the_names_are_sorted_and_there() -> None:
    assert p2p.__all__ == sorted(set(p2p.__all__)) and len(exported()) == len(p2p.__all__)
    with pytest.raises(AttributeError, match="'p2p' has no attribute 'Sesame'"):
        getattr(p2p, "Sesame")  # noqa: B009


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_explained_in_order_and_no_other(name: str) -> None:
    arguments = [each for each in inspect.signature(FUNCTIONS[name]).parameters if each != "self"]
    assert named(FUNCTIONS[name], "Args") == arguments


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - PROPERTIES))
def test_what_a_call_gives_is_explained(name: str) -> None:
    gives = get_type_hints(FUNCTIONS[name], localns=exported())["return"]
    assert gives is NoneType or {"Returns", "Yields"} & set(sections(FUNCTIONS[name]))


@pytest.mark.parametrize("name", OURS)
def test_every_attribute_is_explained_and_there(name: str) -> None:
    cls, explained = OURS[name], named(OURS[name], "Attributes")
    if dataclasses.is_dataclass(cls):
        assert explained == [field.name for field in dataclasses.fields(cls)]
    else:
        init = vars(cls).get("__init__")
        assert set(explained) <= {*vars(cls), *(init.__code__.co_names if init else ())}


# Errors


def test_every_error_that_is_explained_can_be_caught_by_its_name() -> None:
    explained = {error for value in (*FUNCTIONS.values(), *CLASSES.values()) for error in raised(value)}
    ours = {name for name, value in exported().items() if is_error(value)}
    assert explained - ours <= {name for name, value in vars(builtins).items() if is_error(value)}
    assert ours <= explained, "whoever raises one says so"


def test_every_error_of_ours_is_there_but_those_that_no_script_can_see() -> None:
    for module in pkgutil.walk_packages(p2p.__path__, "p2p."):
        importlib.import_module(module.name)
    inside = {
        AllMembersDead,  # seen as a RegistryError
        ArenaError,
        MappingRefused,
        OtherVersion,
        UnusableCheckpointError,
    }  # handled internally, by a fallback
    of_the_command_line = {LaunchError, ImportFailed, LabError, ExperimentError}
    assert set(subclasses(p2p.ShoalError)) - inside - of_the_command_line == {
        value for value in exported().values() if is_error(value) and value is not p2p.ShoalError
    }


def subclasses(cls: type) -> Iterator[type]:
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)


# Types


def classes_in(annotation: Any) -> Iterator[type]:
    """The classes in an annotation."""
    arguments = annotation if isinstance(annotation, list) else get_args(annotation)
    if isinstance(annotation, type) and not arguments:
        yield annotation
    for argument in arguments:
        yield from classes_in(argument)


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *OURS}))
def test_every_type_in_a_signature_can_be_written_down_by_its_name(name: str) -> None:
    value = FUNCTIONS.get(name) or OURS[name]
    known = {*exported().values(), *(getattr(gossip, each) for each in gossip.__all__)}
    known.add(LoopConfig)  # for tests and experiments, as PeerConfig says
    for annotation in get_type_hints(value, localns=exported()).values():
        for cls in classes_in(annotation):
            assert cls in known or cls.__module__.split(".")[0] in {*sys.stdlib_module_names, "torch"}, (name, cls)


def test_every_error_has_a_section_and_a_row_on_its_page() -> None:
    text = (PAGE.parent / "errors.md").read_text(encoding="utf-8")
    errors = {name for name, value in vars(p2p.errors).items() if is_error(value) and value.__module__ == "p2p.errors"}
    assert set(re.findall(r"^## (\w+)$", text, re.MULTILINE)) == errors
    assert set(re.findall(r"\[(\w+)\]\(#\w+\)", text)) == errors
    assert all(anchor == name.lower() for name, anchor in re.findall(r"\[(\w+)\]\(#(\w+)\)", text))
