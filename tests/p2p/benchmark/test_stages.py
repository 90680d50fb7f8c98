"""Stages of operations on a device: watched copies, sums of stages, the slowest stage, and its display."""

import csv
import mmap
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from collectives import Reduction
from p2p.benchmark.measuring.storage import DeviceStorage, check_devices, devices_of, storage_of, warnings_of_devices
from p2p.benchmark.plan import Plan
from p2p.benchmark.results.analysis import analyse
from p2p.benchmark.results.charts import Bars, draw_panels
from p2p.benchmark.results.compare import compare
from p2p.benchmark.results.files import Report, make_report, to_csv
from p2p.benchmark.results.plotting import bars_of, plot, title_of
from p2p.benchmark.results.report import print_report
from p2p.benchmark.results.result import Measurement, Result
from p2p.benchmark.results.stage_report import stages_in_words
from p2p.benchmark.stages import FETCH, STAGES, STORE, TimedCopy, TimedDevice, times_of_stages
from p2p.device import FoundDevice, MemoryShort, PinRefused
from p2p.errors import DeviceLost, LaunchError, ShoalError
from tests.p2p.staging.standin import StandIn

pytestmark = pytest.mark.light

PLAN = Plan(
    num_peers=2,
    algorithms=("auto", "ring"),
    baseline="gloo",
    sizes_bytes=(4096, 65536),
    num_iters=3,
    num_warmup=1,
    device="cuda",
)
MACHINE = {"cpu": "x", "cores": 2, "memory_bytes": 1, "load_1_min": 0.0, "system": "Linux", "python": "3.11"}
MACHINE |= {"packages": {"torch": "2"}, "devices": ["A GPU"]}


def copy(stage: str, begun_s: float, ready_s: float | None, ended_s: float | None) -> TimedCopy:
    made = TimedCopy(stage, ())
    made.begun_s, made.ready_s, made.ended_s = begun_s, ready_s, ended_s
    return made


# Watched copies


def test_stages_add_up_to_the_round_whatever_goes_on_side_by_side() -> None:
    copies = [
        copy(FETCH, 1.1, 1.5, 3.0),
        copy(FETCH, 1.2, 3.0, 6.0),  # its exchange begins while the other part is exchanged
        copy(STORE, 8.0, 8.0, None),  # a caller that waits for it waits for the whole round
        copy(STORE, 8.5, 8.5, None),
    ]
    assert times_of_stages(copies, 1.0, 10.0) == (0.5, 4.5, 2.0, 2.0)


@pytest.mark.parametrize(
    "copies",
    [[], [copy(FETCH, 0, 0, 1)], [copy(STORE, 0, 0, None)], [copy(FETCH, 0, 0, None), copy(STORE, 0, 0, None)]],
)
def test_copies_that_were_not_seen_have_no_stages(copies: list[TimedCopy]) -> None:
    with pytest.raises(ValueError, match="copies to the host"):
        times_of_stages(copies, 0.0, 1.0)


class Spy:
    """A mark that is over once it was waited for, and records that."""

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said, self.is_there = name, said, False

    def is_over(self) -> bool:
        return self.is_there

    def wait(self) -> None:
        self.said.append(self.name)
        self.is_there = True


def test_the_host_waits_for_nothing_but_what_it_waits_for_anyway() -> None:
    said: list[str] = []
    flattened, fetched = Spy("flattened", said), Spy("fetched", said)
    watched = TimedCopy(FETCH, [flattened])
    watched.mark = fetched
    assert not watched.is_over() and (said, watched.ready_s, watched.ended_s) == ([], None, None)
    watched.wait()
    assert said == ["flattened", "fetched"]
    assert watched.ready_s is not None and watched.ended_s is not None
    assert watched.begun_s <= watched.ready_s <= watched.ended_s
    before = watched.ready_s, watched.ended_s
    watched.wait()
    assert watched.is_over() and (watched.ready_s, watched.ended_s) == before


def test_a_tensor_that_lies_in_one_piece_before_its_copy_is_asked_for_is_flat_at_that_moment() -> None:
    flattened = Spy("flattened", [])
    flattened.wait()
    watched = TimedCopy(FETCH, [flattened])
    assert watched.ready_s is not None and watched.ready_s >= watched.begun_s


@pytest.mark.parametrize("seed", range(20))
def test_a_watched_device_copies_what_the_device_copies_and_knows_its_own_marks(seed: int) -> None:
    watched = TimedDevice(StandIn(seed))
    tensor, array, back = torch.arange(8.0), np.zeros(8, np.float32), torch.zeros(8)
    fetched = watched.fetch(tensor, array, [watched.mark()])
    stored = watched.store(array, back, [watched.mark(), fetched])
    watched.order_after(stored)
    assert torch.equal(back, tensor)
    stored.wait()
    assert [(each.stage, each.ended_s is not None) for each in watched.copies] == [(FETCH, False), (STORE, True)]
    fetched.wait()
    watched.wait_for_copies()


