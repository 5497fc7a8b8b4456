"""Foreign text in output: every report with hostile text in every place keeps its lines, and escapes what a terminal
would obey.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lumiimg.cli
import lumiimg.report
from lumiimg.cli.main import main
from lumiimg.core.errors import LumiimgError
from lumiimg.core.findings import Remedy
from lumiimg.core.redact import HIDDEN
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import write_snapshot
from lumiimg.image import open_image
from lumiimg.report import json_output
from lumiimg.report import text as shown_text
from lumiimg.report.document import Document
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import EVERYTHING
from tests.shared.secret_texts import SECRETS, leaked

FORGED = "lumiimg: all is well"
HOSTILE = f"\x1b[31m\x9b2J\u202e\x07\r\u2028\n{FORGED}"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LOG = """\
n1:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to hsn0
n1:1:1 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so.
n1:1:1 [0] NCCL INFO Using network Socket
n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 - Init START
"""


CHECKED = {"name", "status", "id", "agent", "have", "sentence", "version", "full_name", "sha256"}
"""Fields whose text is ours, or matched a pattern when it was read (catalog.layers.NAME, an id of a table)."""


def poisoned(value: Any, behind: str, depth: int = 0) -> Any:
    """Return a value with words appended to every text in it that is not from a closed set."""
    if depth > 12 or isinstance(value, (enum.Enum, bool, int, float, bytes)) or value is None:
        return value
    if isinstance(value, Remedy):
        return Remedy(value.text + behind, value.command and value.command + behind, value.where)
    if isinstance(value, str):
        return value + behind
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(poisoned(item, behind, depth + 1) for item in value)
    if isinstance(value, dict):
        return {key: poisoned(inner, behind, depth + 1) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in dataclasses.fields(value):
            if field.init and (field.name not in CHECKED or isinstance(value, Document)):
                changes[field.name] = poisoned(getattr(value, field.name), behind, depth + 1)
        with contextlib.suppress(Exception):  # a value that validates itself is left unchanged
            return dataclasses.replace(value, **changes)
    return value


@dataclasses.dataclass
class Reports:
    behind: str = HOSTILE
    seen: set[str] = dataclasses.field(default_factory=set)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    """Replace the input of every printing function in report/, and of what shows documents, with hostile text."""
    found = Reports()

    def hostile(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            found.seen.add(name)
            worst = [
                argument if isinstance(argument, Path) else poisoned(argument, found.behind) for argument in arguments
            ]
            try:
                return function(*worst, **named)
            except (
                KeyError,
                ValueError,
                AttributeError,
                OSError,
                LumiimgError,
            ) as error:  # looked up by a name that it had
                found.failed[name] = repr(error)
                return function(*arguments, **named)

        return call

    for module in pkgutil.iter_modules(lumiimg.cli.__path__, "lumiimg.cli."):
        loaded = importlib.import_module(module.name)
        for name in ("show", "show_items"):
            if getattr(loaded, name, None) is getattr(shown_text, name):
                monkeypatch.setattr(loaded, name, hostile(f"{loaded.__name__}.{name}", getattr(shown_text, name)))
    return found


@pytest.fixture
def world(tmp_path: Path, make_layer: MakeLayer, clean_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files for all commands that do not need an engine."""
    del clean_home
    monkeypatch.setenv("LUMIIMG_CACHE", str(tmp_path / "cache"))
    fabric_builder.image(tmp_path / "image")
    with open_image(fabric_builder.host(tmp_path / "host")) as opened:
        snapshot = scan_host({}, root=opened.root)
    write_snapshot(snapshot, tmp_path / "host.json")
    write_snapshot(dataclasses.replace(snapshot, kernel="6.9", devices=()), tmp_path / "old.json")
    (tmp_path / "job.log").write_text(LOG)
    (tmp_path / "Dockerfile").write_text("FROM rocm/pytorch:latest\nRUN true\nENV A=b\n")
    make_layer("a", BASE)
    make_layer("b", LAYER + '[arguments.FLAGS]\ndefault = "x"\nhelp = "flags"\n')
    return tmp_path


