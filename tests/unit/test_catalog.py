"""Catalogue files written by users, images whose names show their content, and the location of the cache."""

from __future__ import annotations

import datetime as dt
import grp
import json
import os
import pwd
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from lumiimg.catalog.catalogue import open_catalogue, read_recipe
from lumiimg.catalog.folders import recipe_folders, shipped_layers, site_folders
from lumiimg.catalog.layers import NAME, read_layer
from lumiimg.catalog.settings import default_cache, read_settings
from lumiimg.catalog.sites import read_site
from lumiimg.cli.main import main
from lumiimg.core.decode import FILE_LIMIT_BYTES, DecodeError
from lumiimg.core.errors import BadInputError, ExitCode
from tests.shared import fabric_builder
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.programs import sampled, unwrapped

BAD = {
    "an option for debootstrap": (
        BASE.replace("[[", 'include = ["--x"]\n[[', 1),
        ["'include[0]' is '--x'; a name of a package is needed"],
    ),
    "a script of debootstrap": (
        BASE.replace("docker", "debootstrap").replace("busybox", "../x"),
        ["from' is '../x'; a name of a suite is needed"],
    ),
    "bad argument name": (LAYER + '[arguments.lower]\ndefault = ""\nhelp = "h"\n', ["'arguments.lower'", "VERSION"]),
    "placeholder of nothing": (
        LAYER + '[environment.set]\nA = "{NOPE}"\n',
        ["contains {NOPE}, which is not an argument of this layer; known: none"],
    ),
    "requirement": (
        LAYER + 'packages = ["egg>=2", "-r /etc/passwd", "--index-url=https://x.test"]\n',
        ["'packages[1]' is '-r /etc/passwd', which is not a valid requirement", "'packages[2]' is '--index-url"],
    ),
    "file outside": (LAYER + 'files = ["../layer.toml"]\n', ["'files[0]' is '../layer.toml'; a plain file name"]),
    "base without bootstrap": (LAYER.replace('"layer"', '"base"', 1), ["needs [[bootstrap]]", "[[variant]]"]),
    "bootstrap of a layer": (
        LAYER + '[[bootstrap]]\nagent = "docker"\nfrom = "x"\n',
        ["'bootstrap' is not allowed in a layer"],
    ),
    "wrong agent": (BASE.replace('"docker"', '"yum"'), ["'bootstrap[0].agent' is 'yum'", "debootstrap, docker"]),
    "API of an argument": (
        LAYER + '[has]\nnet-api = "{V}"\n[arguments.V]\ndefault = "12"\nhelp = "h"\n',
        ["'has.net-api' is '{V}'", "needed: '12'"],
    ),
    "source that is no address": (
        LAYER + '[sources.a]\nurl = "file:///etc/passwd"\nfile = "a"\nkey = "a"\nsource = "s"\n',
        ["'sources.a.url' is 'file:///etc/passwd'; it should begin with https://"],
    ),
    "needs": (
        LAYER + 'requires = ["a b", "torch[x]", "torch>=2.7,<2.10"]\n',
        [
            "key 'requires[0]' is 'a b'; a component, with or without versions, is needed",
            "key 'requires[1]' is 'torch[x]'; only a component and versions are allowed here",
        ],
    ),
    "all tables at once": (
        LAYER
        + '[[release]]\nversion = 1\nwheels = ["torch"]\nsource = "s"\n[[trouble]]\ngiven = ["a"]\noutcome = "bad"\n'
        + 'rule = "none"\nbecause = "b"\nsource = "s"\n[unlisted]\nread = "guess"\nrange = "new"\nsource = "s"\ndate = 2026-11-21\n',
        [
            "key 'release[0].version' should be a string, is 1",
            "key 'release[0].wheels[0]' is 'torch'; a distribution in one version",
            "key 'trouble[0].outcome' is 'bad'; allowed: refused, warning",
            "key 'trouble[0].rule' is 'none'; allowed: glibc-gate, ",
            "key 'unlisted.read' is 'guess'; allowed: metadata, sdist, local-version",
            "key 'unlisted.range' Invalid specifier: 'new'",
            "key 'unlisted.projects' is missing",
        ],
    ),
    "a row of what there is not": (
        LAYER + '[[release]]\nversion = "1"\narguments = { A = "1" }\nunused = ["a"]\nsource = "s"\n',
        [
            "key 'release[0].arguments.A' is not an argument of this layer",
            "key 'release[0].unused' names 'a', which is not a source of this layer",
        ],
    ),
    "a row whose pins contradict each other": (
        LAYER
        + '[[release]]\nversion = "1"\nrequires = ["rocm==7.0.*", "torch==2.10.*"]\nexpects = ["rocm>=7.2"]\nhas = { vllm = "1.0" }\n'
        + 'wheels = ["vllm==1.1+rocm700", "triton==3.6.0", "triton==3.5.1"]\nsource = "s"\n'
        + '[[release]]\nversion = "2"\nrequires = ["torch==2.10.*"]\nwheels = ["Torch[a]==2.9.1+git8907517"]\nsource = "s"\n',
        [
            "key 'release[0].has.vllm' is '1.0', but wheels pins vllm to 1.1+rocm700",
            "key 'release[0].wheels' pins triton to 3.6.0 and to 3.5.1",
            "key 'release[0].requires' asks for rocm==7.0.*,>=7.2, which matches no version",
            "key 'release[1].requires' asks for torch==2.10.*, but wheels pins torch to 2.9.1+git8907517",
        ],
    ),
    "a shared file that there is not": (LAYER + 'lib = ["nothing.sh"]\n', ["nothing.sh of `lib` does not exist: "]),
    "twice the same file": (
        LAYER + 'files = ["a"]\nlib = ["a"]\n',
        ["key 'lib' names 'a', which is a file of the layer's own"],
    ),
}


