"""Which Python distributions an image gets: resolved by uv, from indexes on loopback that may offer anything."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packaging.tags
import pytest

from lumiimg.core.errors import BadInputError, FailedError, LumiimgError, MissingHereError
from lumiimg.fetch.http import Http, Response
from lumiimg.fetch.mirrors import Mirrors, general_index
from lumiimg.resolve import python_project, uv
from lumiimg.resolve.python_project import LayerRequirements, resolve_wheels
from lumiimg.resolve.python_target import PythonTarget
from lumiimg.resolve.source_archive import read_requirements
from tests.shared.loopback import Reply, listening
from tests.shared.tls import ANOTHER, CERTIFICATE, certified
from tests.shared.world import World, archive_of, serve, sources_at

if TYPE_CHECKING:
    from lumiimg.resolve.lock import LockedSource

UBUNTU = PythonTarget((3, 12), (2, 39))
DIGEST = "a" * 64
pytestmark = pytest.mark.usefixtures("impatient")


# --- the target


def test_the_tags_of_this_python_are_those_that_packaging_finds() -> None:
    libc, version = platform.libc_ver()
    if (libc, sys.implementation.name, platform.machine()) != ("glibc", "cpython", "x86_64"):
        pytest.skip("this Python is not a CPython on glibc and x86_64")
    major, minor = map(int, version.split("."))
    target = PythonTarget((sys.version_info[0], sys.version_info[1]), (major, minor))
    theirs = list(packaging.tags.sys_tags())
    ours = list(target.tags())
    assert set(ours) == set(theirs)

    def without_plain(tags: Sequence[packaging.tags.Tag]) -> list[packaging.tags.Tag]:
        return [tag for tag in tags if not tag.platform.startswith("linux_")]

    assert without_plain(ours) == without_plain(theirs), "but for linux_x86_64, in the same order"


def test_what_is_no_cpython_3_on_glibc_2_is_no_target() -> None:
    for version, glibc in ((2, 7), (2, 17)), ((3, 12), (1, 2)):
        with pytest.raises(BadInputError, match="CPython 3"):
            PythonTarget(version, glibc)
    for there, known in ((17, 17), (27, 17), (30, 28), (35, 35), (39, 39), (44, 40)):  # the newest that uv knows
        assert PythonTarget((3, 12), (2, there)).platform == f"x86_64-manylinux_2_{known}"
    with pytest.raises(BadInputError, match=r"for glibc 2\.17 or newer, not for Python 3\.12 with glibc 2\.12"):
        _ = PythonTarget((3, 12), (2, 12)).platform


# --- which wheels


@pytest.fixture
def world() -> Iterator[World]:
    world = World(
        of_layers={"snake": {"2.0+rocm6.4": ("egg>=1", "shell; python_version < '3'")}},
        wheels={
            "egg": {"1.0": (), "1.5": ("yolk<3",), "2.0": ("yolk>=2",)},
            "yolk": {"1.0": (), "2.5": (), "3.0": ()},
            "snake": {"9.9": (), "2.0": ()},
            "ham": {"1.0": ("egg<2",)},
        },
    )
    with serve(world):
        yield world


SNAKE: dict[str, Any] = {"name": "snake", "version": "2.0", "pins": ("snake==2.0+rocm6.4",), "indexes": ("/whl",)}


def chosen(
    world: World,
    tmp_path: Path,
    *layers: Mapping[str, Any],
    until: dt.date | None = None,
    held: Mapping[str, str] | None = None,
    lines: list[str] | None = None,
) -> dict[str, dict[str, str]]:
    """Return the chosen versions by layer."""
    wants = [
        LayerRequirements(**{**layer, "indexes": tuple(f"{world.url}{index}" for index in layer.get("indexes", ()))})
        for layer in layers
    ]
    sources = sources_at(f"{world.url}/pypi/simple", tmp_path, (lines if lines is not None else []).append)
    found = resolve_wheels(wants, UBUNTU, sources, until=until, preferred=held or {})
    return {layer: {wheel.name: wheel.version for wheel in wheels} for layer, wheels in found.by_layer.items()}


def refusal(world: World, tmp_path: Path, *layers: Mapping[str, Any], until: dt.date | None = None) -> str:
    with pytest.raises(LumiimgError) as caught:
        chosen(world, tmp_path, *layers, until=until)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1200
    return message


@pytest.mark.threat
def test_what_a_layer_pins_comes_from_the_first_of_its_indexes_that_has_it(world: World, tmp_path: Path) -> None:
    world.of_layers["egg"] = {"7.0": ()}
    wants = {**SNAKE, "indexes": ("/whl", "/pypi/simple")}
    assert chosen(world, tmp_path, wants)["snake"] == {"snake": "2.0+rocm6.4", "egg": "2.0", "yolk": "3.0"}
    assert not any("/pypi/simple/snake" in path for path in world.asked)
    assert not any("/whl/egg" in path for path in world.asked), (
        "what is not pinned is looked for in the general one only"
    )
    second = {**SNAKE, "pins": ("ham==1.0",), "indexes": ("/whl", "/pypi/simple")}
    assert chosen(world, tmp_path, second)["snake"]["ham"] == "1.0"
    assert "no package index has nothing" in refusal(world, tmp_path, {**SNAKE, "pins": ("nothing==1",)})


@pytest.mark.threat
def test_an_index_that_forbids_is_an_error_but_that_of_pytorch_means_that_it_has_none(world: World) -> None:
    class Forbidding(Http):
        def get(self, url: str, *, allow: Any = (), **_: Any) -> Response:
            if "pytorch" in url and 403 not in allow:
                raise FailedError("the server answers 403", where=url)
            return Response(url, 403 if "pytorch" in url else 200, {}, b"")

    pypi = f"{world.url}/pypi/simple"
    assert python_project._index_of("egg", ["https://download.pytorch.org/whl/rocm6.4", pypi], Forbidding()) == pypi
    with pytest.raises(FailedError, match="answers 403"):
        python_project._index_of("egg", ["https://download.notpytorch.org/whl/rocm6.4", pypi], Forbidding())


def test_what_is_there_is_held_however_its_version_is_written(world: World, tmp_path: Path) -> None:
    wants = {"name": "a", "version": "2025.01-beta", "requires": ("egg",), "has": {"Yolk": "2.5-1", "ham": "unknown"}}
    assert chosen(world, tmp_path, wants) == {"a": {"egg": "2.0"}}, "it requires yolk>=2, and 2.5.post1 is there"


# --- dates


def test_a_newer_layer_leaves_an_older_one_what_it_came_out_with_where_that_goes_together(
    world: World, tmp_path: Path
) -> None:
    """vLLM 0.10.1 sets no bound for transformers, and does not run with version 5, released a year later."""
    world.uploaded = {"egg 2.0": "2026-03-02T00:00:00Z", "yolk 3.0": "2026-06-01T00:00:00Z"}
    days = dt.date(2026, 3, 1), dt.date(2026, 9, 1)
    old = {"name": "old", "version": "1", "requires": ("egg",), "date": days[0]}
    for requires, found in (
        (("yolk",), {"old": {"egg": "1.5", "yolk": "2.5"}, "new": {}}),
        (("egg>=2", "yolk"), {"old": {"egg": "2.0", "yolk": "2.5"}, "new": {}}),
        (("ham",), {"old": {"egg": "1.5", "yolk": "2.5"}, "new": {"ham": "1.0"}}),
    ):
        new = {"name": "new", "version": "1", "requires": requires, "date": days[1]}
        assert chosen(world, tmp_path, old, new, until=days[1]) == found
    undated = {**old, "date": None}
    assert chosen(world, tmp_path, undated, until=days[1])["old"] == {"egg": "2.0", "yolk": "3.0"}


def test_an_index_that_is_down_as_of_an_earlier_day_is_no_other_lock(world: World, tmp_path: Path) -> None:
    world.down, world.uploaded = ("egg",), {"egg 1.0": "2026-01-01T00:00:00Z"}
    old = {"name": "old", "version": "1", "requires": ("egg",), "date": dt.date(2026, 3, 1)}
    assert "egg" in refusal(world, tmp_path, old, until=dt.date(2026, 9, 1))


def test_an_index_without_times_of_upload_is_used_without_the_date_and_that_is_reported(
    world: World, tmp_path: Path
) -> None:
    lines: list[str] = []
    assert chosen(world, tmp_path, SNAKE, until=dt.date(2020, 1, 1), lines=lines)["snake"]["egg"] == "2.0"
    assert lines == ["the index gives no upload times, so the date 2020-01-01 has no effect"]


# --- CUDA


def test_what_is_for_cuda_is_refused_with_who_requires_it_unless_it_is_left_out(world: World, tmp_path: Path) -> None:
    names = ("nvidia-cublas-cu12", "cuda-python", "cupy-cuda12x")
    world.wheels |= {"ray": {"1.0": names}, **{name: {"1.0": ()} for name in names}}
    user: dict[str, Any] = {"name": "vllm", "version": "1", "requires": ("ray",)}
    for name in names:
        others = tuple(one for one in names if one != name)
        with pytest.raises(FailedError, match=f"the CUDA package {name} is required by ray"):
            chosen(world, tmp_path, {**user, "without": others})
    assert chosen(world, tmp_path, {**user, "without": names})["vllm"] == {"ray": "1.0"}


# --- indexes that offer what they should not


def test_what_was_withdrawn_is_taken_where_it_is_pinned_and_named_where_it_is_required(
    world: World, tmp_path: Path
) -> None:
    world.yanked = ("egg 2.0",)
    assert chosen(world, tmp_path, SNAKE)["snake"]["egg"] == "1.5"
    assert chosen(world, tmp_path, {"name": "a", "version": "1", "pins": ("egg==2.0",)})["a"]["egg"] == "2.0"
    message = refusal(world, tmp_path, {"name": "a", "version": "1", "requires": ("egg>1.5",)})
    assert "egg>1.5" in message
    assert "yanked" in message
    world.down = ("yolk",)
    message = refusal(world, tmp_path / "new", SNAKE)
    assert f"{world.url}/pypi/simple/yolk/" in message
    assert "500" in message


@pytest.mark.threat
def test_a_wheel_whose_metadata_is_of_another_is_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.shared.world.metadata_of", lambda *_: "Metadata-Version: 2.1\nName: yolk\nVersion: 2.0\n"
    )
    message = refusal(world, tmp_path, {"name": "a", "version": "1", "pins": ("egg==2.0",)})
    assert "Package metadata name `yolk` does not match given name `egg`" in message


def chosen_wheel(*files: str, urls: Sequence[str] = ()) -> LockedSource:
    """Return the wheel that is chosen from uv's output about egg 1.0."""
    wheels = (uv.LockedWheel(url, {"sha256": DIGEST}) for url in urls or [f"https://h.test/{file}" for file in files])
    return python_project._wheel(uv.LockedPackage("egg", "1.0", tuple(wheels)), UBUNTU)


