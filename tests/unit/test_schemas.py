"""All `--json` output matches a shipped schema, which names units and is closed: no key is undocumented.

All other tests compare their output with the schemas, too (tests/shared/validation.py). Here each kind is printed at
least once, without an engine: if only an engine could produce a result, the printer gets an artificial one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from lumiimg.build.build_host import CapabilityTrial
from lumiimg.build.builder import BuildResult, BuiltImage
from lumiimg.build.cache import CacheEntry
from lumiimg.build.doctor import DoctorResult
from lumiimg.build.keys import CacheLookup, Difference
from lumiimg.build.progress import BuildStage
from lumiimg.build.venv import WrittenVenv
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.sites import find_site
from lumiimg.check.probe.container import ProbeRun
from lumiimg.check.run.collective import CollectiveOutcome, CollectiveProgram
from lumiimg.cli.image_build import report_built
from lumiimg.cli.main import main
from lumiimg.cluster.nodes.drift import nodes_drift
from lumiimg.core.findings import Advice
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.engine.room import FreeSpace
from lumiimg.host.image_manifest import make_manifest
from lumiimg.host.image_manifest import to_text as manifest_text
from lumiimg.host.import_calls import Counts, ImportBench, ImportCost, ImportSource
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import read_snapshot, write_snapshot
from lumiimg.image import open_image
from lumiimg.image.compare import FileDifference, ImageDiff
from lumiimg.joblog import read_lines
from lumiimg.report.json_output import KINDS, strict_json, write_json
from lumiimg.report.schema import _object, _Shared, schema_of
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock_file import to_record
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from lumiimg.resolve.venv import VenvRecord
from lumiimg.resolve.written_lock import LockChange, WrittenLock
from tests.fuzz.locks import with_digests
from tests.shared import fabric_builder
from tests.shared.build_machine import build_machine
from tests.shared.checks import checked
from tests.shared.node_answers import OTHER_CXI, answer, summed
from tests.shared.sif_builder import made_sif
from tests.shared.validation import fault, validated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.check.pipeline import CheckReport
    from lumiimg.cluster.nodes.drift import NodesDrift
    from lumiimg.cluster.nodes.report import NodesReport
    from lumiimg.host.manifest import BindManifest
    from lumiimg.resolve.lock import Lock

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPEN = {("show-image", "sbom")}
"""Objects that may contain anything, as they come from an image."""
ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())
KEY = "0" * 64


class Place:
    """A folder with the files that the commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = fabric_builder.image(folder / "image")
        with open_image(fabric_builder.host(folder / "node")) as host:
            write_snapshot(scan_host({}, root=host.root), folder / "host.json")
        self.host = folder / "host.json"
        (folder / "plain/etc").mkdir(parents=True)
        (folder / "Dockerfile").write_text("FROM rocm/dev-ubuntu-24.04:6.4.4\nARG A=1\nRUN echo $A\nCMD x\n")
        site = find_site("lumi", {"HOME": str(folder)})
        context = PlanContext(open_catalogue({"HOME": str(folder)}), site=site)
        self.lock: Lock = with_digests(decide(Request("rocm-6.2.4", ("aws-ofi-nccl",)), context).require_lock())
        self.entry = CacheEntry(KEY, folder / "data", KEY, 2, ("torch",), 1.5)
        self.built = BuiltImage(
            image=folder / "x.sif",
            key=KEY,
            size_bytes=2,
            seconds=1.5,
            reused_steps=0,
            steps=1,
            way="sandbox",
            engine=ENGINE,
            is_new=True,
            stages=(BuildStage("a", 1, 1, 2, reused=True),),
        )

    def sif(self) -> Path:
        return made_sif(self.folder / "plain", self.folder / "x.sif", to_record(self.lock))

    def manifest(self) -> BindManifest:
        with open_image(self.image) as image:
            return make_manifest(image, read_snapshot(self.host))

    def nodes(self) -> NodesReport:
        (self.folder / "answers").mkdir(exist_ok=True)
        answer(self.folder / "answers", "a")
        answer(self.folder / "answers", "b", OTHER_CXI)
        report = summed(self.folder / "answers", ["a", "b", "c"])
        return replace(report, collective=self.ran())

    def nodes_drift(self) -> NodesDrift:
        report = self.nodes()
        return nodes_drift(report, replace(report, groups=report.groups[1:]))

    def ran(self) -> CollectiveOutcome:
        log = read_lines("run.out", (FIXTURES / "bandwidth" / "rccl-tests-all-reduce.out").read_bytes().splitlines())
        return CollectiveOutcome(CollectiveProgram.OWN, 2, 16, log.verdict, log.confidence, log.measurements)

    def run(self) -> CheckReport:
        probe = ProbeRun("handshake", -11, timed_out=False, output="", events=({"topic": "init", "provider": "cxi"},))
        report = checked(self.image)
        return replace(report, runs=(probe,), collective=self.ran())


