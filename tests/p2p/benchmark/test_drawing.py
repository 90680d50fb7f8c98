from pathlib import Path
from xml.etree import ElementTree

import pytest

from collectives.links import SEGMENT_BYTES
from p2p.benchmark.drawing import draw_all_reduce
from p2p.benchmark.measuring.prediction import NO_LIMIT_BIT_PER_S, links_of
from p2p.config import WAN_SEGMENT_BYTES
from p2p.errors import LabError, LaunchError


def test_links_are_those_that_a_lab_would_have() -> None:
    links = links_of("rate=200mbit,down=80mbit,delay=20ms,loss=1%", 3, 5)
    assert (links.up, links.down, links.delay_ns[1]) == (
        (25_000_000,) * 3,
        (10_000_000,) * 3,
        (20_000_000, 0, 20_000_000),
    )
    assert links.message_ns == 5
    assert links_of("rate=200mbit,delay=20ms", 2, 0).down == (25_000_000,) * 2
    assert links_of("", 1, 0).up == (NO_LIMIT_BIT_PER_S // 8,)
    odd = links_of("rate=200mbit,delay=2ms;2:rate=40mbit;0-1:delay=3ms,rate=80mbit", 3, 0)
    assert odd.up == odd.down == (10_000_000, 10_000_000, 5_000_000)
    slow = links_of("rate=200mbit;0-1:rate=10mbit", 4, 0)
    assert slow.up == slow.down == (1_250_000, 1_250_000, 25_000_000, 25_000_000), "its ends alone"
    assert odd.delay_ns[0] == (0, 3_000_000, 2_000_000)
    assert (odd.segment_bytes, links.segment_bytes) == (SEGMENT_BYTES, WAN_SEGMENT_BYTES), "as peers cut messages there"


def test_a_drawing_lies_in_this_folder_and_says_what_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = draw_all_reduce("one-shot", 8, 4096, "rate=200mbit,delay=20ms")
    assert said == "one-shot, 8 peers, 4K, rate=200mbit,delay=20ms: 21.85 ms by the model; drawn in one-shot-8.svg"
    assert ElementTree.parse(tmp_path / "one-shot-8.svg").getroot().tag.endswith("svg")


def test_peers_of_one_host_are_drawn_with_what_is_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    apart, together = (draw_all_reduce("hierarchical", 4, 1 << 20, "rate=200mbit,delay=20ms", each) for each in (1, 2))
    assert apart != together, "those of one host share memory"
    with pytest.raises(LaunchError, match="--per-host is a divisor of -n, which is 4, got 3"):
        draw_all_reduce("ring", 4, 4096, "delay=1ms", 3)


@pytest.mark.parametrize(
    ("algorithm", "num_peers", "net", "error", "said"),
    [
        ("butterfly", 8, "", LaunchError, "--draw names one of binary-tree, .*, got 'butterfly'"),
        ("ring", 65, "", LaunchError, "must be 1 to 64, got 65"),
        ("ring", 8, "rate=200mbits", LabError, "did you mean 200mbit"),
        ("ring", 8, "delay=1ms,jitter=2ms", LabError, "jitter=2ms is above delay=1ms"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    algorithm: str, num_peers: int, net: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        draw_all_reduce(algorithm, num_peers, 4096, net)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring-2.svg").mkdir()
    with pytest.raises(LaunchError, match=r"ring-2\.svg cannot be written here: Is a directory"):
        draw_all_reduce("ring", 2, 4096, "")