@pytest.mark.threat
def test_a_link_with_a_login_or_a_key_gets_into_no_lock() -> None:
    file = "egg-1.0-py3-none-any.whl"
    for url in (f"http://me:word@127.0.0.1/{file}", f"https://h.test/{file}?X-Amz-Signature=abcd"):
        with pytest.raises(BadInputError) as caught:
            chosen_wheel(file, urls=[url])
        assert "word" not in str(caught.value).replace("password", "")
        assert "abcd" not in str(caught.value)


@pytest.mark.threat
def test_a_file_name_that_is_not_a_safe_one_of_this_project_is_passed_over() -> None:
    for file in (
        "egg-1.0-1$(id)-py3-none-any.whl",
        "egg-1.0-1/../x-py3-none-any.whl",
        "yolk-1.0-py3-none-any.whl",
        "egg-2.0-py3-none-any.whl",
        f"egg-1.0-{'.'.join(['py3'] * 30)}-{'.'.join(['none'] * 30)}-any.whl",
        "egg-1.0-cp39-cp39-manylinux_2_28_x86_64.whl",
    ):
        with pytest.raises(FailedError, match=r"no wheel of egg 1\.0 for Python 3\.12"):
            chosen_wheel(file)


@pytest.mark.threat
def test_an_index_with_tls_does_not_lead_to_a_wheel_without(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_project._Project, "is_plain", False)
    message = refusal(world, tmp_path, {"name": "a", "version": "1", "requires": ("egg",)})
    assert "has a link without TLS, which is not followed: http://127.0.0.1" in message


