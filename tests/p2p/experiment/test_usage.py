from p2p.experiment.usage import LEAST, Usage, growth


def life(index: int, number: int, leak_bytes: int = 0, leak_files: float = 0.0) -> list[Usage]:
    """One sample per second, in a view whose size goes up and down; each member adds two files."""
    return [
        Usage(
            second * 10**9,
            index,
            10**8 + leak_bytes * second,
            20 + 2 * (2 + second % 3) + int(leak_files * second),
            2 + second % 3,
        )
        for second in range(number)
    ]


def test_who_takes_as_much_as_before_has_not_grown_however_members_come_and_go() -> None:
    assert growth([*life(0, 200), *life(1, 100)]) == {"memory_growth_mb_max": 0.0, "files_growth_max": 0.0}


def test_the_one_that_grows_most_is_what_is_said() -> None:
    found = growth([*life(0, 200), *life(1, 200, leak_bytes=10**5, leak_files=0.1), *life(2, 200, leak_bytes=10)])
    assert found["memory_growth_mb_max"] == 10.0
    assert found["files_growth_max"] in (9.0, 10.0)


def test_of_peers_that_lived_for_a_short_time_nothing_is_known() -> None:
    assert growth(life(0, LEAST - 1, leak_bytes=10**9)) == {}
    assert growth([]) == {}


def test_a_moment_at_which_a_peer_comes_is_no_growth() -> None:
    number = 2 * LEAST
    calm = [Usage(second * 10**9, 0, 10**8, 30, 2 if second < number // 2 else 3) for second in range(number)]
    early, late = calm[number // 4]._replace(num_members=3), calm[-1]._replace(num_files=46)
    assert growth([*calm[: number // 4], early, *calm[number // 4 + 1 : -1], late]) == growth(calm)
    assert growth(calm) == {"memory_growth_mb_max": 0.0}
