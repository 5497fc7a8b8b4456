"""Each version's wording of each outcome: what a careful engineer reads in it, the reader reads."""

from __future__ import annotations

from lumiimg.joblog import read_lines
from tests.shared.nccl_wordings import FAMILIES, outcomes, written


def test_each_wording_of_each_outcome_is_read_and_names_its_library() -> None:
    for family in FAMILIES.values():
        for outcome in outcomes(family).values():
            lines = written(family, outcome)
            shown = "\n".join(lines)
            assert "{" not in shown, "the table's templates are filled, none is left over"
            report = read_lines("job.out", lines)
            expected = outcome.cause_of(family)
            assert report.verdict == outcome.verdict, shown
            assert [cause.id for cause in report.causes][:1] == ([expected] if expected else []), shown
            assert outcome.confidence in {None, report.confidence.value}, shown
            assert report.library is not None, shown
            assert report.library.name == ("RCCL" if family.rccl else "NCCL"), shown
