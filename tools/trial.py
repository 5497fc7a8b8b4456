"""Add the measurements of a trial on a real machine to lumiimg's data, as a change to be reviewed.

python -m tools.trial trial.json

Results as predicted become evidence: images that lumiimg built, and whose all-reduce went over Slingshot, get `run` in
lumiimg/catalog/ledger.toml; the ROCm of an image whose collective ran becomes a fact of rank "measured" about the
site's driver. Other results are printed with the source of the claim, for a person to correct. A trial that used GPUs
although no node showed any is refused.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from lumiimg.catalog.ledger import LEDGER, LedgerEntry
from lumiimg.cluster.trial.model import ClaimOutcome, TrialReport
from lumiimg.core.decode import DecodeError, decode_json
from lumiimg.core.errors import BadInputError, LumiimgError
from lumiimg.core.files import read_beginning, write_text
from tools import ledger

if TYPE_CHECKING:
    from collections.abc import Iterator


_MAX_BYTES = 4 << 20
_MOST_WORDS = 2000
_ID, _CONTENT, _RELEASE = re.compile("[0-9a-f]{8}"), re.compile("[0-9a-f]{16}"), re.compile(r"\d{1,2}(\.\d{1,3}){1,3}")
SITES = LEDGER.parent / "sites"


def main(words: list[str]) -> int:
    match words:
        case [file] if not file.startswith("-"):
            try:
                for line in take_in(Path(file)):
                    print(line)
            except LumiimgError as error:
                print(error, file=sys.stderr)
                return int(error.exit_code)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def take_in(path: Path, *, ledger_file: Path = LEDGER, sites: Path = SITES) -> Iterator[str]:
    """Add a trial, and yield the changes. Raises BadInputError for a report that proves nothing about a machine."""
    report, digest = read(path)
    name = f"trial {report.id} on {report.site}, sha256 {digest}"
    site = next((one for one in sites.glob("*.toml") if one.stem == report.site), None)
    if site is None:
        raise BadInputError(f"is about {report.site}, which the catalogue does not have", where=str(path))
    day = dt.datetime.fromisoformat(report.measured).date()
    known, trials = ledger.contents(), [*_run(report, name, day)]
    counting = [one for one in trials if ledger.counts(one, known)]
    ledger.record(counting, ledger_file)
    yield from (f"{one.name} {one.release}: run".replace("  ", " ") for one in counting)
    others = (one for one in trials if one not in counting)
    yield from (f"{one.name} {one.release}: not taken in, the catalogue has no such row today" for one in others)
    facts = [*_facts(report, name, day)]
    _append(site, facts, report)
    yield from (f"{site.name}: ROCm {fact['rocm']} runs there" for fact in facts)
    for row in report.rows:
        if row.outcome is ClaimOutcome.DIFFERS:
            yield f"to correct: {row.about}: predicted {row.predicted} ({row.source}), measured {row.measured}"


def read(path: Path) -> tuple[TrialReport, str]:
    """Read a trial's report, and return it with its digest. Raises BadInputError."""
    try:
        data = read_beginning(path, _MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise BadInputError(f"has more than {_MAX_BYTES} bytes", where=str(path))
        report = decode_json(data, TrialReport)
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except DecodeError as error:
        raise BadInputError(f"is not the report of a trial: {error}", where=str(path)) from error
    if report.stand_in is not None:
        raise BadInputError(f"is a rehearsal ({report.stand_in}): it proves nothing of any machine", where=str(path))
    if not report.measured:
        raise BadInputError("has measured nothing", where=str(path))
    identity = next((row for row in report.rows if row.id == "site.identity"), None)
    if identity is not None and identity.outcome is not ClaimOutcome.SAME:
        raise BadInputError(f"may be of another machine: {identity.about}: {identity.measured}", where=str(path))
    if wrong := next(_wrong(report), None):
        raise BadInputError(f"is not what `lumiimg trial report` writes: {wrong}", where=str(path))
    return report, hashlib.sha256(data).hexdigest()[:16]


def _wrong(report: TrialReport) -> Iterator[str]:
    """Yield values that no trial writes but that would get into the data: a review of many lines may miss them."""
    try:
        if dt.datetime.fromisoformat(report.measured) > dt.datetime.now(dt.UTC) + dt.timedelta(days=1):
            yield "it was measured in the future"
    except (ValueError, TypeError):
        yield "its date"
    if not _ID.fullmatch(report.id):
        yield "its id"
    for number, image in enumerate(report.images, 1):
        if not _CONTENT.fullmatch(image.content) or not all(_CONTENT.fullmatch(row.content) for row in image.rows):
            yield f"the digests of image {number}"
        if image.rocm is not None and not _RELEASE.fullmatch(image.rocm):
            yield f"the ROCm of image {number}"
    for row in report.rows:
        words = (row.id, row.about, row.predicted or "", row.measured or "", row.source)
        if not all(word.isprintable() and len(word) <= _MOST_WORDS for word in words):
            yield f"the row {row.id[:80]!a}"
        elif row.outcome in {ClaimOutcome.SAME, ClaimOutcome.DIFFERS} and None in {row.predicted, row.measured}:
            yield f"the row {row.id} is judged without two values"


def _run(report: TrialReport, name: str, day: dt.date) -> Iterator[LedgerEntry]:
    """Yield ledger entries for the rows of images whose all-reduce over nodes went over Slingshot, as predicted."""
    rows = {row.id: row for row in report.rows}
    for number, image in enumerate(report.images, 1):
        network = rows.get(f"image-{number}.network")
        if network is None or network.outcome is not ClaimOutcome.SAME or network.measured != "ofi-cxi":
            continue
        speed = rows.get(f"image-{number}.bandwidth")
        how = f"{name}: all-reduce on {report.nodes} nodes over cxi"
        how += f", {speed.measured}" if speed is not None and speed.measured else ""
        for row in image.rows:
            yield LedgerEntry(row.name, row.release, "run", row.content, day, how)


def _facts(report: TrialReport, name: str, day: dt.date) -> Iterator[dict[str, Any]]:
    rows = {row.id: row.outcome for row in report.rows}
    if rows.get("site.driver") is not ClaimOutcome.SAME:
        return  # with a different or unknown driver, it says nothing about the one in the site file
    ran = {row.id for row in report.rows if row.measured == "runs"}
    for number, image in enumerate(report.images, 1):
        if image.rocm and f"image-{number}.driver" in ran:
            text = f"a collective on its GPUs, in image {image.content}"
            yield {"rocm": image.rocm, "text": text, "rank": "measured", "source": name, "date": day}


def _append(site: Path, facts: list[dict[str, Any]], report: TrialReport) -> None:
    """Append facts to a site file, each once, and record that something ran there; the rest stays unchanged."""
    text = site.read_text(encoding="utf-8")
    facts = [fact for fact in facts if fact["text"] not in text]
    text = re.sub('^status = "documented"', 'status = "run"', text, count=1, flags=re.MULTILINE)
    if facts:
        evidence = tomli_w.dumps({"driver": {"evidence": facts}})
        write_text(
            site,
            f"{text.rstrip()}\n\n# -- measured by trial {report.id} --\n\n{evidence.partition('[driver]')[2] or evidence}".rstrip()
            + "\n",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