@pytest.mark.threat
def test_a_wrong_layer_is_refused_in_one_line_that_says_what_and_where(make_layer: MakeLayer) -> None:
    for number, (name, (toml, parts)) in enumerate(BAD.items()):
        folder = make_layer(f"wrong-{number}", toml)
        with pytest.raises(DecodeError) as caught:
            read_layer(folder)
        text = str(caught.value)
        assert text.startswith(f"{folder}/layer.toml: "), name
        assert [part for part in parts if part not in text] == [], name
        assert "\n" not in text, name
        assert caught.value.exit_code is ExitCode.BAD_INPUT


@pytest.mark.parametrize("row", ['has = { big-tool = "1.0" }', 'wheels = ["Big_Tool[x]==1.0+rocm700"]'])
def test_a_row_that_was_copied_and_says_another_version_is_refused(make_layer: MakeLayer, row: str) -> None:
    folder = make_layer("big-tool", text := f'{LAYER}[[release]]\nversion = "1.0"\n{row}\nsource = "s"\n')
    read_layer(folder)
    (folder / "layer.toml").write_text(text.replace('version = "1.0"', 'version = "1.1"'))
    with pytest.raises(DecodeError, match=r"key 'release\[0\].version' is '1.1', but it has big-tool 1.0"):
        read_layer(folder)


