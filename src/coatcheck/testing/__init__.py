"""What we test coatcheck with, for tests of your own: a conformance battery for stores, and a store that fails.

`coatcheck.testing.strategies` needs Hypothesis and is imported by itself.
"""

from coatcheck.testing.conformance import CASES, CaseResult, Report, check_store
from coatcheck.testing.faulty import Fault, FaultyStore, fail, hang
from coatcheck.testing.trial import Case, Hook, MakeStore, ManualClock, Overwrite, Reopen

__all__ = [
    "CASES",
    "Case",
    "CaseResult",
    "Fault",
    "FaultyStore",
    "Hook",
    "MakeStore",
    "ManualClock",
    "Overwrite",
    "Reopen",
    "Report",
    "check_store",
    "fail",
    "hang",
]
