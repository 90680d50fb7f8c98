"""The run description in JOIN, and the message to the user after a refusal."""

from pathlib import Path

import pytest

from gossip.messages import Difference, Refuse
from p2p.catchup.replica import Replica
from p2p.host.naming import Program
from p2p.net.parcels import PackedState
from p2p.session.description import describe_run, explain_refusal


def replica(**traits: bytes) -> Replica:
    return Replica(
        traits=traits,
        pack=lambda: PackedState(b"", []),
        load=lambda state: None,
        compare=lambda theirs: f"tensor of {theirs!r}",
    )


NO_MODEL, MODEL = replica(), replica(model=b"layout", codec=b"codec none")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "train.py").write_text("print()")
    return Program.of_script(tmp_path / "train.py", ["--lr", "0.1", "--api-key", "abc", "data"])


def test_a_script_is_its_source_whatever_its_name_and_its_folder(program: Program, tmp_path: Path) -> None:
    (tmp_path / "copy.py").write_text("print()")
    (tmp_path / "other.py").write_text("print(1)")
    same, other = (Program.of_script(tmp_path / name, program.args) for name in ("copy.py", "other.py"))
    one = describe_run(NO_MODEL, program.traits(), ()).description
    assert one.differences(describe_run(NO_MODEL, same.traits(), ()).description) == []
    assert one.differences(describe_run(NO_MODEL, other.traits(), ()).description) == ["script"]
    assert one.differences(describe_run(NO_MODEL, other.traits(), ("script",)).description) == []


def test_a_module_without_a_file_is_its_name_and_a_file_that_is_gone_is_no_other() -> None:
    one, other = (Program.of_module(name, ()).traits() for name in ("one", "other"))
    assert one["script"] != other["script"]
    assert Program.of_script(Path("gone.py"), ()).traits()["script"][1].startswith("gone.py (digest ")


def test_no_argument_is_in_join_as_it_was_given_and_no_secret_in_refuse(program: Program) -> None:
    run = describe_run(MODEL, program.traits(), ["--lr"])
    assert run.description.trains_model and run.description.may_differ == ("lr",)
    assert [trait.name for trait in run.description.program] == ["script", "--lr", "--api-key", "1"]
    assert all(len(trait.digest) in (8, 16) for trait in (*run.description.program, *run.description.training))
    assert run.texts["--lr"] == b"--lr 0.1" and b"abc" not in run.texts["--api-key"]
    assert run.texts["model"] == b"layout"


def test_a_refusal_names_both_values_and_what_to_do(program: Program) -> None:
    run = describe_run(NO_MODEL, program.traits(), ())
    differences = Difference("--lr", b"--lr \x1b0.2"), Difference("--seed", b"--seed 1"), Difference("1", None)
    assert explain_refusal(NO_MODEL, run, Refuse(False, differences)) == (
        "this peer does not run what the swarm's members do: --lr 0.1 here, --lr 0.2 in the swarm; "
        "no --seed here, --seed 1 in the swarm; data here, no argument 1 in the swarm; start it as they were, or with "
        "another --swarm, or, if peers may differ in that, with --may-differ lr --may-differ seed --may-differ 1 "
        "(p2p.join(may_differ=['lr', 'seed', '1']))"
    )


def test_a_model_is_compared_by_its_tensors_and_the_rest_of_training_in_words(program: Program) -> None:
    run = describe_run(MODEL, program.traits(), ())
    differences = Difference("codec", b"codec fp8"), Difference("model", b"theirs")
    assert explain_refusal(MODEL, run, Refuse(True, differences)) == (
        "it does not train as they do: codec none here, codec fp8 in the swarm; tensor of b'theirs'"
    )
    both = explain_refusal(MODEL, run, Refuse(True, (Difference("model", b"theirs"), Difference("--lr", None))))
    assert both.startswith("this peer does not run what") and both.endswith("; tensor of b'theirs'")


def test_policies_are_of_the_run_where_a_model_is_trained(program: Program) -> None:
    ours, theirs = ({"slow peers": f"slow_peers={word}".encode()} for word in ("name", "leave"))
    run, other = (describe_run(MODEL, program.traits(), (), policies) for policies in (ours, theirs))
    assert run.description.differences(other.description) == ["slow peers"]
    assert explain_refusal(MODEL, run, Refuse(True, (Difference("slow peers", theirs["slow peers"]),))) == (
        "it does not train as they do: slow_peers=name here, slow_peers=leave in the swarm"
    )
    assert describe_run(NO_MODEL, {}, (), ours).description.training == ()


def test_who_alone_has_a_model_or_none_is_told_that(program: Program) -> None:
    run = describe_run(MODEL, {}, ())
    missing = Refuse(False, (Difference("model", None),))
    assert "the swarm's members have no model" in explain_refusal(MODEL, run, missing)
    theirs = Refuse(True, (Difference("model", b"theirs"),))
    assert "construct p2p.DataParallel" in explain_refusal(NO_MODEL, describe_run(NO_MODEL, {}, ()), theirs)
