"""The kinds of JSON, as `schema` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.report.document import Document, Facts, Section
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.report.json_kinds import Schemas


def schemas_document(listed: Schemas) -> Document:
    """Return the names of all schemas."""
    rows = tuple((one.name, one.summary) for one in listed.schemas)
    return Document(
        command="schema",
        subject="schemas",
        is_list=True,
        sentence=count(len(rows), "schema"),
        summary=("one of them: lumiimg schema NAME", "as tables: docs/reference/json.md"),
        sections=(Section("Schemas", (Facts(rows),)),),
    )
