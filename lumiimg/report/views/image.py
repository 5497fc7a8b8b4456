"""Answers of `show image.sif`, which is an image's own record of how it was made, and of `diff`: differing files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from lumiimg.build.provenance import INCOMPLETE, SBOM
from lumiimg.core.errors import BadInputError
from lumiimg.core.findings import Advice
from lumiimg.core.text import as_operand, count, shell_join
from lumiimg.report.document import Document, Facts, Lines, Section
from lumiimg.resolve.image_base import LOCAL_AGENTS
from lumiimg.resolve.stack import OWN_PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lumiimg.build.provenance import ImageRecord
    from lumiimg.host.manifest import BindManifest
    from lumiimg.image.compare import FileDifference, ImageDiff
    from lumiimg.resolve.lock_file import LockFile

_SHOWN = 20
_MAX_ROWS = 100
"""Maximum number of rows of an image's own record, which anybody may have written."""
_MAX_LETTERS = 500


def record_document(record: ImageRecord) -> Document:
    """Return an image's own record of how it was made. Raises BadInputError if the record is damaged."""
    plan, manifest = record.plan, record.bind_manifest
    again = ["lumiimg", "rebuild", as_operand(record.image), "-o", "new.sif"]
    given = " --base FILE" if plan.base.image is not None and plan.base.agent in LOCAL_AGENTS else ""
    return Document(
        command="show",
        subject=record.image,
        is_named=True,
        is_list=True,
        sentence=f"built by lumiimg {_word(plan.lumiimg)}, fabric {plan.fabric}, site {_word(plan.site or 'none')}",
        advice=Advice(next=f"{shell_join(again)}{given}", where="to build it again"),
        sections=(
            Section("What it was built from", (_facts((*_plan_rows(plan), *_bill_rows(record))),)),
            *([_manifest(manifest)] if manifest is not None else []),
        ),
    )


def differences_document(found: ImageDiff) -> Document:
    """Return the answer about the files in which two images differ."""
    files = found.files
    sentence = "no difference: the same files, modes, owners, content, links, devices, extended attributes and times"
    if files:
        sentence = f"{count(len(files), 'file')} differ{'s' if len(files) == 1 else ''}"
    return Document(command="diff", subject="two images", sentence=sentence, sections=(difference_lines(files),))


def difference_lines(differences: Sequence[FileDifference]) -> Section:
    """Return the section of files that differ."""
    lines = tuple(f"{one.path}: {one.what}" for one in differences)
    return Section("Files that differ", (Lines(lines),))


def _facts(rows: Iterable[tuple[str, str]]) -> Facts:
    """Return the rows as facts, limited to the first ones."""
    found = list(rows)
    more = [("", f"{len(found) - _MAX_ROWS} more; --json has all")] if len(found) > _MAX_ROWS else []
    return Facts((*found[:_MAX_ROWS], *more))


def _plan_rows(plan: LockFile) -> Iterator[tuple[str, str]]:
    base = plan.base
    digest = base.digest or (base.image and base.image.sha256 and f"sha256:{base.image.sha256}")
    yield "from", f"{base.agent} {_word(base.origin)}{f' ({digest})' if digest else ''}"
    for entry in plan.stack:
        release = f" {_word(entry.release)}" if entry.release else ""
        added = f", {count(len(entry.wheels), 'Python distribution')}" if entry.wheels else ""
        if entry.name == OWN_PACKAGES:
            asked = [one.text for one in plan.request.own]
            added += f", for {', '.join(map(_word, asked[:_SHOWN]))}{' …' if len(asked) > _SHOWN else ''}"
        yield "layer", f"{entry.name}{release}{added}"


def _bill_rows(record: ImageRecord) -> Iterator[tuple[str, str]]:
    bill = record.sbom or {}
    kinds = Counter(
        _word(component.get("purl", "")).partition("/")[0].removeprefix("pkg:")
        for component in _objects(record, bill, "components")
    )
    if kinds:
        names = (("deb", "Debian package"), ("pypi", "Python distribution"), ("generic", "source"))
        found = ", ".join(count(kinds[kind], name) for kind, name in names if kind in kinds) or "nothing that is known"
        yield "contains", f"{found} (CycloneDX: --json, or /.lumiimg/{SBOM} in it)"
    for metadata in _objects(record, bill, "metadata"):
        properties = _objects(record, metadata, "properties")
        unknown = [one.get("value") for one in properties if one.get("name") == INCOMPLETE]
        yield from (("not known", _word(what)) for what in unknown)


def _objects(record: ImageRecord, document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list, or a single object that is not in a list; nothing if there is none.

    Raises BadInputError for anything else: anybody may have written the record.
    """
    value = document.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in found):
        raise BadInputError(f"its build record is damaged, at {key!r}", where=record.image)
    return found


def _word(value: object) -> str:
    return "(not named)" if value is None else str(value)[:_MAX_LETTERS]


def _manifest(manifest: BindManifest) -> Section:
    """Return what is bound into the image on the node for which it was built, or why nothing is."""
    title = f"bind manifest: fabric {manifest.fabric.value}, made for {manifest.machine or 'a node'}"
    return Section(title, (_facts(_manifest_rows(manifest)),), is_headed=True)


def _manifest_rows(manifest: BindManifest) -> Iterator[tuple[str, str]]:
    for bind in manifest.binds:
        yield "library", f"{bind.source} at {bind.target}: {bind.reason}"
        if len(bind.chain) > 1:
            yield "", " -> ".join(bind.chain)
    for variable in manifest.variables:
        yield "variable", f"{variable.name}={variable.value}: {variable.reason}"
    yield from (("tried", f"{one.attempt}: {one}") for one in manifest.refusals)
    yield from (("note", note) for note in manifest.notes)
