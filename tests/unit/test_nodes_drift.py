"""`drift` of two reports of `check --nodes`: which nodes are worse, better, or have another reason for their answer."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.cli.main import main
from lumiimg.cluster.nodes.node import NodeAnswer
from lumiimg.cluster.nodes.report import SCHEMA
from lumiimg.core.errors import ExitCode
from lumiimg.report.json_output import KINDS
from tests.shared.node_answers import OTHER_CXI, RUN, WELL, found, saved
from tests.shared.programs import unwrapped

if TYPE_CHECKING:
    from pathlib import Path

TROUBLE = NodeAnswer(RUN, "", trouble="no working container engine here")
BROKEN = replace(WELL, findings=found("plugin.loads problem"))
CHANGES: list[tuple[str, NodeAnswer | str | None, NodeAnswer | str | None, str, int]] = [
    ("nid000001", WELL, WELL, "", 0),
    ("nid000002", None, WELL, "better", 0),
    ("nid000003", BROKEN, WELL, "better", 0),
    ("nid000004", WELL, OTHER_CXI, "changed", 0),
    ("nid000005", WELL, replace(WELL, kernel="6.5"), "changed", 0),
    ("nid000006", BROKEN, BROKEN, "", 0),
    ("nid000007", "not asked", WELL, "new", 0),
    ("nid000008", WELL, "not asked", "not-asked", 0),
    ("nid000009", TROUBLE, replace(TROUBLE, trouble="no working container engine here"), "", 0),
    ("nid000010", WELL, None, "not-comparable", 3),
    ("nid000011", None, None, "not-comparable", 3),
    ("nid000012", BROKEN, TROUBLE, "not-comparable", 3),
    ("nid000013", TROUBLE, replace(TROUBLE, trouble="another image is there"), "not-comparable", 3),
    ("nid000014", "not asked", None, "not-comparable", 3),
    ("nid000015", WELL, BROKEN, "worse", 1),
    ("nid000016", TROUBLE, BROKEN, "worse", 1),
    ("nid000017", "not asked", BROKEN, "not-comparable", 3),
    ("nid000018", None, BROKEN, "not-comparable", 3),
]
"""A node, its answers in two reports, the reported change, and the exit code."""


def reports(folder: Path, changes: list[Any]) -> list[str]:
    return [
        str(saved(folder, f"{when}.json", [(each[0], each[at]) for each in changes if each[at] != "not asked"]))
        for at, when in ((1, "before"), (2, "now"))
    ]


def test_two_reports_are_compared_node_by_node_and_a_no_that_was_none_is_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for code in (0, 3, 1):
        (folder := tmp_path / str(code)).mkdir()
        upto = [each for each in CHANGES if each[4] in {0, code} or code == 1]
        assert main(["drift", *reports(folder, upto), "--json"]) == code
        report = json.loads(capsys.readouterr().out)
        became = {node: change["change"] for change in report["changed"] for node in change["nodes"]}
        assert became == {node: change for node, _, _, change, _ in upto if change}
        assert report["same"] + len(became) == len(upto)
    main(["drift", *reports(tmp_path, CHANGES), "--verbose"])
    report = capsys.readouterr().out
    assert (
        "2 of 18 nodes are worse; 7 not comparable; 2 changed; 2 better; 1 new; 1 not asked;"
        " 3 as before" in unwrapped(report)
    )
    assert "1 node nid000004: changed: no obstacle found" in unwrapped(report)
    assert "differs: another libcxi.so.1 (build cccccccc instead of aaaaaaaa)" in unwrapped(report)
    assert "differs: kernel 6.5 instead of 6.4.0-150600" in unwrapped(report)
    assert "before: started, but gave no answer" in unwrapped(report)
    before = str(tmp_path / "before.json")
    assert main(["drift", before, before, "--quiet"]) == 3, "its silent nodes are not known"
    capsys.readouterr()
    other = saved(tmp_path, "other.json", [("nid000099", WELL)], "other.sif")
    assert main(["drift", before, str(other)]) == 3
    report = unwrapped(capsys.readouterr().out)
    assert "CANNOT TELL: no node is in both reports" in report
    assert re.search(r"note: these are reports of different images: /\S*image.sif and /\S*other.sif", report)


def test_after_an_update_nodes_that_change_alike_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update = replace(OTHER_CXI, kernel="6.5")
    assert (
        main(
            [
                "drift",
                *reports(tmp_path, [(node, WELL, update) for node in (f"nid{number:06}" for number in range(1, 65))]),
            ]
        )
        == 0
    )
    output = capsys.readouterr().out
    assert output.count("nid[000001-000064]") == output.count("nid") == 1


@pytest.mark.threat
def test_what_is_no_report_of_nodes_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = saved(tmp_path, "good.json", [("nid000001", WELL), ("nid000002", None)])
    text = good.read_text()
    of_one = json.dumps({"schema": 1, "answer": "no", "levels": {"static": "done"}})
    many = json.loads(text)
    many["groups"] = [many["groups"][0] | {"nodes": [f"n{number}"]} for number in range(99)]
    assert KINDS["check-nodes"].number == SCHEMA
    for bad, words in (
        (text.replace('"schema": 1', '"schema": 2'), "was written by another lumiimg (this one reads schema 1)"),
        (text.replace("nid000002", "nid000001"), "has two answers from nid000001"),
        (text.replace("nid000002", "a,b"), "key 'silent[0].nodes[0]' is 'a,b'; a name of a node is needed"),
        (text.replace("nid000002", "\\u202eb"), "a name of a node is needed"),
        (text.replace('"nid000002"', ""), "key 'silent[0].nodes' is empty; a name of a node is needed"),
        (text[:-9], "is cut off, or not JSON"),
        (of_one, "is not a report of `check --nodes --json`"),
        ("[]", "is not a report of `check --nodes --json`"),
        (json.dumps(many), "has more groups than a report can have"),
    ):
        (tmp_path / "bad.json").write_text(bad)
        for pair in ((good, tmp_path / "bad.json"), (tmp_path / "bad.json", good)):
            assert main(["drift", *map(str, pair)]) == ExitCode.BAD_INPUT
            message = capsys.readouterr().err
            assert words in message
            assert message.count("\n") == 1
    (tmp_path / "bad.json").write_text(text.replace('"sentence": "', '"sentence": "\\u001b[2J'))
    main(["drift", str(good), str(tmp_path / "bad.json"), "--verbose"])
    assert "\x1b" not in capsys.readouterr().out
    for more in ([], [str(good), "--site", "lumi"]):
        assert main(["drift", str(good), *more]) == ExitCode.BAD_INPUT
        assert "--image: is missing" in capsys.readouterr().err
    assert main(["drift", str(good), str(good), "--image", "x"]) == ExitCode.BAD_INPUT
    assert "good.json: is not a host snapshot" in capsys.readouterr().err