COMMANDS = [
    ["list"],
    ["show", "aws-ofi-nccl"],
    ["show", "lumi"],
    ["show", "lumi-vllm"],
    ["explain", "--base", "rocm-6.2.4", "--add", "sglang", "--site", "lumi"],
    ["explain", "--base", "rocm-6.4.4", "--add", "vllm", "--site", "lumi", "--verbose"],
    ["build", "--base", "a", "--add", "b", "--layers", "{}/layers", "--dry-run"],
    ["build", "--base", "a", "--add", "b", "--layers", "{}/layers", "--definitions", "{}/defs"],
    ["lock", "--base", "{}/image", "--add", "b", "--layers", "{}/layers", "-o", "{}/x.lock"],
    ["log", "{}/job.log"],
    ["log", "{}/job.log", "--verbose"],
    ["log", "{}/job.log", "--image", "{}/image"],
    ["ldd", "{}/image", "--all", "--verbose"],
    ["ldd", "{}/image", "/usr/lib64/librccl-net.so"],
    ["check", "{}/image", "--level", "static", "--verbose"],
    ["check", "{}/image", "--level", "static", "--host", "{}/host.json"],
    ["explain", "{}/image", "--host", "{}/host.json", "--verbose"],
    ["bind", "{}/image", "--host", "{}/host.json"],
    ["drift", "{}/old.json", "{}/host.json", "--verbose", "--image", "{}/image"],
    ["job", "{}/image", "--site", "lumi", "-o", "{}/job.sh", "--", "python", "x.py"],
    ["module", "{}/image", "-o", "{}/modules", "--host", "{}/host.json"],
    ["draft", "{}/Dockerfile"],
    ["cache", "ls"],
    ["cache", "verify"],
    ["host", "scan", "-o", "{}/scan.json"],
]


def command(words: list[str], world: Path, *, as_json: bool) -> list[str]:
    """Return one of COMMANDS with the files of the tests."""
    argv = [word.format(world) for word in words]
    if as_json:
        argv.insert(argv.index("--") if "--" in argv else len(argv), "--json")
    return argv


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.threat
def test_every_report_keeps_hostile_text_on_its_line(
    reports: Reports, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    # hostile text also replaces words of closed sets, so no output here matches its schema
    monkeypatch.setattr("tests.shared.validation.validated", lambda text, _: json.loads(text))
    bad = []
    for words in COMMANDS if EVERYTHING else COMMANDS[as_json::2]:
        argv = command(words, world, as_json=as_json)
        code = main(argv)
        out, err = capsys.readouterr()
        assert code in {0, 1, 3}, (argv, code, err, reports.failed)
        for stream, text in (("out", out), ("err", err)):
            if OBEYED.search(text) or any(line.startswith(FORGED) for line in text.splitlines()):
                lines = [line for line in text.split("\n") if OBEYED.search(line) or line.startswith(FORGED)]
                bad.append((" ".join(words), stream, lines[:3]))
        if as_json and out.startswith("{"):
            json.loads(out)
    if bad:
        pytest.fail("\n".join(f"{command} [{stream}]: {lines!r}" for command, stream, lines in bad), pytrace=False)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.threat
def test_no_report_has_a_secret_whatever_text_of_it_holds_one(
    reports: Reports, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    monkeypatch.setattr("tests.shared.validation.validated", lambda text, _: json.loads(text))
    builtins = json_output._builtins

    def poisoned_text(value: object, keys: json_output.Keys | None, name: str, plain: Callable[[str], str]) -> object:
        """Append a secret to each text in JSON."""
        return builtins(f"{value}{reports.behind}" if isinstance(value, str) else value, keys, name, plain)

    monkeypatch.setattr(json_output, "_builtins", poisoned_text)
    shown = 0
    for position, words in enumerate(COMMANDS):
        if not EVERYTHING and position % 2 == as_json:
            continue
        reports.behind = " " + " ".join(SECRETS[position :: (2 if EVERYTHING else 6) * len(COMMANDS)])
        argv = command(words, world, as_json=as_json)
        main(argv)
        output = re.sub(r'"script": ".*"', "", "".join(capsys.readouterr()))  # of a job: it says what its user said
        shown += output.count(HIDDEN)
        assert not leaked(output), (argv, [line for line in output.splitlines() if leaked(line)][:2])
    assert shown > 50
