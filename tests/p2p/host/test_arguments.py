"""Arguments by name, and the part of them that others see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.host.arguments import ARGUMENTS_MAX, NAME_MAX, SHOWN_MAX, by_name, digest, shown
from p2p.host.entry import PROGRAM_MAX_BYTES, pack_program, unpack_program


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--lr 0.1", {"--lr": "--lr 0.1"}),
        ("--lr=0.1", {"--lr": "--lr 0.1"}),
        ("--lr=", {"--lr": "--lr "}),
        ("--offset -3 -.5", {"--offset": "--offset -3", "1": "-.5"}),
        ("-v -n 4", {"-v": "-v", "-n": "-n 4"}),
        ("fit --fast a=b", {"1": "fit", "--fast": "--fast a=b"}),
        ("fit a=b --fast", {"1": "fit", "2": "a=b", "--fast": "--fast"}),
        ("--x 1 --y --x 2", {"--x": "--x 1 --x 2", "--y": "--y"}),
        ("- --", {"1": "-", "2": "--"}),
        ("", {}),
    ],
)
def test_an_argument_is_named_by_its_flag_or_by_its_place(line: str, named: dict[str, str]) -> None:
    assert by_name(line.split()) == named


def test_names_are_short_and_not_too_many() -> None:
    long, odd = "--" + "x" * NAME_MAX, "--a\udcff"
    assert set(by_name([long, odd])) == {f"--{digest(long).hex()}", f"--{digest(odd).hex()}"}
    found = by_name([str(number) for number in range(ARGUMENTS_MAX + 9)])
    assert len(found) == ARGUMENTS_MAX + 1
    assert list(found.values())[-1].split() == [str(number) for number in range(ARGUMENTS_MAX, ARGUMENTS_MAX + 9)]


@given(st.lists(st.text(alphabet="-=ab1 ü\udc80", max_size=4), max_size=6))
def test_any_arguments_can_be_sent_and_others_have_others(args: list[str]) -> None:
    for name, text in by_name(args).items():
        assert len(name.encode()) <= 4 * NAME_MAX and shown(name, text).isprintable() and digest(text)
    assert by_name([*args, "one more"]) != by_name(args)


@pytest.mark.parametrize(
    "text",
    [
        "--api-key abc",
        "--apikey abc",
        "--hf_token abc",
        "token=abc",
        "--password abc",
        "https://me:abc@host/x",
        "--auth abc",
    ],
)
def test_what_may_be_a_secret_is_not_shown(text: str) -> None:
    assert "abc" not in shown("--name", text) and digest(text).hex() in shown("--name", text)


@pytest.mark.parametrize("text", ["--tokenizer gpt2", "--num-tokens 512", "--keypoints 3", "--author me", "/data/keys"])
def test_what_only_looks_like_one_is_shown(text: str) -> None:
    assert shown("--name", text) == text


def test_what_is_long_or_not_printable_is_told_apart_by_its_digest() -> None:
    one, other = "x" * SHOWN_MAX + "1", "x" * SHOWN_MAX + "2"
    assert shown("1", one) != shown("1", other) and len(shown("1", one)) < SHOWN_MAX + 40
    odd = "a\x1b[2Jb"
    assert shown("1", odd) == f"a\N{REPLACEMENT CHARACTER}[2Jb (digest {digest(odd).hex()})"


def test_what_a_peer_runs_is_in_its_entry_unless_there_is_too_much_of_it() -> None:
    program = {name: (digest(text), shown(name, text)) for name, text in by_name(["--lr", "0.1", "data"]).items()}
    assert unpack_program(pack_program(program, ["lr"])) == (program, ("lr",))
    assert unpack_program(pack_program({}, [])) == ({}, ())
    assert pack_program({"1": (b"", "x" * PROGRAM_MAX_BYTES)}, []) == ""
