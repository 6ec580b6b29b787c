"""Every error that coatcheck raises, in one tree.

    CoatcheckError
    ├── ConfigurationError (ValueError)    a setting that cannot be honoured; raised when it is built
    ├── DeclarationError (ValueError)      what a tool wants to say cannot be said; starts "refused: "
    ├── RenderingError (ValueError)        a value that JSON cannot carry unchanged; names the path and the type
    └── StoreError                         a store refused or could not answer
        ├── InvalidArtifact (ValueError)   the put itself is wrong: a blank kind, more than the budget
        ├── InvalidRange (ValueError)      a part of a payload that cannot be: a negative start, an end before it
        ├── UnknownParent (LookupError)    a parent ref that does not resolve in this scope
        ├── ArtifactsUnavailable           a tool used its artifacts where there is no store, or after its call
        ├── IntegrityError                 the stored bytes are not the bytes that were put
        └── StoreUnavailable (OSError)     the store cannot answer now: a full disk, a lost directory

A tool's own failures are never raised out of the boundary: they are ``Failed`` outcomes.
Texts of store errors name refs and settings, never a payload, a tenant or a principal.
"""

from __future__ import annotations

__all__ = [
    "ArtifactsUnavailable",
    "CoatcheckError",
    "ConfigurationError",
    "DeclarationError",
    "IntegrityError",
    "InvalidArtifact",
    "InvalidRange",
    "RenderingError",
    "StoreError",
    "StoreUnavailable",
    "UnknownParent",
]


class CoatcheckError(Exception):
    """The root of the tree: catch it to catch everything that coatcheck raises on purpose."""


class ConfigurationError(CoatcheckError, ValueError):
    """A setting cannot be honoured. Raised where it is declared, never at the first call that meets it.

    The text names the setting (``Ceiling.max_chars``, ``rules[2]``, ``?ttl=``), says what was wrong
    with the value, and what would be right.
    """


class DeclarationError(CoatcheckError, ValueError):
    """``absent()``, ``coverage()`` or ``Encoded`` refused a declaration that it cannot honour.

    The text starts with ``refused: `` and names the field and the index, because inside a tool it
    becomes the error that the model reads.
    """


class RenderingError(CoatcheckError, ValueError):
    """A value that JSON cannot carry, or would silently change.

    Attributes:
        path: where in the value, as ``$.rows[3].mean``.
        problem: what is there, for example ``a float that is not a number (nan)``.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class StoreError(CoatcheckError):
    """A store refused an operation or could not answer. Absence is never an error: it is ``None``."""


class InvalidArtifact(StoreError, ValueError):
    """A put was refused before anything was written or removed; the text names the field."""


class InvalidRange(StoreError, ValueError):
    """A read asked for a part of a payload that cannot be; the text names ``start`` or ``end``."""


class UnknownParent(StoreError, LookupError):
    """A put named parents that do not resolve in its scope (missing, expired, foreign or malformed).

    Attributes:
        refs: every parent that did not resolve, in the order given.
    """

    def __init__(self, refs: tuple[str, ...]) -> None:
        super().__init__(
            f"parents that do not resolve in this scope: {', '.join(repr(ref[:64]) for ref in refs)}; "
            "store the parent first, or leave it out"
        )
        self.refs = refs


class ArtifactsUnavailable(StoreError):
    """A tool used the artifacts of its call where there are none: without a store, or after the call had ended."""


class IntegrityError(StoreError):
    """The stored bytes are not the bytes that were put: the digest of what was read differs.

    Attributes:
        ref: the artifact.
        expected, actual: the two digests, ``sha256:<hex>``; where what lies beside the payload is damaged, what
            should be there and what is.
    """

    def __init__(self, ref: str, expected: str, actual: str) -> None:
        super().__init__(f"{ref} is damaged: expected {expected}, read {actual}; delete it and store it again")
        self.ref = ref
        self.expected = expected
        self.actual = actual


class StoreUnavailable(StoreError, OSError):
    """The store cannot answer now. Nothing was lost and nothing half-written is visible; try again."""
