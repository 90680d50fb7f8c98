import re
from pathlib import Path

import pytest

from p2p.errors import ExperimentError
from p2p.experiment.config import DECIDED, Bound, Experiment
from p2p.experiment.evaluation.report import check_expectations
from p2p.launch.config import LaunchConfig, peer_environment
from p2p.launch.target import Target

HEAD = '[run]\nscript = "train.py"\npeers = 3\n'
LAB = HEAD + "[network]\nhosts = 2\n[[event]]\nat_s = 1\n"
KILL = '[[event]]\nat_step = 5\ndo = "kill"\n'


def parse(text: str) -> Experiment:
    return Experiment.parse(text, "x", Path("/tmp"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[run", "no TOML: "),
        ('[run]\nscript = "a"\npeer = 3\n', "line 3: unknown key peer in [run], did you mean peers?"),
        (
            HEAD + '[[event]]\nat_stp = 5\ndo = "kill"\n',
            "line 5: unknown key at_stp in [[event]], did you mean at_step?",
        ),
        (HEAD + KILL + '[[event]]\nat_step = 6\ndo = "kil"\n', "line 9: do is 'kil', did you mean kill?"),
        (HEAD + "[evnt]\n", "line 4: unknown key evnt, did you mean event?"),
        (HEAD + "[[event]]\ndo = 'kill'\n", "line 5: an event needs one of at_step, at_s, after and random"),
        (
            HEAD + KILL + "at_s = 3\n",
            "line 6: an event needs one of at_step, at_s, after and random, and has at_step and",
        ),
        (HEAD + '[[event]]\nat_s = 1\ndo = "pause"\n', "line 4: a pause needs for_s"),
        (HEAD + KILL + "for_s = 2\n", "line 7: for_s is for a pause, and this is a kill"),
        (HEAD + KILL + 'who = "rank one"\n', "line 7: who is "),
        (HEAD + KILL + 'during = "exchnge"\n', "line 7: during is 'exchnge', did you mean exchange?"),
        (HEAD + '[[event]]\nat_s = 1\ndo = "join"\nduring = "exchange"\n', "line 7: during is for events of one"),
        (HEAD + KILL + 'during = "state transfer"\n', 'line 7: in a state transfer who is "donor", or "newest"'),
        (LAB + 'do = "cut"\nwho = "host 1"\nduring = "exchange"\n', "line 10: during is for events of one peer"),
        (HEAD + KILL + "wait_s = -1\n", "line 7: wait_s is a number from 0 on, got -1"),
        (HEAD + '[[event]]\nafter = "previous resumed"\ndo = "kill"\n', "line 5: the first event has none before it"),
        (HEAD + '[[event]]\nat_s = 1\ndo = "cut"\n', "line 6: cut needs [network]"),
        (HEAD + "[network]\nhost = 3\n", "line 4: [network]: host is written as [[host]]"),
        (HEAD + "[network]\nhosts = 2\nnet = 'delay=fast'\n", "line 4: [network]: "),
        (LAB + 'do = "cut"\nwho = "host 2"\n', "line 9: there is no host 2: [network] has 2, from 0 on"),
        (LAB + 'do = "cut"\nwho = 1\n', 'line 9: who is "host 0" and the like for a cut, got 1'),
        (HEAD + KILL + "one_way = true\n", "line 4: to, net and one_way are for links, and this is a kill"),
        (LAB + 'do = "cut"\nwho = "host 1"\none_way = 1\n', "line 10: one_way is true or false, got 1"),
        (
            LAB + 'do = "link"\nwho = "host 1"\none_way = true\nnet = "up=1mbit"\n',
            "line 11: net: ",
        ),
        (LAB + 'do = "link"\nwho = "host 1"\n', 'line 6: a link needs net, such as "delay=50ms"'),
        (LAB + 'do = "kill_host"\nwho = "host 1"\nfor_s = 2\n', "line 6: a killed host stays killed"),
        (LAB + 'do = "heal"\nwho = "host 1"\nfor_s = 2\n', "line 10: for_s is for a cut, link or pause, and this is a"),
        (LAB + 'do = "link"\nwho = "host 1"\nnet = "dlay=5ms"\n', "line 10: net: dlay=5ms: nothing of that name"),
        (LAB + 'do = "link"\nwho = "host 1"\nnet = "dlay=5ms"\n', "did you mean delay?"),
        (
            LAB + 'do = "link"\nwho = "host 1"\nto = "host 0"\nnet = "up=5mbit"\n',
            "line 11: net: up belongs to the line",
        ),
        (LAB + 'do = "kill"\nnet = "cut"\n', "line 6: to, net and one_way are for links, and this is a kill"),
        (
            HEAD + "[[event]]\ndo = 'kill'\nrandom = {per_minut = 6}\n",
            "line 6: unknown key per_minut in random, did you mean per_minute?",
        ),
        (
            HEAD + "[[event]]\ndo = 'kill'\nrandom.per_minute = 'six'\n",
            "line 6: random: per_minute is a number, got 'six'",
        ),
        (HEAD + "[[event]]\ndo = 'kill'\nrandom = 6\n", "line 6: random is a table, got 6"),
        (HEAD + "[expect]\nsteps_lost = 'few'\n", "line 5: steps_lost is a number, or a bound like"),
        ('[run]\npeers = 0\nscript = "a"\n', "line 2: peers is 1 to 64, got 0"),
        ('[run]\npeers = 100000\nscript = "a"\n', "line 2: peers is 1 to 64, got 100000"),
        ("[run]\npeers = 2\n", "line 1: [run] needs one of script, module and command"),
        (HEAD + "loss = 'loss'\n", "line 4: loss has 0 groups, and needs one"),
        (HEAD + "loss = '('\n", "line 4: loss is not a pattern"),
        (HEAD + "cycles = 0\n", "line 4: cycles is at least 1, got 0"),
        (HEAD + "start = 'forked'\n", "line 4: start is exec or fork, got 'forked'"),
        (HEAD + "imports = ['json']\n", 'line 4: imports are for peers that are forked: use start = "fork"'),
        (HEAD + "start = 'fork'\nimports = ['a b']\n", "line 5: imports takes names of modules, got 'a b'"),
        ('[run]\ncommand = ["a"]\nstart = "fork"\n', "line 3: a fork runs a script or module"),
        (HEAD + "start = 'fork'\n[network]\nhosts = 2\n", "line 4: peers on hosts of a [network] are separate"),
        (HEAD + "resident = 'much'\n", "line 4: resident: a size is a number of bytes, or one with K, M or G"),
        ('[run]\ncommand = ["a"]\nresident = "1G"\n', "line 3: resident works with a script or module"),
        (HEAD + "resident = 4\n", "line 4: resident is a text, got 4"),
        (HEAD + 'args = ["a\\u0000b"]\n', "line 4: args has a NUL character, which no process can be given, got ["),
        ('[run]\nscript = "a\\u0000b"\n', "line 2: script has a NUL character"),
        ('[run]\ncommand = ["a", "\\u0000"]\n', "line 2: command has a NUL character"),
        (HEAD + '[run.env]\nA = "1"\n"A=B" = "1"\n', "line 6: env: a name is not empty and has no =, and no"),
        (HEAD + 'env = {"" = "1"}\n', "line 4: env: a name is not empty"),
        (HEAD + '[run.env]\nA = "1\\u0000"\n', "line 5: env: a name is not empty"),
        (HEAD + '[run.env]\nSHOAL_HOME = "/x"\n', "line 5: env: SHOAL_HOME would have no effect: each run has its own"),
        (HEAD + 'env = {SHOAL_POLICY = "live"}\n', "line 4: env: SHOAL_POLICY would have no effect: policy in [run]"),
        (
            HEAD + '[[event]]\nat_s = 1\ndo = "join"\nwho = "rank 0"\n',
            "line 7: who is for events of one peer, and a join is for new peers",
        ),
        (HEAD + '[[event]]\nat_s = 1\ndo = "restart_all"\nwho = 1\n', "line 7: who is for events of one peer"),
        (HEAD + '[[event]]\nat_s = 1\ndo = "restart_all"\nnumber = 2\n', "line 7: number counts peers, and a"),
        (LAB + 'do = "cut"\nwho = "host 1"\nnumber = 0\n', "line 10: number counts peers, and a cut"),
        (HEAD + "[expect]\nsteps_lost = nan\n", "line 5: steps_lost is a number, or a bound like"),
        (HEAD + "[expect]\nsteps_lost = inf\n", "line 5: steps_lost is a number, or a bound like"),
        (HEAD + "[expect]\nsteps_lost = '< 1e999'\n", "line 5: steps_lost is a number, or a bound like"),
        (HEAD + "limit_s = 'long'\n", "line 4: limit_s is a number, got 'long'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ExperimentError, match=re.escape(says)):
        parse(text)


def test_an_expectation_of_what_is_no_figure_is_refused() -> None:
    check_expectations(parse(HEAD + KILL + '[expect]\nsteps_lost = 0\nkill_resume_ms_p99 = "< 300"\n'))
    with pytest.raises(ExperimentError, match="line 5: unknown figure step_lost, did you mean steps_lost"):
        check_expectations(parse(HEAD + "[expect]\nstep_lost = 0\n"))


@pytest.mark.parametrize(
    ("key", "of"), [("pause_back_ms_p50", "pause"), ("join_gap_ms_max", "join"), ("resume_ms_p99", "leave and kill")]
)
def test_a_time_of_events_that_the_file_does_not_have_is_refused(key: str, of: str) -> None:
    says = f"line {{}}: {key} is of each {of}, and there is no such event: add one, or leave it out"
    with pytest.raises(ExperimentError, match=says.format(5)):
        check_expectations(parse(HEAD + f'[expect]\n{key} = "< 5"\n'))
    with pytest.raises(ExperimentError, match=says.format(8)):
        check_expectations(parse(HEAD + KILL.replace("kill", "restart_all") + f'[expect]\n{key} = "< 5"\n'))


@pytest.mark.parametrize("key", ["clock_width_ms_max", "clock_off_ms_max"])
def test_a_bound_of_clocks_is_refused_without_two_hosts(key: str) -> None:
    check_expectations(parse(LAB + f'do = "join"\n[expect]\n{key} = "< 5"\n'))
    says = f"line 8: {key} is of two hosts of a [network], and there are none: leave it out"
    with pytest.raises(ExperimentError, match=re.escape(says)):
        check_expectations(parse(HEAD + KILL + f'[expect]\n{key} = "< 5"\n'))


def test_a_share_of_events_at_a_step_is_refused_without_such_events() -> None:
    expect = '[expect]\nat_step_off_share = "< 0.1"\n'
    check_expectations(parse(HEAD + KILL + expect))
    with pytest.raises(ExperimentError, match="line 8: at_step_off_share is of events that wait for at_step, and"):
        check_expectations(parse(HEAD + KILL.replace("at_step", "at_s") + expect))


def test_variables_without_effect_are_those_that_peers_are_given_whatever_the_file_says(tmp_path: Path) -> None:
    config = LaunchConfig(
        target=Target.script(tmp_path / "a.py"),
        num_peers=2,
        home=tmp_path,
        receipts=tmp_path,
        is_traced=True,
        policy="live",
        only="join",
        gpus=(),
    )
    asked = dict.fromkeys([*DECIDED, *peer_environment(config, 1, {})], "mine")
    given = peer_environment(config, 1, asked)
    assert {name for name in asked if given.get(name) != "mine"} == DECIDED.keys()


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(HEAD, encoding="utf-8-sig")
    assert Experiment.read(tmp_path / "x.toml").run.peers == 3


@pytest.mark.parametrize(
    ("text", "met", "not_met"), [("< 3", 2.9, 3.0), (">= 3", 3.0, 2.9), ("== 3", 3.0, 3.1), ("<= 3", 3, 4)]
)
def test_bounds_mean_what_they_say(text: str, met: float, not_met: float) -> None:
    bound = parse(HEAD + f'[expect]\nsteps = "{text}"\n').expect["steps"]
    assert bound.is_met(met) and not bound.is_met(not_met)
    assert not bound.is_met(float("nan"))


def test_a_plain_number_is_expected_as_it_is() -> None:
    assert parse(HEAD + "[expect]\nsteps_lost = 0\n").expect == {"steps_lost": Bound("==", 0.0)}
