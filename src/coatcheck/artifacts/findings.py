"""What was found out about a store by trying it. Everything here is pure."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["CheckVerdict", "Diagnosis", "Finding"]

CheckVerdict = Literal["ok", "absent", "wrong", "failed", "unknown"]


class Finding(msgspec.Struct, frozen=True):
    """What one check came to.

    Attributes:
        check: its name.
        verdict: ``ok``: it is as documented; ``absent``: the server does not have it, or ignores that it was asked
            for; ``wrong``: it has it, and does something else; ``failed``: it could not be found out, because the
            server refused, or did not answer in time; ``unknown``: it was not tried.
        detail: what was seen, for a person. It holds no secret, and no key of an artifact.
        consequence: what coatcheck does about a shortfall, or what you can do.
        blocking: whether a store cannot be used while this is so.
    """

    check: str
    verdict: CheckVerdict
    detail: str
    consequence: str = ""
    blocking: bool = False


class Diagnosis(msgspec.Struct, frozen=True):
    """All that was found out about a store.

    Attributes:
        place: which store, in words.
        findings: one a check, in the order in which they were made.
    """

    place: str
    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        """Whether the store can be used: shortfalls that coatcheck deals with do not count."""
        return not any(finding.blocking for finding in self.findings)