def test_a_watched_device_tells_why_it_has_refused_memory_and_counts_its_sums() -> None:
    device = StandIn(0)
    watched, memory = TimedDevice(device), np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.uint8)
    watched.pin(memory)
    parts = [memory[start : start + 64].view(np.float32) for start in (0, 64)]
    assert watched.adder is not None and watched.adder.supports(Reduction("sum"), parts[0].dtype)
    watched.adder.add(parts, parts[0], Reduction("sum"), parts[0].dtype, completes=True).wait()
    watched.adder.drain()
    assert (watched.adder.num_sums, watched.refused) == (1, "")
    watched.unpin(memory)
    device.refuses_every = 1
    with pytest.raises(PinRefused):
        watched.pin(memory)
    assert watched.refused == "the stand-in refuses each 1th"


# Storage


def test_an_array_on_a_device_keeps_its_place_for_its_size_and_comes_back_as_it_was() -> None:
    storage = DeviceStorage(FoundDevice("cpu", StandIn(0), 0, 0))
    first = storage.put(np.arange(8, dtype=np.float32))
    assert storage.take(first).tolist() == [*range(8)]
    assert storage.put(np.ones(8, np.float32)) is first
    assert storage.device_of(first) is not storage.device_of(np.ones(8))
    again = storage.put(np.ones(8, np.int64))
    assert again is not first and storage.take(again).dtype == np.int64
    storage.finish()


def test_a_device_without_room_and_one_that_fails_are_one_sentence_each() -> None:
    device = StandIn(0)
    storage = DeviceStorage(FoundDevice("cpu", device, 0, 0))
    device.capacity = 100
    with pytest.raises(ShoalError, match=r"cpu has no room for an array of 4K: 4096 .* take a smaller -e") as raised:
        storage.put(np.ones(1024, np.float32))
    assert not isinstance(raised.value, MemoryShort)
    storage.put(np.ones(1, np.float32))
    device.lose()
    with pytest.raises(DeviceLost):
        storage.finish()


def test_devices_are_shared_by_those_who_have_none_of_their_own() -> None:
    found = tuple(FoundDevice(f"cuda:{index}", StandIn(0), 0, 0) for index in range(2))
    storages = [storage_of(PLAN, place, lambda: (found, "")) for place in range(3)]
    said = [each.said() for each in storages]
    assert [each and each["name"] for each in said] == ["cuda:0", "cuda:1", "cuda:0"]
    assert devices_of(said) == ["cuda:0", "cuda:1"]
    (shared,) = warnings_of_devices(PLAN, said)
    assert shared.startswith("3 peers share 2 GPUs: times include waiting")
    assert warnings_of_devices(PLAN, said[:2]) == [] == warnings_of_devices(PLAN, [None, None])
    refused = [{"name": "a", "place": "1", "refused": "not allowed", "num_sums": 0}]
    assert "(not allowed): copies of it are pageable" in warnings_of_devices(PLAN, refused)[0]


def test_a_device_that_adds_nothing_up_although_it_was_asked_to_is_said() -> None:
    adding = replace(PLAN, algorithms=("auto", "auto@adds"))
    said = [{"name": "a", "place": place, "refused": "", "num_sums": int(place)} for place in ("0", "1", "2")]
    (idle,) = warnings_of_devices(adding, said)
    assert idle.startswith("1 of 3 peers made no sum on their device: there auto@adds is what the host adds")
    assert warnings_of_devices(adding, said[1:]) == warnings_of_devices(PLAN, said) == []


def test_no_device_is_said_before_anything_starts() -> None:
    with pytest.raises(ShoalError, match="--device cuda needs a GPU: why; leave --device out"):
        storage_of(PLAN, 0, lambda: ((), "why"))
    with pytest.raises(LaunchError, match=r"--device cuda needs a GPU, and .*: leave --device out"):
        check_devices(PLAN, {"CUDA_VISIBLE_DEVICES": ""})
    check_devices(replace(PLAN, device="cpu"), {"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": "gpu"}, "--device is cpu or cuda, got 'gpu'"),
        ({"device": "cude"}, "did you mean cuda?"),
        ({"device": "cuda:1"}, "got 'cuda:1'; CUDA_VISIBLE_DEVICES says which GPUs"),
        ({"operation": "broadcast", "algorithms": ("ring",)}, "--device cuda is for all-reduce, got broadcast"),
        ({"device": "cpu", "algorithms": ("auto@adds",)}, "auto@adds needs --device cuda"),
        ({"algorithms": ("auto", "auto@arena")}, "so auto@arena cannot be measured: leave out @arena"),
    ],
)
def test_what_a_device_cannot_do_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        replace(PLAN, **change)


# Results


