import os
import signal
import threading
from pathlib import Path

from p2p.host.registry import Registry
from p2p.launch.admission import reserve_local_indices

NUM_LAUNCHERS, NUM_PEERS = 8, 3


def test_launchers_that_begin_at_the_same_moment_have_different_numbers(tmp_path: Path) -> None:
    registries = [Registry(tmp_path, "race") for _ in range(NUM_LAUNCHERS)]
    together = threading.Barrier(NUM_LAUNCHERS)
    found: list[tuple[list[int], int]] = []

    def launch(registry: Registry) -> None:
        together.wait()
        found.append(reserve_local_indices(registry, NUM_PEERS))

    threads = [threading.Thread(target=launch, args=(registry,)) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = sorted(number for numbers, _ in found for number in numbers)
    assert taken == list(range(NUM_LAUNCHERS * NUM_PEERS))
    for _, held in found:
        os.close(held)
    assert [path.name for path in registries[0].folder.iterdir()] == ["lock"]


def test_the_numbers_of_a_launcher_are_free_once_it_has_ended_even_if_it_was_killed(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "race")
    ready, tell = os.pipe()
    pid = os.fork()
    if not pid:
        reserve_local_indices(registry, 2)
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    others, held = reserve_local_indices(registry, 2)
    assert others == [2, 3]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    again, more = reserve_local_indices(registry, 3)
    assert again == [0, 1, 4]
    for descriptor in (ready, tell, held, more):
        os.close(descriptor)


def test_who_enters_the_registry_meanwhile_waits_for_no_launcher(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "race", place=1, lock_timeout_s=0.0)
    _, held = reserve_local_indices(registry, 1)
    registry.enter("0" * 16, 1)
    numbers, more = reserve_local_indices(registry, 2)
    assert numbers == [2, 3], "0 is another launcher's, and 1 a living peer's"
    registry.leave()
    os.close(held)
    os.close(more)
