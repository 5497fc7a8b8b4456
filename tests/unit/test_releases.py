"""Releases without a row: read from a package index on loopback with real metadata, derived, or not found."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from lumiimg.catalog import folders
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.folders import shipped_layers
from lumiimg.catalog.layers import Layer, read_layer
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode
from lumiimg.fetch.http import Http
from lumiimg.resolve import unlisted
from lumiimg.resolve.unlisted import _distance, read_pages, read_releases
from tests.fuzz.locks import signed
from tests.shared.programs import EVERYTHING, sampled
from tests.shared.release_index import HTML, ReleaseIndex, serving
from tests.shared.world import JSON, World, serve

if TYPE_CHECKING:
    from lumiimg.catalog.releases import Release

TODAY = dt.date(2026, 11, 24)
VLLM = {
    # torch and ROCm of CMakeLists.txt and requirements/build/rocm.txt of each sdist
    "0.20.0": ("torch==2.11.*", "rocm>=7.1"),
    "0.25.1": ("torch==2.11.*", "rocm>=7.1"),
    "0.27.0": ("torch==2.13.*", "rocm>=7.1"),
    "0.29.0": ("torch==2.13.*", "rocm>=7.14"),
    "0.33.0": ("torch==2.14.*", "rocm>=7.14"),
}
OLDER = {"jax": "0.9.1", "pytorch": "2.11.0", "vllm": "0.18.0"}
pytestmark = pytest.mark.usefixtures("clean_home", "older_rows", "one_day")


@pytest.fixture
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed date, in case tests run past midnight."""
    monkeypatch.setattr(unlisted, "today", lambda: TODAY)


