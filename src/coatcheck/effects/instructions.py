"""The instructions that a host registered. Nothing else can ever be pushed to the model: ids are looked up, no text
that a tool sends is delivered as an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from coatcheck.effects.graph import check_id
from coatcheck.errors import ConfigurationError
from coatcheck.results.shapes import describe, is_array, is_text, legible, quote

__all__ = ["Instruction", "InstructionCatalog"]


class Instruction(msgspec.Struct, frozen=True):
    """One registered instruction.

    Attributes:
        id: what a tool names to have it delivered.
        text: what the model reads.
        skill: the skill to which it belongs: it is delivered on every turn in it, without being asked for.
        pull_only: True where the model fetches it by a tool of the host's, and it is never pushed.
    """

    id: str
    text: str
    skill: str | None = None
    pull_only: bool = False


class InstructionCatalog:
    """The registered instructions of a host, by id. It never changes.

    Args:
        instructions: in the order in which those of one skill are delivered.

    Raises:
        ConfigurationError: with the path of what is wrong, for example ``InstructionCatalog[2].id``.
    """

    __slots__ = ("_by_id",)

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        if not is_array(instructions):
            raise ConfigurationError(f"InstructionCatalog takes a list of Instruction, but {describe(instructions)}")
        self._by_id: dict[str, Instruction] = {}
        for index, instruction in enumerate(instructions):
            path = f"InstructionCatalog[{index}]"
            _check(path, instruction)
            if instruction.id in self._by_id:
                raise ConfigurationError(f"{path}.id: {quote(instruction.id)} is registered already")
            self._by_id[instruction.id] = instruction

    def __repr__(self) -> str:
        return f"InstructionCatalog({list(self._by_id.values())!r})"

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> Instruction | None:
        """The instruction with this id, or ``None``."""
        return self._by_id.get(id)


def _check(path: str, instruction: object) -> None:
    if not isinstance(instruction, Instruction):
        raise ConfigurationError(f"{path} must be an Instruction, but {describe(instruction)}")
    check_id(f"{path}.id", instruction.id)
    text: object = instruction.text
    if not is_text(text) or not str.strip(text):
        raise ConfigurationError(f"{path}.text must be text that is not blank, but {describe(text)}")
    if legible(text) != text:
        raise ConfigurationError(f"{path}.text holds half of a surrogate pair")
    if not isinstance(instruction.pull_only, bool):
        raise ConfigurationError(f"{path}.pull_only must be True or False, but {describe(instruction.pull_only)}")
    if instruction.skill is not None:
        check_id(f"{path}.skill", instruction.skill)
        if instruction.pull_only:
            raise ConfigurationError(
                f"{path}: what is delivered with a skill does not travel only by pull; give skill= or pull_only=True"
            )
