"""What one load has met so far: the working state behind a LoadOutcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumiimg.elf.objects import LoadOutcome

if TYPE_CHECKING:
    from lumiimg.elf.objects import FoundBy, LoadedObject, MissingLibrary, MissingVersion


@dataclass(slots=True)
class Report:
    """Objects in the order of the loader's list, and everything that went wrong."""

    order: list[LoadedObject] = field(default_factory=list)
    missing: list[MissingLibrary] = field(default_factory=list)
    missing_names: set[str] = field(default_factory=set)
    """Every name that found no object that can be loaded, as written and as expanded."""
    missing_versions: list[MissingVersion] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    closure: dict[str, str | None] = field(default_factory=dict)

    def outcome(
        self, root: LoadedObject | None, found_by: FoundBy | None, *, already: frozenset[LoadedObject] = frozenset()
    ) -> LoadOutcome:
        """Return it as a value, without the objects that were there before."""
        return LoadOutcome(
            root=root,
            found_by=found_by,
            objects=tuple(loaded for loaded in self.order if loaded not in already),
            missing=tuple(self.missing),
            missing_versions=tuple(self.missing_versions),
            errors=tuple(dict.fromkeys(self.errors)),
            warnings=tuple(dict.fromkeys(self.warnings)),
            closure=self.closure,
        )