COMMANDS: dict[str, tuple[str, ...]] = {
    "adapt": ("adapt", "PLAIN", "--site", "generic"),
    "bind": ("bind", "IMAGE", "--host", "HOST", "--site", "lumi"),
    "build-plan": ("build", "--recipe", "demo", "--dry-run"),
    "build-definitions": ("build", "--base", "debian-13", "--add", "netprobe", "--definitions", "NEW"),
    "cache": ("cache", "ls"),
    "cache-removed": ("cache", "prune"),
    "cache-verify": ("cache", "verify"),
    "check": ("check", "IMAGE", "--level", "static", "--host", "HOST"),
    "diff-images": ("diff", "IMAGE", "PLAIN"),
    "draft": ("draft", "DOCKERFILE"),
    "drift": ("drift", "HOST", "HOST", "--image", "IMAGE"),
    "explain-bases": ("explain", "--add", "vllm", "--site", "lumi"),
    "explain-image": ("explain", "IMAGE", "--host", "HOST"),
    "explain-request": ("explain", "--base", "rocm-6.2.4", "--add", "sglang", "--site", "lumi"),
    "host": ("host", "scan"),
    "job": ("job", "IMAGE", "--site", "lumi", "--nodes", "2", "--host", "HOST", "--", "true"),
    "ldd": ("ldd", "IMAGE", "--all", "--host", "HOST"),
    "list": ("list",),
    "log": ("log", str(FIXTURES / "nccl" / "rccl-2.13.4-plugin-absent-cut.log")),
    "module": ("module", "IMAGE", "-o", "NEW", "--host", "HOST", "--site", "lumi"),
    "schemas": ("schema",),
    "show-gpu": ("show", "IMAGE", "--gpu", "--site", "lumi"),
    "show-layer": ("show", "vllm"),
    "show-recipe": ("show", "demo"),
    "show-site": ("show", "lumi"),
    "signatures": ("log", "--signatures"),
    "trial-plan": ("trial", "run", "NEW", "IMAGE", "--site", "lumi"),
}
"""Command lines that print a kind as users would."""
_STARTUP = ImportCost("/p", ImportSource.VENV, "/p/t.py", "1.0", "3.11.2", Counts(opens=95), None, "it is set-user-id")


def _trial(folder: Path) -> None:
    with contextlib.redirect_stdout(None):
        main(["trial", "run", str(folder), "--site", "lumi"])
    main(["trial", "report", str(folder), "--json", "--quiet"])


AS_JSON = argparse.Namespace(json=True, quiet=True, manifest=None)
MACHINE = build_machine(ENGINE)
PRINTED: dict[str, Callable[[Place], object]] = {
    "bench-import": lambda _: write_json("bench-import", ImportBench("t", (_STARTUP,))),
    "build": lambda at: report_built(AS_JSON, BuildResult(at.built, at.lock)),
    "check-nodes": lambda at: write_json("check-nodes", at.nodes()),
    "drift-nodes": lambda at: write_json("drift-nodes", at.nodes_drift()),
    "check at level run": lambda at: write_json("check", at.run()),
    "doctor": lambda at: write_json(
        "doctor",
        DoctorResult(
            MACHINE,
            (CapabilityTrial("user namespaces", works=True, said=""),),
            at.folder,
            (FreeSpace(at.folder, 5, in_memory=False),),
            Advice(next="lumiimg build"),
        ),
    ),
    "lock": lambda at: write_json(
        "lock", WrittenLock((LockChange("layer a", None, "1"),), Path("lumiimg.lock"), True, at.lock, ())
    ),
    "bind-manifest": lambda at: sys.stdout.write(manifest_text(at.manifest())),
    "plan": lambda at: sys.stdout.write(to_record(at.lock).decode()),
    "rebuild": lambda at: report_built(
        AS_JSON, BuildResult(at.built, diff=ImageDiff((FileDifference("/x", "content"),)))
    ),
    "show-image": lambda at: main(["show", str(at.sif()), "--json"]),
    "venv": lambda at: write_json(
        "venv", WrittenVenv(VenvRecord("/x.sif", "a1", "3.12", "2.9.1", ("a",), {"a": "1"}), at.folder, None)
    ),
    "trial": lambda at: _trial(at.folder / "trial"),
    "why": lambda at: write_json(
        "why", CacheLookup(("torch",), None, at.entry, (Difference("definition", ("-a", "+b")),))
    ),
}
"""Functions that print a kind from an artificial result; a real one needs an engine, Slurm or a network."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("place"))


def test_each_kind_of_output_is_printed_here() -> None:
    assert not COMMANDS.keys() & PRINTED.keys()
    assert {*COMMANDS, *(document.partition(" ")[0] for document in PRINTED)} == set(KINDS)


@pytest.mark.parametrize("document", [*COMMANDS, *PRINTED])
@pytest.mark.usefixtures("clean_home")
def test_what_is_printed_is_of_its_schema_and_a_key_that_it_does_not_name_is_a_fault(
    document: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = document.partition(" ")[0]
    monkeypatch.chdir(tmp_path)
    if document in PRINTED:
        PRINTED[document](place)
    else:
        named = {"IMAGE": place.image, "HOST": place.host, "PLAIN": place.folder / "plain", "NEW": tmp_path / "new"}
        named |= {"DOCKERFILE": place.folder / "Dockerfile"}
        words = [str(named.get(word, word)) for word in COMMANDS[name]]
        cut = words.index("--") if "--" in words else len(words)
        main([*words[:cut], "--json", *words[cut:]])
    data = validated(capsys.readouterr().out, name)
    assert KINDS[name].number in {data.get("schema"), data.get("format")}
    assert fault({**data, "grown": 1}, name)
    for key in data:
        optional = key not in schema_of(name)["required"]
        assert optional or fault({other: value for other, value in data.items() if other != key}, name)


# -- the schemas themselves


def parts(schema: object, *above: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each part of a schema that describes a value, with the keys that lead to it."""
    if not isinstance(schema, dict):
        return
    yield above, schema
    for group in ("properties", "$defs"):
        for key, inner in schema.get(group, {}).items():
            yield from parts(inner, *above, key)
    for key in ("items", "additionalProperties"):
        yield from parts(schema.get(key), *above, "[]")
    for inner in schema.get("anyOf", ()):
        yield from parts(inner, *above)