@pytest.mark.threat
def test_a_file_that_is_huge_or_not_text_is_refused(make_layer: MakeLayer) -> None:
    folder = make_layer("huge", LAYER + "#" * FILE_LIMIT_BYTES)
    with pytest.raises(DecodeError, match="larger than"):
        read_layer(folder)
    (folder / "layer.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DecodeError, match="not UTF-8"):
        read_layer(folder)
    (folder / "layer.toml").write_text(LAYER)
    (folder / "post.sh").write_bytes(b"\xff")
    with pytest.raises(DecodeError, match=r"post\.sh: is not UTF-8"):
        read_layer(folder)
    (folder / "post.sh").unlink()
    with pytest.raises(DecodeError, match=r"post\.sh does not exist"):
        read_layer(folder)


def test_a_users_own_folder_comes_first(tmp_path: Path, make_layer: MakeLayer) -> None:
    mine = make_layer("netprobe", LAYER.replace("A layer of the tests", "mine"))
    catalogue = open_catalogue({"HOME": str(tmp_path)}, [mine.parent])
    assert catalogue.layer("netprobe").summary == "mine"
    assert catalogue.base("debian-13").folder == shipped_layers() / "debian-13"
    with pytest.raises(BadInputError, match="is not a folder"):
        open_catalogue({}, [tmp_path / "nowhere"])


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The scratch folder of a project, as on LUMI, with a group of the current user."""
    group = grp.getgrgid(os.getgid()).gr_name
    path = f"{tmp_path}/scratch/{{group}}/{{user}}/lumiimg"
    (tmp_path / "places.toml").write_text(
        f'[[place]]\nmachine = "x"\ngroup = "{group}"\npath = "{path}"\nsource = "x"\ndate = 2026-11-21\n'
    )
    return tmp_path / "scratch" / group


def test_a_cache_lies_with_a_project_that_has_room(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, places = {"HOME": "/h"}, tmp_path / "places.toml"
    assert default_cache(home, places) == Path("/h/.cache/lumiimg"), "there is no such folder"
    scratch.mkdir(parents=True)
    assert default_cache(home | {"XDG_CACHE_HOME": "/x"}, places) == Path("/x/lumiimg")
    assert not list(scratch.iterdir()), "nobody asked for it"
    cache = scratch / pwd.getpwuid(os.getuid()).pw_name / "lumiimg"
    assert default_cache(home, places) == cache
    places.write_text(places.read_text().replace('group = "', 'group = "x'))
    assert default_cache(home, places) == Path("/h/.cache/lumiimg")

    def hang(*_: object) -> bool:  # as the file system of a project may
        raise AssertionError

    monkeypatch.setattr(os, "access", hang)
    monkeypatch.setattr("lumiimg.catalog.settings._groups", hang)
    assert read_settings({"HOME": str(tmp_path)}).mirrors == {}
    assert read_settings({"HOME": str(tmp_path), "LUMIIMG_CACHE": "/c"}).cache == Path("/c")


@pytest.mark.threat
def test_nobody_else_of_the_project_may_write_to_the_cache(scratch: Path, tmp_path: Path) -> None:
    """Members of a project share its scratch folder, and their umask lets each write the files of others."""
    scratch.mkdir(parents=True)
    before = os.umask(0o007)
    try:
        cache = default_cache({"HOME": "/h"}, tmp_path / "places.toml")
    finally:
        os.umask(before)
    assert cache.is_relative_to(scratch)
    assert stat.S_IMODE(cache.stat().st_mode) & 0o777 == 0o700
    assert stat.S_IMODE(cache.parent.stat().st_mode) & 0o022 == 0
    cache.chmod(0o750)
    assert default_cache({"HOME": "/h"}, tmp_path / "places.toml") == cache, "they may read"


@pytest.mark.parametrize("spoil", ["group", "others", "symlink", "symlink above", "another user", "file", "dangling"])
@pytest.mark.threat
def test_a_cache_that_somebody_else_could_fill_is_passed_over(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    home, places = {"HOME": "/h"}, tmp_path / "places.toml"
    scratch.mkdir(parents=True)
    cache = default_cache(home, places)
    match spoil:
        case "group":
            cache.chmod(0o770)
        case "others":
            cache.chmod(0o702)
        case "symlink" | "symlink above":
            moved = cache if spoil == "symlink" else cache.parent
            moved.rename(tmp_path / "moved")
            moved.symlink_to(tmp_path / "moved")
        case "another user":
            name = cache.parent.name
            monkeypatch.setattr("lumiimg.catalog.settings._user", lambda: name)
            monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + 1)
        case "file" | "dangling":
            cache.rmdir()
            cache.touch() if spoil == "file" else cache.symlink_to("nowhere")
    assert default_cache(home, places) == Path("/h/.cache/lumiimg")
    assert not (cache.parent / "nowhere").exists()


def _leaves(data: object, path: str, places: list[object]) -> Iterator[tuple[str, list[object]]]:
    """Yield the path of each value in a file, as errors print it, with the keys that lead to it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else key, [*places, key])
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield from _leaves(value, f"{path}[{at}]", [*places, at])
    else:
        yield path, places


def _read_layer(path: Path) -> object:
    return read_layer(path.parent)


_FILES: list[tuple[Path, Callable[[Path], object]]] = [
    *((file, _read_layer) for file in sorted(shipped_layers().glob("*/layer.toml"))),
    *((file, read_site) for file in sorted(site_folders({})[1].glob("*.toml"))),
    *((file, read_recipe) for file in sorted(recipe_folders({})[1].glob("*.toml"))),
]


@pytest.mark.threat
def test_each_value_of_a_wrong_type_and_each_key_that_is_misspelt_is_named(tmp_path: Path) -> None:
    """In every shipped layer, site and recipe, so that no value or key is ignored."""
    cases = [
        (file, read, key, places, misspelt)
        for file, read in _FILES
        for key, places in _leaves(tomllib.loads(file.read_text()), "", [])
        for misspelt in (False, True)
    ]
    assert len(cases) > 3000
    for file, read, key, places, misspelt in sampled(cases, 30):
        wrong: Any = tomllib.loads(file.read_text())
        above: Any = wrong
        for place in places[:-1]:
            above = above[place]
        last: Any = places[-1]
        if misspelt and isinstance(last, str):
            above[f"{last}\n"] = above.pop(last)
        else:
            above[last] = dt.time(1)
        named = f"key {key + chr(10) * (misspelt and isinstance(last, str))!r}"
        copy = tmp_path / "layers" / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(tomli_w.dumps(wrong))
        with pytest.raises(DecodeError) as caught:
            read(copy)
        assert named in str(caught.value), (file, key, str(caught.value))