def test_uv_vouches_for_an_index_by_the_certificate_that_counts_for_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": str(CERTIFICATE), "SSL_CERT_FILE": str(ANOTHER)}
    for name, which in bundles.items():
        monkeypatch.setenv(name, which)
    with serve(World(wheels={"egg": {"1.0": ()}}), certified()) as world:
        pinned = {"name": "a", "version": "1", "pins": ("egg==1.0",)}  # a page that is asked for here, then by uv
        assert chosen(world, tmp_path, pinned) == {"a": {"egg": "1.0"}}
        monkeypatch.setattr(python_project, "_index_of", lambda _, indexes, __: indexes[0])
        for name in bundles:
            monkeypatch.setenv(name, str(ANOTHER))
        message = refusal(world, tmp_path / "again", pinned)
        assert "invalid peer certificate" in message
        assert "try again" not in message
        assert "SSL_CERT_FILE" in message


def test_the_closest_tag_wins_and_then_the_build_number() -> None:
    names = [
        "egg-1.0-py3-none-any.whl",
        "egg-1.0-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "egg-1.0-2-cp312-cp312-manylinux_2_28_x86_64.whl",
        "egg-1.0-9-cp312-cp312-manylinux_2_17_x86_64.whl",
        "egg-1.0-9-cp313-cp313-manylinux_2_28_x86_64.whl",
    ]
    assert (chosen_wheel(*names).file, chosen_wheel(*names).sha256) == (names[2], DIGEST)


