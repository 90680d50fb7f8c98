"""The house style, as far as a program can read it (CONTRIBUTING.md, "Style in brief")."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = ("p2p", "gossip", "collectives", "examples", "bench")


def modules(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def documented(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, also of those below constants and attributes."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(found))):
                yield node.lineno, found


def body_lines(function: ast.FunctionDef) -> int:
    """Without signature and docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1


def test_files_are_short() -> None:
    limits = dict.fromkeys(SHIPPED, 400) | {"tests": 600}
    lengths = {name: len(text.splitlines()) for name, text in modules(*limits)}
    assert not {name: length for name, length in lengths.items() if length > limits[name.split("/")[0]]}


def test_functions_are_short() -> None:
    assert not [
        f"{name}:{node.lineno} {node.name}: {body_lines(node)} lines"
        for name, text in modules(*SHIPPED)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > 60
    ]


def test_the_subject_of_a_docstring_is_a_term_and_no_pronoun() -> None:
    pronouns = {"Who", "Whom", "Whose", "Nobody", "Nothing", "It", "They"}
    assert not [
        f"{name}:{line}: {text.splitlines()[0]}"
        for name, whole in modules(*SHIPPED)
        for line, text in documented(whole)
        if text.split() and text.split()[0] in pronouns
    ]