@pytest.fixture(scope="module")
def older_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped layers without rows for the releases in the index of these tests, which are about missing rows."""
    folder = tmp_path_factory.mktemp("older")
    for layer in (file.parent for file in shipped_layers().glob("*/layer.toml")):
        if (newest := OLDER.get(layer.name)) is None:
            (folder / layer.name).symlink_to(layer)
            continue
        shutil.copytree(layer, folder / layer.name)
        path = folder / layer.name / "layer.toml"
        head, *rows = re.split(r"(?m)^(?=\[\[release\]\]$)", path.read_text("utf-8"))
        at = next(number for number, row in enumerate(rows) if f'version = "{newest}"' in row)
        path.write_text(head + "".join(rows[at:]), "utf-8")
    return folder


@pytest.fixture(scope="module")
def read_once() -> Callable[[Path], Layer]:
    return cache(read_layer)


@pytest.fixture
def older_rows(older_layers: Path, read_once: Callable[[Path], Layer], monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> Layer:
        return read_once(folder) if folder.parent == older_layers else read_layer(folder)

    monkeypatch.setattr(folders, "shipped_layers", lambda: older_layers)
    monkeypatch.setattr("lumiimg.catalog.catalogue.read_layer", read)


@pytest.fixture
def index() -> Iterator[ReleaseIndex]:
    with serving(ReleaseIndex()) as found:
        yield found


def explained(
    capsys: pytest.CaptureFixture[str], request: str, index: ReleaseIndex | None, *more: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and output for a request without a machine; without an index, there is no server."""
    base, *add = request.split()
    mirror = index.url if index else "http://127.0.0.1:1/simple"
    words = ["explain", "--base", base, *(word for name in add for word in ("--add", name))]
    code = main([*words, "--site", "generic", "--mirror", f"pypi={mirror}", "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def doubt_of(answer: dict[str, Any], layer: str) -> str:
    found = [rule for rule in answer["rules"] if re.fullmatch(rf"{layer} [0-9.]+", rule["have"])]
    return str(next((rule["because"] for rule in found if rule["outcome"] != "ok"), ""))


def test_every_real_release_of_vllm_is_read_and_is_a_doubt_or_refused_if_made_for_another_torch_or_rocm(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [file["file"] for file in index.files]
    versions = [name.removeprefix("vllm-").removesuffix(".tar.gz") for name in names if name.startswith("vllm")]
    assert len(versions) == 19
    for number, version in enumerate(versions if EVERYTHING else VLLM):
        index.is_html = number % 2 == 1
        code, answer = explained(capsys, f"rocm-7.2.4 vllm=={version}", index)
        against = [rule for rule in answer["rules"] if rule["outcome"] == "refused"]
        if version in VLLM:
            assert bool(against) is (VLLM[version] != ("torch==2.11.*", "rocm>=7.1")), version  # what the base can have
        if against:
            assert code == ExitCode.NO
            assert f"vllm {version} is made for " in against[0]["because"]
            continue
        assert (code, answer["layers"][-1]) == (0, {"name": "vllm", "version": version, "status": "read"})
        doubt = doubt_of(answer, "vllm")
        assert f"read from the package index on {TODAY}" in doubt
        assert "never tried" in doubt


def rows_of(layer: str, version: str, index: ReleaseIndex) -> tuple[Release, ...]:
    """Return the rows that are read for a version from an index."""
    entry, web = open_catalogue({}).layer(layer), Http()
    assert entry.unlisted is not None
    return read_releases(entry, Version(version), read_pages(entry.unlisted, index.url, web), web)


def test_a_jax_is_read_from_the_metadata_beside_its_plugins(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    for index.is_html in (False, True):
        code, answer = explained(capsys, "rocm-7.2.4 jax==0.12.0", index)
        assert (code, answer["rules"][0]["need"]) == (ExitCode.NO, "rocm==7.14.* or rocm==10.*")
        assert answer["rules"][0]["have"] == "rocm 7.2.4"
        rows = rows_of("jax", "0.12.0", index)
        assert [str(row.requires[0]) for row in rows] == ["rocm==7.*", "rocm==10.*"]
        assert [*map(str, rows[0].requires[1:])] == ["python>=3.12,<3.16", "glibc>=2.27"]
        names = ("jax", "jaxlib", "jax-rocm7-plugin", "jax-rocm7-pjrt")
        assert rows[0].wheels == tuple(f"{name}==0.12.0" for name in names)
        assert rows[0].date == (None if index.is_html else dt.date(2026, 10, 19))
    assert not any(path.endswith(".whl") for path in index.asked), "no wheel is fetched for it"
    # a plugin that does not name its ROCm, and a later build of a release
    _, answer = explained(capsys, "rocm-7.2.4 jax==0.11.0", index)
    assert "it does not say which rocm it is made for" in doubt_of(answer, "jax")
    _, answer = explained(capsys, "rocm-7.2.4 jax==0.9.2", index)
    assert "made for" not in doubt_of(answer, "jax")
    wheels = rows_of("jax", "0.9.2", index)[0].wheels
    assert "jax-rocm7-plugin==0.9.2.post1" in wheels  # the newest build
    assert "jax-rocm7-pjrt==0.9.2" in wheels  # the one that this build requires
    index.metadata = False
    _, answer = explained(capsys, "rocm-7.2.4 jax==0.12.0", index)
    assert "its index has no METADATA for its wheel" in doubt_of(answer, "jax")


def test_a_vllm_takes_the_triton_that_its_own_source_names_and_another_is_a_doubt(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "it does not say which TRITON it needs: the layer's default is 3.5.0"
    assert message in doubt_of(explained(capsys, "rocm-7.2.4 vllm==0.25.1", index)[1], "vllm")
    cmake = 'set(DEFAULT_TRITON_KERNELS_TAG "v3.6.0")\n'
    next(file for file in index.files if "vllm-0.25.1." in file["file"])["texts"][
        "cmake/external_projects/triton_kernels.cmake"
    ] = cmake
    assert message not in doubt_of(explained(capsys, "rocm-7.2.4 vllm==0.25.1", index)[1], "vllm")
    words = ["build", "--base", "rocm-7.2.4", "--add", "vllm==0.25.1", "--site", "generic", "--dry-run", "--verbose"]
    assert main([*words, "--mirror", f"pypi={index.url}"]) == 0
    assert "https://github.com/triton-lang/triton/archive/v3.6.0.tar.gz" in capsys.readouterr().out


def test_without_a_network_it_is_derived_from_the_nearest_row_and_that_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for more in ((), ("--offline",)):
        code, answer = explained(capsys, "rocm-7.2.4 vllm==0.33.0", None, *more)
        assert code == 0
        assert answer["layers"][-1] == {"name": "vllm", "version": "0.33.0", "status": "derived"}
        doubt = doubt_of(answer, "vllm")
        assert "what it requires could not be read" in doubt
        assert "it is planned like 0.12.0" in doubt
        assert "made for rocm==6.4.*, and the image has rocm 7.2.4" in doubt
        assert answer["torch"] == "2.11.0+rocm7.2"  # the requirements of every vLLM also apply to this one
    # the Python of a newer row is not required
    code, answer = explained(capsys, "rocm-6.2.4 pytorch transformers==5.20.2", None)
    assert (code, answer["layers"][-1]["status"]) == (0, "derived")
    assert "made for python>=3.11, and the image has python 3.10" in doubt_of(answer, "transformers")
    assert explained(capsys, "rocm-6.2.4 pytorch transformers==5.99", None)[0] == 1


def test_the_nearest_version_is_the_nearest_by_number() -> None:
    versions = [*map(Version, ("0.0.1", "0.17.0", "0.17.1", "0.18.0rc1", "0.19.0", "0.19.2", "0.33.0", "2.0", "3.1"))]
    for asked, near in (
        ("99", ["3.1", "2.0", "0.33.0"]),
        ("1.0", ["0.33.0", "0.19.2", "0.19.0"]),
        ("0.18.0", ["0.18.0rc1", "0.17.1", "0.17.0"]),
        ("0.19.1", ["0.19.0", "0.19.2", "0.18.0rc1"]),
        ("0.0.2", ["0.0.1", "0.17.0", "0.17.1"]),
    ):
        distances = {_distance(one, Version(asked)): f"{one}" for one in versions}
        assert [distances[far] for far in sorted(distances)[:3]] == near, asked


def test_a_range_passes_over_what_was_withdrawn_and_a_version_that_is_named_has_it_as_a_doubt(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.yanked["vllm-0.25.1.tar.gz"] = "wrong kernels"
    _, answer = explained(capsys, "rocm-7.2.4 vllm>=0.23,<0.26", index)
    assert answer["layers"][-1]["version"] == "0.25.0"
    _, answer = explained(capsys, "rocm-7.2.4 vllm==0.25.1", index)
    assert "its project has withdrawn it (yanked): wrong kernels" in doubt_of(answer, "vllm")


def test_an_index_that_answers_nonsense_is_a_reason_in_one_line_and_the_tables_still_work(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.broken["vllm-0.33.0.tar.gz"] = b"<html>"
    for name, version, page, expected in (
        ("vllm", "0.33.0", None, "is not a readable archive"),
        ("vllm", "0.33.0", (JSON, b"<html>log in</html>"), "is not a page of a package index"),
        ("vllm", "0.33.0", (HTML, b"<html><a href='/login'>log in</a></html>"), "is not a page of a package index"),
        ("vllm", "0.33.0", (JSON, b" " * (100 << 20)), "is larger than"),
    ):
        index.pages |= {name: page} if page else {}
        code, answer = explained(capsys, f"rocm-7.2.4 {name}=={version}", index)
        assert (code, answer["layers"][-1]["status"]) == (0, "derived"), expected
        assert expected in doubt_of(answer, name)
        assert "\n" not in doubt_of(answer, name), expected


def locked_jax(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[str]]:
    """Lock a JAX that was read; return the lock, and the options of its plan with a cache without the index's data."""
    pins = {"jax": "0.12.0", "jaxlib": "0.12.0", "jax-rocm7-plugin": "0.12.0", "jax-rocm7-pjrt": "0.12.0"}
    path = home / "jax.lock"
    read = rows_of("jax", "0.12.0", index)
    monkeypatch.setattr("lumiimg.resolve.unlisted.read_releases", lambda *_: read)  # no page of the world says its ROCm
    with serve(World(wheels={name: {version: ()} for name, version in pins.items()})) as world:
        words = ["--base", "rocm-7.14.0", "--add", "jax==0.12.0", "--site", "generic", "-o", str(path), "--quiet"]
        assert main(["lock", *words, *world.mirrors]) == 0
    shutil.rmtree(home / ".cache")
    capsys.readouterr()
    return path, [
        "build",
        "--locked",
        "--lock",
        str(path),
        "--trust-lock",
        "--dry-run",
        "-o",
        f"{home}/x.sif",
        *world.mirrors,
    ]


def test_a_lock_holds_what_was_read_and_is_read_back_without_the_cache_and_the_index(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str], clean_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = locked_jax(index, capsys, clean_home, monkeypatch)
    assert main([*plan, "--json"]) == 0
    layer = json.loads(capsys.readouterr().out)["plan"]["layers"][-1]
    assert (layer["name"], layer["arguments"]["VERSION"], layer["status"]) == ("jax", "0.12.0", "read")
    body = path.read_text()
    (row,) = [one["row"] for one in tomllib.loads(body)["layer"]]
    assert (row["read"], row["expects"], row["wheels"][2]) == (TODAY, ["rocm==7.14.*"], "jax-rocm7-plugin==0.12.0")
    # a row that was not read is refused
    for old, new, expected in (
        ('wheels = [\n    "jax==0.12.0",', 'wheels = [\n    "jax",', "a distribution in one version, such as"),
        ("wheels = [", 'wheels = [\n    "egg==1.0",', "the Python package egg==1.0 of jax is missing"),
    ):
        assert old in body
        path.write_bytes(signed(body.replace(old, new, 1).encode()))
        assert main(plan) == 2
        assert expected in capsys.readouterr().err
    # an index that only the row of a lock names does not belong to the catalogue
    body = re.sub(r'http://[^"]*/jax-0', "https://evil.test/jax-0", body)
    body = body.replace('source = "jax_', 'indexes = ["https://evil.test/simple"]\nsource = "jax_', 1)
    path.write_bytes(signed(body.encode()))
    assert main([word for word in plan if word != "--trust-lock"]) == 2
    expected = capsys.readouterr().err
    assert "the release jax 0.12.0, which is not in the catalogue" in expected
    assert "Python package jax 0.12.0 of jax from https://evil.test/jax-0" in expected
    assert "jaxlib" not in expected


def of_torch(name: str, version: str, *requires: str, uploaded: str = "2026-10-01") -> dict[str, Any]:
    """Return a stand-in for a wheel of PyTorch's index."""
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    return {
        "file": f"{name}-{version}-cp312-cp312-manylinux_2_28_x86_64.whl",
        "requires-python": ">=3.10",
        "uploaded": dt.date.fromisoformat(uploaded),
        "texts": {"METADATA": "\n".join(lines) + "\n"},
    }


TORCH = [
    *(
        of_torch("torch", f"{version}+rocm{rocm}", f'triton-rocm=={triton}; platform_system == "Linux"', "numpy")
        for version, rocm, triton in (
            ("2.12.0", "7.2", "3.7.1"),
            ("2.14.0", "7.2", "3.8.0"),
            ("2.14.0", "7.14", "3.8.0"),
        )
    ),
    of_torch("torch", "2.14.0+cu130"),
    of_torch("torchvision", "0.27.0+rocm7.2", "torch==2.12.0"),
    of_torch("torchvision", "0.29.0+rocm7.2", "torch==2.14.0+rocm7.2"),
    of_torch("torchvision", "0.29.0+rocm7.14", "torch==2.14.0"),
    of_torch("torchaudio", "2.11.0+rocm7.2", "torch"),
]


def test_a_torch_is_read_from_the_local_versions_of_its_index_with_what_belongs_to_it(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    index.files += TORCH
    index.is_html = True
    mirror = ("--mirror", f"https://download.pytorch.org/whl={index.url}")
    code, answer = explained(capsys, "rocm-7.2.4 pytorch==2.12.0", index, *mirror)
    assert (code, answer["torch"]) == (0, "2.12.0+rocm7.2")
    (row,) = rows_of("pytorch", "2.12.0", index)
    assert row.wheels == (
        "torch==2.12.0+rocm7.2",
        "torchvision==0.27.0+rocm7.2",
        "torchaudio==2.11.0+rocm7.2",
        "triton-rocm==3.7.1",
    )
    assert [*map(str, row.requires)] == ["rocm==7.2.*", "python>=3.12,<3.13", "glibc>=2.28"]
    assert row.has == {"torch": "2.12.0+rocm7.2", "torch-rocm": "7.2", "rccl": "2.27.7"}  # that of the row for 7.2
    assert row.doubts == ("no torchaudio requires exactly this torch, so the newest is used",)
    assert explained(capsys, "rocm-6.4.4 pytorch==2.12.0", index, *mirror)[0] == 1
    # a vLLM gets the torch that it was built for
    index.is_html = False
    assert explained(capsys, "rocm-7.2.4 vllm==0.33.0", index, *mirror)[0] == ExitCode.NO  # made for ROCm 7.14
    _, answer = explained(capsys, "rocm-7.14.0 vllm==0.33.0", index, *mirror)
    assert answer["torch"] == "2.14.0+rocm7.14"
    assert [layer["status"] for layer in answer["layers"]] == ["read", "read"]
    assert "made for" not in doubt_of(answer, "vllm")
    assert explained(capsys, "rocm-7.2.4 pytorch", index, *mirror)[1]["torch"] == "2.11.0+rocm7.2"


def test_what_is_proposed_in_place_of_a_version_that_is_not_there_works(
    index: ReleaseIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pasted as it is, it gives the layers that were judged; the refusal names the nearest version in the index."""
    asked_for = ["vllm==0.99", "vllm==0.33.0.1", "vllm==0.25.7", "jax==0.9.99", "vllm>=1.0"]
    for base, asked in sampled(itertools.product(["rocm-7.2.4", "rocm-6.2.4", "rocm-6.4.4"], asked_for), 6):
        code, answer = explained(capsys, f"{base} {asked}", index)
        assert (code, answer["nearest"] is None) == (1, False), (base, asked)
        proposed = answer["nearest"]
        refusal = next(rule for rule in answer["rules"] if "the package index has no" in rule["because"])
        near = {"vllm==0.25.7": "vllm 0.25.1, ", "jax==0.9.99": "jax 0.9.2, "}.get(asked, "")
        assert refusal["have"].startswith(near), asked
        name = asked.partition("=")[0].rstrip(">")
        assert [text for text in proposed["add"] if text.startswith(name)], proposed
        assert explained(capsys, " ".join([proposed["base"], *proposed["add"]]), index)[0] == 0
