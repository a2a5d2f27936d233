"""A caller with a single run drives it to its end."""

from __future__ import annotations

from remnant.training import Work, run_to_completion


def test_yielded_functions_are_called_before_the_run_continues_and_its_result_is_returned() -> None:
    events: list[str] = []

    def inner() -> Work[int]:
        yield None
        yield lambda: events.append("blocking call")
        events.append("resumed")
        return 3

    def outer() -> Work[int]:
        return 2 * (yield from inner())

    assert run_to_completion(outer()) == 6
    assert events == ["blocking call", "resumed"]
