from headstart.cli.status import trouble


def test_only_what_went_wrong_is_told() -> None:
    assert trouble({"events_broken": 0, "journal_dropped": 0, "state_writes_failed": 0}) == ""
    told = trouble({"events_broken": 2, "journal_dropped": 0, "state_writes_failed": 1})
    assert told == "2 events not handled, 1 writes of the state failed"
