from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coatcheck.effects.leases import Lease, granted, served, swept, tenure

skills = st.none() | st.sampled_from("ab")
leases = st.lists(
    st.builds(
        Lease,
        instruction_id=st.sampled_from("xyz"),
        delivery_lease=st.sampled_from(["next-call", "until-skill-exit"]),
        skill=skills,
        tool=st.just("t"),
        turn=st.integers(0, 6),
    )
)


def test_the_tenure_is_that_of_the_skill_of_the_run_else_of_the_last_activated() -> None:
    assert tenure("a", ["x", "y"]) == "a"
    assert tenure(None, ["x", "y"]) == "y"
    assert tenure(None, []) is None


@given(leases, st.integers(0, 7), skills)
def test_each_instruction_is_served_once_in_the_order_of_the_grants(
    given: list[Lease], turn: int, skill: str | None
) -> None:
    found = served(given, turn=turn, skill=skill)
    assert len({lease.instruction_id for lease in found}) == len(found)
    places = [given.index(lease) for lease in found]
    assert places == sorted(places)


@given(leases, st.integers(0, 7), skills)
def test_a_sweep_takes_nothing_that_could_still_be_served_and_leaves_nothing_that_cannot(
    given: list[Lease], turn: int, skill: str | None
) -> None:
    left = swept(given, turn=turn, skill=skill)
    for lease in given:
        if lease.delivery_lease == "next-call":
            assert (lease in left) == any(served([lease], turn=later, skill=None) for later in range(turn + 1, 9))
        else:
            assert (lease in left) == bool(served([lease], turn=turn + 1, skill=skill))
    assert swept(left, turn=turn, skill=skill) == left
    assert swept([], turn=turn, skill=skill) == ()


@given(leases, st.integers(0, 7), skills)
def test_to_grant_again_what_is_live_changes_no_delivery_and_adds_nothing(
    given: list[Lease], turn: int, skill: str | None
) -> None:
    for lease in [
        Lease(instruction_id="x", delivery_lease="until-skill-exit", skill=skill, tool="t", turn=turn),
        Lease(instruction_id="x", delivery_lease="next-call", skill=skill, tool="t", turn=turn),
    ]:
        once = granted(given, lease)
        assert granted(once, lease) == once
        assert served(once, turn=turn + 1, skill=skill) == served([*given, lease], turn=turn + 1, skill=skill)
        assert set(once) <= {*given, lease}