def test_each_key_is_described_and_each_object_closed() -> None:
    for name, above, part in ((kind, *part) for kind in KINDS for part in parts(schema_of(kind))):
        if part.get("type") == "object" and (name, *above) not in OPEN:
            assert "additionalProperties" in part, f"{name} {above}: anything may come"
            assert part["additionalProperties"] not in (True, {}), f"{name} {above}: anything may come"
        for key, inner in part.get("properties", {}).items():
            assert inner.get("description", "").endswith((".", ",", "…")), f"{name} {above} {key}: not described"


def test_what_a_kind_says_is_one_sentence_in_the_list_of_schemas() -> None:
    assert [kind.name for kind in KINDS.values() if not re.fullmatch(r"[^\n]+\.", kind.summary)] == []


def test_what_is_of_something_that_may_not_be_there_may_be_null() -> None:
    for kind, key in (("module", "fabric"), ("explain-request", "nearest")):
        assert {"type": "null"} in schema_of(kind)["properties"][key]["anyOf"]


def test_a_key_whose_attribute_has_another_name_is_a_fault() -> None:
    for kind in KINDS.values():
        for name, key in (kind.keys or {}).items():
            for number, part in enumerate(key.path):
                path = (*key.path[:number], f"{part}_of_old", *key.path[number + 1 :])
                with pytest.raises(KeyError, match=f"{part}_of_old"):
                    _object(kind.type, {name: replace(key, path=path)}, _Shared(omits=False))


@pytest.mark.usefixtures("clean_home")
def test_a_schema_that_is_printed_needs_no_other_file(capsys: pytest.CaptureFixture[str]) -> None:
    for name in KINDS:
        assert main(["schema", name]) == 0
        out = capsys.readouterr().out
        assert out.isascii()
        schema = json.loads(out)
        assert schema == schema_of(name)
        Draft202012Validator.check_schema(schema)
        wanted = {part["$ref"].removeprefix("#/$defs/") for _, part in parts(schema) if "$ref" in part}
        assert wanted == schema.get("$defs", {}).keys(), name


# -- the JSON itself


def test_half_a_surrogate_is_spelled_out() -> None:
    text = strict_json({"a\udcff": "\udcff\ud83d", "\ud83d\ude00": "\U0001f600"})
    assert json.loads(text) == {"a\\udcff": "\\udcff\\ud83d", "\\ud83d\\ude00": "\U0001f600"}
    json.loads(text)["a\\udcff"].encode()


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_number_is_printed_that_json_does_not_have(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict_json({"seconds": number})


def test_json_is_whole_in_any_encoding_with_any_name(tmp_path: Path) -> None:
    log = tmp_path / os.fsdecode(b"\xff\xc3\xa9.out")
    log.write_bytes("nöde\u202e:1:1 [0] NCCL INFO Using network Socket\n".encode())
    command = [sys.executable, "-m", "lumiimg", "log", str(log), "--json"]
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    data = validated(done.stdout, "log")
    assert data["proof"][0]["file"] == str(tmp_path / "\\udcff\xe9.out")
