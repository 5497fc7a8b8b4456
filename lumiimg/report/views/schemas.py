"""The kinds of JSON, as `schema` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumiimg.report.document import Document, facts_section
from lumiimg.wording import count

if TYPE_CHECKING:
    from lumiimg.report.json_kinds import Schemas


def schemas_document(listed: Schemas) -> Document:
    """Return the names of all schemas."""
    rows = tuple((one.name, one.summary) for one in listed.schemas)
    hints = ("one of them: lumiimg schema NAME", "as tables: docs/reference/json.md")
    sections = (facts_section("Schemas", rows),)
    return Document("schema", "schemas", count(len(rows), "schema"), summary=hints, sections=sections, is_list=True)