def test_no_layer_that_brings_a_component_is_passed_over_unread(make_layer: MakeLayer, layers: Path) -> None:
    forms = (
        'provides = [\n  "x",  # one\n  "libx"\n]',
        '"has".libx = "1"',
        "has = { a = '2', 'libx'= '1' }",
        "[has]\nlibx='1'",
    )
    for number, form in enumerate((*forms, 'requires = ["libx"]', 'provides = ["libx2"]', "has = { my-libx = '1' }")):
        make_layer(f"odd-{number}", f"{LAYER}{form}\n")
    make_layer("row", f'{LAYER}[[release]]\nversion = "1"\nsource = "s"\n[release.has]\nlibx = "1"\n')
    catalogue = open_catalogue({"HOME": "/nonexistent"}, [layers])
    assert catalogue.possible_providers("libx") == [*(f"odd-{number}" for number in range(len(forms))), "row"]
    brings: dict[str, set[str]] = {}
    for name in catalogue.layer_names():
        layer = catalogue.entry(name)
        if not layer.is_base:
            for component in {name, *layer.provides, *layer.has, *(key for row in layer.releases for key in row.has)}:
                brings.setdefault(component, set()).add(name)
    for component, names in brings.items():
        assert names <= {*catalogue.possible_providers(component)}, component


HOME = {"HOME": "/nonexistent"}
SEPTEMBER = "lumi-multitorch-u24r72f21m50t211-20260929-104918"


NAMES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (SEPTEMBER, SEPTEMBER, {"rocm": "7.2", "torch": "2.11", "libfabric": "2.1", "os": "Ubuntu 24.04"}),
    (SEPTEMBER.replace("-104918", "_104918"), SEPTEMBER, {"glibc": "2.39", "python": "3.12", "rccl": "2.27.7"}),
    # names that do not exist yet
    (
        "/elsewhere/lumi-multitorch-u26r714f25m51t215-20270301_010203.sif",
        "lumi-multitorch-u26r714f25m51t215-20270301-010203",
        {"rocm": "7.14", "torch": "2.15", "libfabric": "2.5", "os": "Ubuntu 26.04"},
    ),
    (
        "lumi-multitorch-u24r102f21m50t29-20270301_010203",
        "lumi-multitorch-u24r102f21m50t29-20270301-010203",
        {"rocm": "10.2", "torch": "2.9"},
    ),
    # the members of which the catalogue has facts
    ("lumi-multitorch-u24r70f21m50t210-20260415_130625", "lumi-multitorch-u24r70", {"torch": "2.10.0"}),
    ("/appl/local/csc/soft/ai/images/pytorch_2.7.1_lumi.sif", "csc-pytorch-2.7.1", {"rocm": "6.2.4"}),
    (
        "docker.io/lumiaifactory/lumi-multitorch:torch-u24r70f21m50t210-20260415_130625",
        "lumi-multitorch-u24r70",
        {"torch": "2.10.0"},
    ),
    (
        "rocm/pytorch:rocm7.14.0_ubuntu24.04_py3.12_pytorch_release_2.14.0",
        "rocm-pytorch-rocm7.14.0-ubuntu24.04-py3.12-pytorch-release-2.14.0",
        {"rocm": "7.14.0", "torch": "2.14.0", "python": "3.12", "glibc": "2.39"},
    ),
    ("rocm/vllm:rocm7.2.0_vllm_0.25.0_20260801", "rocm-vllm-rocm7.2.0-vllm-0.25.0-20260801", {"vllm": "0.25.0"}),
)
"""A name, the base that it means, and what that has."""
NO_NAMES = (
    "lumi-multitorch-u24r72f21m50t211",
    "/elsewhere/lumi-multitorch-full-u24r72f21m50t211-20260929_104918.sif",
    "rocm/pytorch:latest",
    "quay.io/rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_2.10.0",
    "rocm/pytorch:rocm7.2.4_ubuntu24.04_py3.12_pytorch_release_" + "9" * 500,
)


