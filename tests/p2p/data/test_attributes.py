from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from p2p.data.attributes import digest_of_attributes


def dataset() -> SimpleNamespace:
    inner = SimpleNamespace(epoch=0, rates={"flip": 0.5}, files=[f"{n}.png" for n in range(100)])
    table, scalar, names = np.zeros((200, 2)), np.array(1.0), ("a", None)
    labels, kinds = torch.zeros(3), {1, 2}
    return SimpleNamespace(inner=inner, labels=labels, table=table, scalar=scalar, kind=int, kinds=kinds, names=names)


def set_item(of: Any, key: object, value: object) -> None:
    of[key] = value


@pytest.mark.parametrize(
    "change",
    [
        lambda each: setattr(each.inner, "epoch", 1),
        lambda each: set_item(each.inner.rates, "flip", 0.6),
        lambda each: each.inner.files.append("more"),
        lambda each: each.labels.fill_(1),
        lambda each: setattr(each, "labels", torch.zeros(3)),
        lambda each: each.table.fill(1),
        lambda each: set_item(each.table, (31, 1), 1.0),
        lambda each: set_item(each.inner.files, 51, "other.png"),
        lambda each: each.kinds.add(3),
        lambda each: each.scalar.fill(2),
        lambda each: setattr(each, "new", None),
        lambda each: setattr(each, "kind", float),
        lambda each: setattr(each, "names", ("a", "b")),
    ],
    ids=range(13),
)
def test_a_change_is_seen(change: Callable[[Any], object]) -> None:
    each = dataset()
    unchanged = digest_of_attributes(each)
    assert digest_of_attributes(each) == unchanged
    change(each)
    assert digest_of_attributes(each) != unchanged


def test_what_a_collate_function_belongs_to_is_looked_at() -> None:
    each = dataset()
    owner = SimpleNamespace(width=1)

    class Collator:
        width = 1

        def __call__(self, batch: list[int]) -> list[int]:
            return batch[: self.width]

        def collate(self, batch: list[int]) -> list[int]:
            return self(batch)

    collator = Collator()
    before = digest_of_attributes(each, collator), digest_of_attributes(owner, collator.collate)
    collator.width = 2
    after = digest_of_attributes(each, collator), digest_of_attributes(owner, collator.collate)
    assert before[0] != after[0] and before[1] != after[1]


def test_a_circle_and_a_long_list_come_to_an_end() -> None:
    each = dataset()
    each.itself, each.long = each, list(range(1_000_000))
    with torch.inference_mode():
        each.made = torch.zeros(2)
    assert digest_of_attributes(each) == digest_of_attributes(each)


def test_of_a_mapped_file_only_some_rows_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((1000, 2)))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    for array in (rows, np.asarray(rows)):
        before = digest_of_attributes(array)
        rows[501] += 1
        assert digest_of_attributes(array) == before
        rows[0] += 1
        assert digest_of_attributes(array) != before
