"""The kinds of JSON, as `schema` lists them."""

from __future__ import annotations

from lumiimg.report.document import Document, Facts, Section
from lumiimg.report.json_builds import SchemaEntry, Schemas
from lumiimg.report.json_kinds import KINDS
from lumiimg.wording import count


def all_schemas() -> Schemas:
    return Schemas(tuple(SchemaEntry(name, one.number, one.printed_by, one.summary) for name, one in KINDS.items()))


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
