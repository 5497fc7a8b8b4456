"""Each version's wording of each outcome: what a careful engineer reads in it, the reader reads."""

from __future__ import annotations

import pytest

from lumiimg.nccl.reader import read_lines
from tests.shared.nccl_wordings import FAMILIES, outcomes, written


def test_each_wording_of_each_outcome_is_read_and_names_its_library() -> None:
    for family in FAMILIES.values():
        for outcome in outcomes(family).values():
            lines = written(family, outcome)
            shown = "\n".join(lines)
            assert "{" not in shown, "the table's templates are filled, none is left over"
            report = read_lines("job.out", lines)
            expected = outcome.cause(family)
            assert report.verdict == outcome.verdict, shown
            assert [cause.id for cause in report.causes][:1] == ([expected] if expected else []), shown
            assert outcome.confidence in {None, report.confidence.value}, shown
            assert report.library is not None, shown
            assert report.library.name == ("RCCL" if family.rccl else "NCCL"), shown


@pytest.mark.parametrize(
    ("lines", "verdict", "confidence", "cause"),
    [
        pytest.param(
            ["NET/Plugin : Plugin load returned 0 : (null)."],
            "plugin-missing",
            "likely",
            "plugin-not-loaded",
            id="2.19 and 2.20 lost the loader's words",
        ),
        pytest.param(
            ["NET/Plugin: No plugin found (librccl-net.so)", "NET/Plugin: Using internal network plugin."],
            "plugin-missing",
            "likely",
            "plugin-not-loaded",
            id="2.21 with NCCL_DEBUG_SUBSYS=INIT hides them",
        ),
        pytest.param(
            ["RCCL version : 2.30.4-HEAD:1", "NET/Plugin: Could not find: libnccl-net.so librccl-net.so"],
            "plugin-missing",
            "proved",
            "plugin-absent",
            id="an RCCL that looked for both names",
        ),
        pytest.param(
            ["Bootstrap : Using hsn0:10.253.4.11<0>", "NCCL_SOCKET_IFNAME set by environment to bond0"],
            "none",
            "unknown",
            "interface-not-hsn",
            id="another interface where there is hsn",
        ),
        pytest.param(
            ["Bootstrap : Using hsn0:10.253.4.11<0>", "NCCL_SOCKET_IFNAME set by environment to ^lo,docker0"],
            "none",
            "unknown",
            "nothing-decided",
            id="interfaces left out that nobody wants",
        ),
    ],
)
def test_what_one_version_or_setting_words_in_its_own_way(
    lines: list[str], verdict: str, confidence: str, cause: str
) -> None:
    report = read_lines("job.out", [f"nid005101:1:2 [0] NCCL INFO {line}" for line in lines])
    assert (report.verdict, report.confidence, report.causes[0].id) == (verdict, confidence, cause)