@pytest.mark.threat
def test_an_index_that_goes_on_for_ever_ends_with_its_time_or_its_memory(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "_LIMIT_S", 0.0)
    assert "not resolved within 0 s" in refusal(world, tmp_path, {"name": "a", "version": "1", "requires": ("egg",)})
    monkeypatch.undo()
    monkeypatch.setattr(uv, "_MEMORY_KIB", 128 << 10)

    def page() -> Iterator[bytes]:
        while True:
            yield b'<a href="egg-1.0-py3-none-any.whl">egg</a>' * 2000

    with listening(lambda _: Reply(200, page(), {"Content-Type": "text/html"})) as world.url:
        message = refusal(world, tmp_path, {"name": "a", "version": "1", "requires": ("egg",)})
    assert re.match(r"uv crashed with status \d+; it may use 0 GiB of memory; check that the machine or job ", message)


def test_uv_is_the_one_beside_lumiimg_or_on_path_and_none_out_of_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert Path(uv.find_uv({"PATH": "/nowhere"})).name == "uv"
    monkeypatch.setitem(sys.modules, "uv", None)
    planted = tmp_path / "tools/uv-0.13.9/bin"
    planted.mkdir(parents=True)
    (planted / "uv").symlink_to("/bin/true")
    with pytest.raises(MissingHereError, match="pip install uv"):
        uv.find_uv({"PATH": "/nowhere", "LUMIIMG_CACHE": str(tmp_path)})
    (tmp_path / "uv").symlink_to("/bin/true")
    assert uv.find_uv({"PATH": str(tmp_path)}) == str(tmp_path / "uv")


# --- what uv says


def test_what_does_not_go_together_is_reported_in_uvs_words_with_the_layers_by_their_names(
    world: World, tmp_path: Path
) -> None:
    world.uploaded = {"egg 2.0": "2026-03-02T00:00:00Z"}
    old = {"name": "old", "version": "1.5", "requires": ("egg<2",)}
    message = refusal(world, tmp_path, old, {"name": "new", "version": "2", "requires": ("egg>=2",)})
    assert message.startswith("no solution: Because")
    for part in ("layer-old==1.5", "egg<2", "layer-new", "egg>=2"):
        assert part in message
    assert message.endswith("; ask for another release")
    # a date is mentioned only if it excluded something
    message = refusal(
        world, tmp_path, {"name": "a", "version": "1", "requires": ("egg>=2",)}, until=dt.date(2026, 3, 1)
    )
    assert "uploads after 2026-03-01 are excluded: use another date with --exclude-newer" in message
    assert "exclude-newer" not in refusal(world, tmp_path, old, {**SNAKE, "requires": ("egg>=2",)})


# --- requirement files


def read(
    tmp_path: Path, files: dict[str, str], without: Sequence[str] = (), file: str = "requirements/rocm.txt"
) -> tuple[str, ...]:
    archive = tmp_path / "source.tar.gz"
    archive.write_bytes(archive_of(files))
    return read_requirements(archive, [file], without, "the archive")