def test_a_name_is_a_base_with_what_it_says_and_one_that_says_less_is_none() -> None:
    catalogue = open_catalogue(HOME)
    for name, base, has in NAMES:
        assert catalogue.resolve_base_name(name) == base
        found = catalogue.base(base)
        assert has.items() <= found.has.items(), name
        assert found.bootstraps, name
        assert NAME.fullmatch(base), "a lock can have it"
    for name in NO_NAMES:
        assert catalogue.resolve_base_name(name) == name
    assert SEPTEMBER in catalogue.base_names()
    places = [one.origin for one in catalogue.base(SEPTEMBER).bootstraps]
    folder = "/appl/local/laifs/containers/lumi-multitorch-u24r72f21m50t211-20260929_104918"
    assert places == [
        f"{folder}/lumi-multitorch-torch-u24r72f21m50t211-20260929_104918.sif",
        "docker.io/lumiaifactory/lumi-multitorch:torch-u24r72f21m50t211-20260929_104918",
    ]


@pytest.mark.usefixtures("clean_home")
def test_a_base_by_its_name_is_a_doubt_and_where_the_file_is_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = fabric_builder.bundled(tmp_path / "lumi-multitorch-u24r72f21m50t211-20260929_104918.sif")
    (image / "opt/rocm/.info").mkdir(parents=True, exist_ok=True)
    (image / "opt/rocm/.info/version").write_text("7.0.2-1\n")
    for base, rocm in ((SEPTEMBER, "7.2"), (str(image), "7.0.2")):
        main(["explain", "--base", base, "--site", "lumi", "--verbose"])
        output = unwrapped(capsys.readouterr().out)
        assert f"rocm {rocm}" in output or f"ROCm {rocm}" in output
        assert ("judging by its name, it has rocm 7.2" in output) == (base == SEPTEMBER)


@pytest.mark.usefixtures("clean_home")
def test_the_images_of_this_machine_are_found_the_newest_first(tmp_path: Path) -> None:
    for place in ("{0}.sif", "{0}/{0}.sif"):
        images = tmp_path / f"images{len(place)}"
        for age, name in enumerate(("stack-r73t212", "stack-r72t212")):
            (image := images / place.format(name)).parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(b"")
            os.utime(image, (0, 1000 - age))
        file = f"{images}/{place.format('stack-r{rocm}{more}t212')}"
        found = open_catalogue(HOME, [family(tmp_path, file)]).images_here()
        assert found == [images / place.format(name) for name in ("stack-r73t212", "stack-r72t212")]


def family(tmp_path: Path, file: str, **other: str) -> Path:
    """Write a user's own family; `other` are TOML lines that replace those of the same key."""
    lines = {
        "pattern": "'stack-r(?P<rocm>[0-9])(?P<more>[0-9])t212'",
        "summary": '"ours"',
        "has": '{ rocm = "{rocm}.{more}", torch = "2.12" }',
        "file": json.dumps(file),
        "source": '"us"',
        "date": "2026-11-24",
        **other,
    }
    layers = tmp_path / "layers"
    (layers / "stack").mkdir(parents=True, exist_ok=True)
    (layers / "stack/post.sh").write_text("true\n")
    (layers / "stack/layer.toml").write_text(
        'kind = "base"\nsummary = "ours"\nsource = "us"\ndate = 2026-11-24\n\n'
        '[[variant]]\nname = "stack-r70"\nsummary = "old"\nagent = "localimage"\nfrom = "/nowhere/stack.sif"\n'
        'has = { rocm = "7.0" }\n\n[named]\n' + "".join(f"{key} = {value}\n" for key, value in lines.items())
    )
    return layers


def test_what_no_name_can_say_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rocm/pytorch:latest", "docker.io/rocm/vllm:rocm7.2_odd", "quay.io/a/b/c:1"):
        assert main(["explain", "--base", name]) == ExitCode.BAD_INPUT
        assert f"{name}: no such file; for an image in a registry: docker://{name}" in unwrapped(
            capsys.readouterr().err
        )
    for key, value, fault in (
        ("summary", '"x-{rocm.__class__}"', "contains {rocm.__class__}, which is not a group of the pattern"),
        ("has", '{ torch = "{torch}" }', "key 'named.has.torch' contains {torch}"),
        ("tag", '"x:{}"', "key 'named.tag' contains {}"),
        ("pattern", "'('", "is not a valid regular expression"),
        ("known", '["Mine"]', "key 'named.known[0]' is 'Mine'"),
    ):
        layers = family(tmp_path, "/images/{date}.sif", **{key: value})
        assert main(["show", "stack-r70", "--layers", str(layers)]) == ExitCode.BAD_INPUT
        assert fault in capsys.readouterr().err
