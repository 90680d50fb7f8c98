import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from p2p.checkpoint.tree import from_json, name_slots, to_json
from p2p.net.trees import Slot, pack_tree

floats = st.floats().map(lambda each: each if each == each else float("nan"))  # JSON has one NaN, not 2^53
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | floats | st.text() | st.binary()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.sampled_from(["$tensor", "$"]), inner)
        | st.dictionaries(st.integers(-5, 5) | st.text(), inner)
    ),
)


@given(tree=trees)
def test_a_tree_comes_back_from_json(tree: Any) -> None:
    again = from_json(json.loads(json.dumps(to_json(tree, []))), {})
    assert pack_tree(again) == pack_tree(tree)


def test_tensors_are_named_after_their_places() -> None:
    tree = {
        "tensors": {"a.b": Slot(0), "a": {"b": Slot(1)}},
        "parts": [{"state": {0: {"exp_avg": Slot(2)}}}, {"last": [1, Slot(3)]}],
        "samples": [],
        "slots": [[]] * 4,
    }
    names = name_slots(tree)
    assert names == ["model.a.b", "model.a.b#1", "optimizer.state.0.exp_avg", "extra.0.last.1"]
    text = json.dumps(to_json(tree, names))
    again = from_json(json.loads(text), {name: index for index, name in enumerate(names)})
    assert again == tree and '"$tensor": "optimizer.state.0.exp_avg"' in text