def results(stages_s: dict[tuple[str, int], list[list[list[float]]]] | None = None) -> list[Result]:
    """Results of two ranks; `stages_s`: by rank and round."""
    default = [[[1.0, 2.0, 6.0, 1.0]] * 3, [[0.5, 4.0, 3.0, 2.0]] * 3]
    found = []
    for size in PLAN.sizes_bytes:
        for name in PLAN.contenders:
            given = [[], []] if name == "gloo" else (stages_s or {}).get((name, size), default)
            ranks = tuple(
                Measurement(
                    algorithm=name,
                    ran=name,
                    size_bytes=size,
                    times_s=[10.0, 10.5, 9.5],
                    cpu_times_s=[1.0] * 3,
                    digest="d",
                    stages_s=stages,
                )
                for stages in given
            )
            found.append(Result(algorithm=name, ran=name, size_bytes=size, wrong=0, ranks=ranks))
    return found


def report(**machine: Any) -> Report:
    found = results()
    return make_report(PLAN, found, analyse(PLAN, found), {**MACHINE, **machine}, None, [])


def test_copies_are_those_of_the_slowest_peer_and_the_exchange_that_of_who_waits_least() -> None:
    assert results()[0].stages_p50_s == {"flatten": 1.0, "D2H": 4.0, "exchange": 3.0, "H2D": 2.0}
    written = report()["results"]
    assert [row["stages_p50_us"] is None for row in written] == [False, False, True] * 2
    assert written[0]["stages_us"]["D2H"] == [[2e6] * 3, [4e6] * 3]
    assert written[2]["stages_us"] is None


def test_who_is_slowest_is_said_where_it_is_and_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    assert stages_in_words(found)[1] == "slowest stage: D2H at every size"
    late = {("ring", 65536): [[[0.0, 1.0, 9.0, 0.0]] * 3] * 2}
    assert stages_in_words(results(late))[1] == (
        "slowest stage of auto: D2H at every size; ring: D2H at 4K, exchange at 64K"
    )
    assert stages_in_words([each for each in found if each.algorithm == "gloo"]) == []
    print_report(PLAN, found, analyse(PLAN, found), MACHINE, None, [])
    printed = capsys.readouterr().out
    assert "all-reduce, float32, 2 peers, cuda" in printed and "devices: A GPU" in printed
    (row, *_) = [line for line in printed.splitlines() if "D2H (40%)" in line]
    assert row.split()[:6] == ["4K", "auto", "1000000.0", "4000000.0", "3000000.0", "2000000.0"]
    assert "slowest stage: D2H at every size" in printed


def test_a_row_of_csv_has_each_stage_and_a_baseline_none() -> None:
    rows = list(csv.DictReader(to_csv(report()).splitlines()))
    assert [rows[0][f"{stage}_p50_us"] for stage in STAGES] == ["1000000.0", "4000000.0", "3000000.0", "2000000.0"]
    assert [rows[2][f"{stage}_p50_us"] for stage in STAGES] == [""] * 4


def test_runs_on_other_devices_are_refused_by_name() -> None:
    on_host = report(devices=[])
    on_host["config"] = {**on_host["config"], "device": "cpu"}
    with pytest.raises(LaunchError, match=r"devices is \['A GPU'\] and \[\]; device is 'cuda' and 'cpu'"):
        compare(report(), on_host)
    with pytest.raises(LaunchError, match=r"devices is \['A GPU'\] and \['B'\]$"):
        compare(report(), report(devices=["B"]))
    older = report(devices=[])
    del older["machine"]["devices"], older["config"]["device"]
    sizes = [(cell.algorithm, cell.size_bytes) for cell in compare(older, on_host) if cell.size_bytes is not None]
    assert sizes == [(row["algorithm"], row["size_bytes"]) for row in on_host["results"]]


# Bars


def test_bars_show_the_share_of_each_stage_at_each_size() -> None:
    bars = list(bars_of(report()))
    assert [each.title.partition(":")[0] for each in bars] == ["stages of auto", "stages of ring"]
    assert (bars[0].names, bars[0].above) == (("4K", "64K"), ("1e+04", "1e+04"))
    assert {name: shares[0] for name, shares in bars[0].parts.items()} == {
        "flatten": 0.1,
        "D2H": 0.4,
        "exchange": 0.3,
        "H2D": 0.2,
    }
    assert "2 peers on cuda, one host" in title_of(report())


def test_a_bar_is_as_high_as_its_parts_which_touch_each_other() -> None:
    bars = Bars("b", "bytes", ("4K",), ("1",), {"flatten": (0.25,), "D2H": (0.75,)})
    svg = ElementTree.fromstring(draw_panels([bars], "t"))
    low, high = (each.attrib for each in svg.iter("{http://www.w3.org/2000/svg}rect") if each.get("class") == "part")
    assert float(high["height"]) == pytest.approx(3 * float(low["height"]), abs=0.2)
    assert float(high["y"]) + float(high["height"]) == pytest.approx(float(low["y"]), abs=0.2)


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_a_drawing_has_a_part_for_each_stage_of_each_bar(suffix: str) -> None:
    text = plot(report(), suffix)
    assert isinstance(text, str)
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    parts = [each for each in svg.iter("{http://www.w3.org/2000/svg}rect") if each.get("class") == "part"]
    assert len(parts) == 2 * 2 * len(STAGES)
