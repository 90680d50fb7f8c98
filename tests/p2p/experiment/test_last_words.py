"""A killed peer's trace contains what others have heard from it."""

from dataclasses import replace

from p2p.experiment.evaluation.last_words import unrecorded
from p2p.experiment.evaluation.report import evaluate, metrics
from p2p.experiment.folder import Run
from p2p.telemetry.records import Kind, Record
from tests.p2p.experiment.runs import A, killed, record


def with_finished(*steps: int) -> Run:
    """A was killed in step 3, and had finished these steps."""
    run = killed()
    records = [record(50.0 * step - 1, Kind.FINISHED, step) for step in steps]
    return replace(run, tracks={**run.tracks, A: replace(run.tracks[A], records=records)})


def test_a_trace_that_has_all_that_was_committed_with_its_peer_lacks_nothing() -> None:
    run = with_finished(1, 2)
    assert unrecorded(run) == []
    assert metrics([evaluate(run)])["steps_unrecorded"] == 0


def test_a_step_that_others_have_committed_and_the_trace_does_not_finish_is_named() -> None:
    run = with_finished(1)
    assert unrecorded(run) == [(A, 2)]
    assert metrics([evaluate(run)])["steps_unrecorded"] == 1


def test_a_step_that_the_barrier_of_the_next_view_has_committed_need_not_be_finished_there() -> None:
    run = with_finished(1)  # in step 2 it had sent everything, and was killed before it had received everything
    later = {
        peer_id: replace(track, records=[_after_the_barrier(each) for each in track.records])
        for peer_id, track in run.tracks.items()
        if peer_id != A
    }
    assert unrecorded(replace(run, tracks={**run.tracks, **later})) == []


def _after_the_barrier(each: Record) -> Record:
    """Moves the commit of step 2 to 121 ms, in view 2."""
    is_it = (each.kind, each.step) == (Kind.COMMITTED, 2)
    return each._replace(time_ns=record(121.0, Kind.COMMITTED, 2).time_ns) if is_it else each


def test_of_a_trace_in_which_records_were_overwritten_nothing_is_said() -> None:
    run = with_finished(1)
    assert run.log is not None
    lossy = tuple(replace(each, missed=each.peer_id == A) for each in run.log.processes)
    assert unrecorded(replace(run, log=replace(run.log, processes=lossy))) == []
