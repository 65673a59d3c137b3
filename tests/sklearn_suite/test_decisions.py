"""The list of what fails by decision stays short."""

from decisions import CASES, DECISIONS


def test_there_are_few_decisions_and_each_has_a_reason():
    assert len(DECISIONS) <= 15
    assert all(len(reason) > 30 for reason in DECISIONS.values())
    assert CASES.keys() <= DECISIONS.keys()