def test_requirement_files_are_read_with_those_that_they_include(tmp_path: Path) -> None:
    files = {
        "setup.py": "never read",
        "requirements/rocm.txt": "# Common\n-r common.txt\n--requirement=../other/requirements.txt\n\negg>=2 # why\n",
        "requirements/common.txt": "yolk ; python_version < '3.10'\nham[a,b] \\\n  >= 1\n",
        "other/requirements.txt": "egg>=2\n",
    }
    assert read(tmp_path, files) == ('yolk; python_version < "3.10"', "ham[a,b]>=1", "egg>=2")
    assert read(tmp_path, files, ["egg"]) == ('yolk; python_version < "3.10"', "ham[a,b]>=1")


PROJECT = """
[build-system]
requires = ["setuptools>=61"]
[project]
name = "Snake_Oil"
dependencies = ["egg>=2", "yolk; python_version < '3.10'"]
[project.optional-dependencies]
All_HIP = ["snake-oil[hip,all-hip]"]
hip = ["ham==1"]
cuda = ["nvidia-ham @ https://h.test/ham"]
"""


@pytest.mark.threat
def test_what_no_lock_can_hold_is_refused_with_its_file_and_line(tmp_path: Path) -> None:
    rocm, project = "requirements/rocm.txt", "pyproject.toml[cuda]"
    for file, text, expected in (
        (
            rocm,
            "egg\n--extra-index-url https://h.test\n",
            "line 2 of requirements/rocm.txt: the option --extra-index-url is not supported",
        ),
        (rocm, "./egg\n", "line 1 of requirements/rocm.txt: a path or an address is not a valid requirement"),
        (
            rocm,
            "egg @ git+https://h.test/egg\n",
            "egg has an address of its own; `without` of the release",
        ),
        (rocm, "-r gone.txt\n", "has no file requirements/gone.txt"),
        (rocm, f"egg==1 --hash=sha256:{DIGEST}\n", "a hash is not supported"),
        (project, PROJECT, "pyproject.toml: nvidia-ham has an address of its own"),
        (project, "[project]\ndependencies = ['./egg']\n", "pyproject.toml: a path or an address is not"),
        (project, "[project]\n", "pyproject.toml[cuda]: there is no extra cuda"),
        (project, "[project\n", "pyproject.toml[cuda]: is not TOML"),
        (project, "x = " + "[" * 5000, "pyproject.toml[cuda]: is nested too deeply"),
    ):
        with pytest.raises(FailedError) as caught:
            read(tmp_path, {file.partition("[")[0]: text}, file=file)
        assert expected in str(caught.value)
        assert str(caught.value).isprintable(), text
    whole = archive_of({"requirements/x.txt": "x"})
    for data in (b"", b"archive of nothing", b"\x1f\x8b\x08\0\0\0\0\0\0\0\0\0", whole[:-20]):
        (tmp_path / "source.tar.gz").write_bytes(data)
        with pytest.raises(FailedError, match=r"not a readable archive|has no file"):
            read_requirements(tmp_path / "source.tar.gz", [rocm], (), "the archive")


def test_a_pyproject_says_what_it_is_built_with_what_it_requires_and_its_extras(tmp_path: Path) -> None:
    files = {"python/pyproject_other.toml": PROJECT}
    found = ("setuptools>=61", "egg>=2", 'yolk; python_version < "3.10"')
    assert read(tmp_path, files, file="python/pyproject_other.toml") == found
    assert read(tmp_path, files, ["yolk"], "python/pyproject_other.toml[all-hip]") == (*found[:2], "ham==1")


# --- the general index


@pytest.mark.everything
def test_the_general_index_is_the_one_that_is_named_else_pips(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://files.example/simple\n")
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(config)}
    assert general_index(Mirrors({}), plain) == "https://files.example/simple"
    variables = {**plain, "PIP_INDEX_URL": "https://variable.example/very-long/path-of/an-index/simple"}
    assert general_index(Mirrors({}), variables) == variables["PIP_INDEX_URL"]
    assert general_index(Mirrors({"https://files.example": "http://near"}), plain) == "http://near/simple"
    assert general_index(Mirrors({"pypi": "https://named.example/simple"}), variables) == "https://named.example/simple"
    with pytest.raises(BadInputError, match="contains a password") as caught:
        general_index(Mirrors({}), {**plain, "PIP_INDEX_URL": "https://me:hunter2@x.example/simple"})
    assert "hunter2" not in str(caught.value)
