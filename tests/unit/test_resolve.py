"""Request to lock: digests are verified, mirrors are applied, combinations that cannot work are refused."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.errors import BadInputError, ExitCode, MissingHereError, RefusedError
from lumiimg.fabric.rccl import Rccl, generation_of, generations, version_of_code
from lumiimg.resolve.decide import decide, locked
from lumiimg.resolve.network.mirrors import Mirrors, apt_mirror, parse_mirrors
from lumiimg.resolve.plan import Ground
from lumiimg.resolve.request import Request
from tests.shared.layer_builder import BASE, LAYER, MakeLayer

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.lock import Lock

CONTENT = b"the release\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"something else\n").hexdigest()
PLUGIN = LAYER + (
    '[arguments.VERSION]\ndefault = "1.0"\nhelp = "which"\npattern = "[0-9.]+"\n'
    '[sources.plugin]\nurl = "https://host.test/v{VERSION}.tar.gz"\nfile = "plugin-{VERSION}.tar.gz"\n'
    f'key = "{{VERSION}}"\nsource = "here"\n[sources.plugin.sha256]\n"1.0" = "{DIGEST}"\n'
)


@pytest.fixture
def catalogue(layers: Path, make_layer: MakeLayer) -> Catalogue:
    make_layer("base", BASE)
    make_layer("plugin", PLUGIN)
    return Catalogue((layers,), ())


def lock(catalogue: Catalogue, mirrors: dict[str, str] | None = None, **sources: str) -> Lock:
    return locked(decide(Request("base", ("plugin",), sources=sources), Ground(catalogue, Mirrors(mirrors or {}), "")))


def test_a_release_is_locked_at_its_known_digest(catalogue: Catalogue) -> None:
    source = lock(catalogue).layers[0].sources[0]
    assert (source.location, source.sha256) == ("https://host.test/v1.0.tar.gz", DIGEST)
    assert source.file == "plugin-1.0.tar.gz"


def test_a_mirror_changes_where_from_and_not_what(catalogue: Catalogue) -> None:
    """What is locked holds elsewhere too; the mirror is for the download."""
    source = lock(catalogue, {"https://host.test": "http://near/x"}).layers[0].sources[0]
    assert (source.location, source.sha256) == ("https://host.test/v1.0.tar.gz", DIGEST)
    assert Mirrors({"https://host.test": "http://near/x"}).rewrite(source.location) == "http://near/x/v1.0.tar.gz"


@pytest.mark.parametrize(
    ("url", "restored"),
    [
        ("https://near.test/whl/torch.whl", "https://wheels.test/whl/torch.whl"),
        ("https://near.test/pypi/simple/files/numpy.whl", "https://near.test/pypi/simple/files/numpy.whl"),
        ("https://elsewhere.test/numpy.whl", "https://elsewhere.test/numpy.whl"),
    ],
)
def test_an_index_below_the_mirror_of_another_is_not_taken_for_that(url: str, restored: str) -> None:
    table = {"https://wheels.test": "https://near.test", "pypi": "https://near.test/pypi/simple"}
    assert Mirrors(table).restore(url) == restored


def test_a_version_without_a_digest_is_settled_at_the_first_download(catalogue: Catalogue) -> None:
    request = Request("base", ("plugin",), {("plugin", "VERSION"): "2.0"})
    found = locked(decide(request, Ground(catalogue, Mirrors({}), "")))
    assert found.layers[0].sources[0].sha256 is None
    assert [line for line in found.unsettled if "2.0" in line]


def test_a_file_of_ones_own_is_taken_at_its_own_digest_and_said_so(catalogue: Catalogue, tmp_path: Path) -> None:
    file = tmp_path / "my plugin; $(rm).tar.gz"
    file.write_bytes(b"something else\n")
    source = lock(catalogue, plugin=str(file)).layers[0].sources[0]
    assert source.sha256 == OTHER
    assert "your own archive" in source.note
    assert source.file == "my_plugin_rm_.tar.gz"


@pytest.mark.parametrize("name", ["plugin-1.0.tar.gz", "v1.0.tar.gz"])
def test_a_file_that_calls_itself_the_release_must_be_it(catalogue: Catalogue, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(CONTENT)
    assert lock(catalogue, plugin=str(file)).layers[0].sources[0].note == ""
    file.write_bytes(b"something else\n")
    with pytest.raises(BadInputError, match="another digest") as caught:
        lock(catalogue, plugin=str(file))
    assert f"#sha256={OTHER}" in str(caught.value), "the way to mean it is shown"
    assert lock(catalogue, plugin=f"{file}#sha256={OTHER}").layers[0].sources[0].sha256 == OTHER


def test_a_digest_that_is_given_is_verified(catalogue: Catalogue, tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(CONTENT)
    assert lock(catalogue, plugin=f"{file}#sha256={DIGEST.upper()}").layers[0].sources[0].sha256 == DIGEST
    with pytest.raises(BadInputError, match="another digest"):
        lock(catalogue, plugin=f"{file}#sha256={OTHER}")
    with pytest.raises(BadInputError, match="64 hexadecimal digits"):
        lock(catalogue, plugin=f"{file}#sha256=12")


def test_an_address_without_a_known_digest_is_settled_at_the_first_download(
    layers: Path, make_layer: MakeLayer
) -> None:
    make_layer("base", BASE)
    make_layer("plugin", PLUGIN.replace('"1.0" = ', '"9.9" = '))
    catalogue = Catalogue((layers,), ())
    source = lock(catalogue, plugin="https://else.test/x.tar.gz").layers[0].sources[0]
    assert source.sha256 is None
    assert "first download" in source.note
    source = lock(catalogue, plugin=f"https://else.test/x.tar.gz#sha256={DIGEST}").layers[0].sources[0]
    assert (source.location, source.sha256) == ("https://else.test/x.tar.gz", DIGEST)


@pytest.mark.parametrize(("path", "what"), [("nowhere.tar.gz", "is not a file"), (".", "is not a file")])
def test_a_source_that_is_no_file_is_bad_input(catalogue: Catalogue, path: str, what: str) -> None:
    with pytest.raises(BadInputError, match=what):
        lock(catalogue, plugin=path)


def test_what_nothing_takes_is_a_typing_error(catalogue: Catalogue) -> None:
    with pytest.raises(BadInputError, match=r"takes the argument plugin.VERSON; known: plugin.VERSION"):
        locked(decide(Request("base", ("plugin",), {("plugin", "VERSON"): "1"}), Ground(catalogue, Mirrors({}), "")))
    with pytest.raises(BadInputError, match="source called 'plugn'; known: plugin"):
        lock(catalogue, plugn="x")
    with pytest.raises(BadInputError, match="asked for twice"):
        locked(decide(Request("base", ("plugin", "plugin")), Ground(catalogue, Mirrors({}), "")))
    with pytest.raises(BadInputError, match=r"plugin.VERSION='1;rm' does not match"):
        locked(
            decide(Request("base", ("plugin",), {("plugin", "VERSION"): "1;rm"}), Ground(catalogue, Mirrors({}), ""))
        )


def test_layers_that_do_not_go_together_are_refused_with_the_rule(layers: Path, make_layer: MakeLayer) -> None:
    make_layer("base", BASE + "", test_sh="true\n")
    make_layer("a", LAYER + 'conflicts = ["b"]\n')
    make_layer("b", LAYER + 'provides = ["hwloc"]\n')
    make_layer("c", LAYER + 'requires = ["hwloc"]\n')

    def build(*add: str) -> Lock:
        return locked(decide(Request("base", add), Ground(Catalogue((layers,), ()), Mirrors({}), "")))

    for order in (("a", "b"), ("b", "a")):
        with pytest.raises(RefusedError, match="cannot be in one image") as caught:
            build(*order)
        assert caught.value.exit_code is ExitCode.NO
    for add in (("c", "b"), ("b", "c"), ("c",)):
        assert [layer.layer.name for layer in build(*add).stack] == ["base", "b", "c"]
    make_layer("b2", LAYER + 'provides = ["hwloc"]\n')
    with pytest.raises(RefusedError, match="c requires hwloc"):  # which of the two is not ours to say
        build("c")


DEBOOTSTRAP = LAYER.replace('"layer"', '"base"', 1) + (
    '[[bootstrap]]\nagent = "debootstrap"\nfrom = "trixie"\nmirror = "debian"\n'
)


def test_debootstrap_is_taken_where_it_is_and_a_mirror_is_known(
    layers: Path, make_layer: MakeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layer("base", DEBOOTSTRAP + '[[bootstrap]]\nagent = "docker"\nfrom = "debian:trixie-slim"\n')
    catalogue = Catalogue((layers,), ())
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr("lumiimg.resolve.bootstrap._SBIN", "")
    monkeypatch.setattr("lumiimg.resolve.bootstrap.apt_mirror", lambda _: None)

    def bootstrap(mirrors: dict[str, str]) -> tuple[str, str, str | None]:
        found = locked(decide(Request("base"), Ground(catalogue, Mirrors(mirrors), str(programs)))).bootstrap
        return found.agent, found.origin, found.mirror_url

    named = {"debian": "http://m/debian"}
    assert bootstrap(named)[:2] == ("docker", "debian:trixie-slim")
    (programs / "debootstrap").write_text("#!/bin/sh\n")
    (programs / "debootstrap").chmod(0o755)
    assert bootstrap(named) == ("debootstrap", "trixie", "http://m/debian")
    assert bootstrap({})[0] == "docker"
    monkeypatch.setattr("lumiimg.resolve.bootstrap.apt_mirror", lambda _: "http://own/debian")
    assert bootstrap({}) == ("debootstrap", "trixie", "http://own/debian")


def test_a_base_that_cannot_be_had_says_what_each_way_lacks(
    layers: Path, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layer("base", DEBOOTSTRAP)
    monkeypatch.setattr("lumiimg.resolve.bootstrap._SBIN", "")
    with pytest.raises(MissingHereError, match="debootstrap: the program is not on PATH"):
        locked(decide(Request("base"), Ground(Catalogue((layers,), ()), Mirrors({}), "")))


@pytest.mark.parametrize(
    ("mirrors", "origin", "plain_http"),
    [
        ({}, "docker.io/library/busybox", False),
        ({"docker.io": "registry.near:5000"}, "registry.near:5000/library/busybox", False),
        ({"docker.io": "http://localhost:5000/"}, "localhost:5000/library/busybox", True),
        ({"docker.io": "https://near.test"}, "near.test/library/busybox", False),
    ],
)
def test_a_registry_has_mirrors_too(
    catalogue: Catalogue, mirrors: dict[str, str], origin: str, *, plain_http: bool
) -> None:
    image = lock(catalogue, mirrors).bootstrap.image
    assert image is not None
    assert (f"{image.registry}/{image.repository}", image.plain_http) == (origin, plain_http)


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://user:secret@m/debian", "contains a password"),
        ("http://secret@m", "contains a password"),
        ("file:///srv/debian", "is not a valid http"),
        ("http://m/de bian", "is not a valid http"),
        ("http://m/debian\nIncludeCmd: x", "is not a valid http"),
    ],
)
def test_a_mirror_that_would_spoil_the_definition_is_refused(url: str, what: str) -> None:
    with pytest.raises(BadInputError, match=what) as caught:
        Mirrors({"debian": url}).named("debian")
    assert "secret" not in str(caught.value)


@pytest.mark.threat
def test_no_mirror_with_a_password_gets_anywhere() -> None:
    for word in ("docker.io=https://user:secret@reg", "docker.io=user:secret@reg", "https://g=http://secret@m"):
        with pytest.raises(BadInputError, match="contains a password") as caught:
            parse_mirrors({}, [word])
        assert "secret" not in str(caught.value)
    for word in ("x", "=y", "x=", ""):
        with pytest.raises(BadInputError, match="is not FROM=TO"):
            parse_mirrors({}, [word])


@pytest.mark.threat
def test_no_source_with_a_password_gets_anywhere(catalogue: Catalogue) -> None:
    with pytest.raises(BadInputError, match="contains a password"):
        lock(catalogue, plugin=f"https://user:secret@host.test/x.tar.gz#sha256={DIGEST}")
    assert lock(catalogue, plugin=f"https://host.test/@x.tar.gz#sha256={DIGEST}").layers[0].sources[0].name == "plugin"


def test_apt_sources_are_read_in_both_formats(tmp_path: Path) -> None:
    assert apt_mirror("debian", tmp_path) is None
    (tmp_path / "sources.list").write_text(
        "# deb http://off/debian x main\ndeb [arch=amd64 signed-by=/k] http://security/debian-security x main\n"
        "deb [arch=amd64] http://one-line/debian trixie main\n"
    )
    assert apt_mirror("debian", tmp_path) == "http://one-line/debian"
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    stanza = "Types: deb\n#URIs: http://off/debian\nURIs: http://deb822/debian/\nSuites: x\nComponents: main\n"
    (folder / "a.sources").write_text(stanza)
    assert apt_mirror("debian", tmp_path) == "http://deb822/debian/"
    (folder / "a.sources").write_text(stanza.replace("deb822", "user:secret@deb822"))
    with pytest.raises(BadInputError, match="contains a password"):
        apt_mirror("debian", tmp_path)


MINE = "\n\nTypes: deb\nURIs: http://mine/debian\nSuites: trixie\nComponents: main contrib\n"


@pytest.mark.parametrize(
    "stanza",
    [
        "Types: deb\nURIs: https://others/linux/debian\nSuites: x\nComponents: stable\n",
        "Types: deb\nURIs: https://others/x/debian\nSuites: x\nComponents: main\nSigned-By: /etc/apt/keyrings/others.asc\n",
        "Types: deb\nURIs: https://others/x/debian\nSuites: x\nComponents: main\nSigned-By:\n -----BEGIN PGP\n .\n mQ==\n",
        "Enabled: no\nTypes: deb\nURIs: http://off/debian\nSuites: x\nComponents: main\n",
        "types: deb\nuris: http://off/debian\nsuites: x\ncomponents: main\nENABLED: False\n",
        "Types: deb-src\nURIs: http://sources/debian\nSuites: x\nComponents: main\n",
        "Types: deb\nURIs: http://[ ftp://x/debian\nSuites: x\nComponents: main\n",
    ],
)
def test_only_debians_own_archive_in_use_is_the_mirror_for_debian(stanza: str, tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "a.sources").write_text(stanza)
    assert apt_mirror("debian", tmp_path) is None
    (tmp_path / "sources.list.d" / "a.sources").write_text(stanza + MINE)
    assert apt_mirror("debian", tmp_path) == "http://mine/debian"


def test_several_addresses_of_one_stanza_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "a.sources").write_text(
        "Types: deb-src\n deb\nURIs:\n http://security/debian-security\n http://mine/debian\nSuites: x\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp\n"
    )
    assert apt_mirror("debian", tmp_path) == "http://mine/debian"


@pytest.mark.parametrize(
    "line",
    [
        "deb [arch=amd64 signed-by=/etc/apt/keyrings/others.asc] https://others/x/debian x main",
        "deb-src http://sources/debian x main",
    ],
)
def test_nor_is_a_line_for_another_archive(line: str, tmp_path: Path) -> None:
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (tmp_path / "sources.list").write_text(line + "\n")
    assert apt_mirror("debian", tmp_path) is None
    (tmp_path / "sources.list").write_text(f"{line}\ndeb [ signed-by={keyring} ] http://mine/debian x main contrib\n")
    assert apt_mirror("debian", tmp_path) == "http://mine/debian"


@pytest.mark.parametrize(
    ("version", "accepts", "files", "loads"),
    [
        ("2.13.4", (6, 5, 4), ("librccl-net.so",), True),
        ("2.18.6", (6, 5, 4), ("librccl-net.so",), True),
        ("2.20.5", (8, 7, 6, 5), ("librccl-net.so",), True),
        ("2.22.3", (8, 7, 6, 5), ("librccl-net.so",), False),
        ("2.26.6", (10, 9, 8, 7, 6), ("librccl-net.so",), False),
        ("2.27.7", (10, 9, 8, 7, 6), ("libnccl-net.so",), False),
        ("2.30.4", (12, 11, 10, 9, 8, 7, 6), ("librccl-net.so",), False),
    ],
)
def test_the_rccl_table_says_what_was_measured(
    version: str, accepts: tuple[int, ...], files: tuple[str, ...], *, loads: bool
) -> None:
    generation = generation_of(version)
    assert generation is not None
    assert generation.accepts == accepts
    assert generation.files == files
    assert generation.unique_id_loads_plugin is loads


_LIST = ("x", "librccl-net-x.so", "y", "librccl-net-y.so")
_WHOLE = ("x,y", "librccl-net-x,y.so")


@pytest.mark.parametrize(
    ("version", "variable", "names"),
    [
        ("2.20.5", "x,y", ("librccl-net-x,y.so",)),
        *((version, "x,y", _WHOLE) for version in ("2.21.5", "2.22.3", "2.26.6")),
        *((version, f"{commas}x{commas},y{commas}", _LIST) for version in ("2.27.7", "2.29.7") for commas in ("", ",")),
        ("2.25.1", "libx.so", ("libx.so", "librccl-net-libx.so.so")),
        *((version, "libx.so", ("libx.so",)) for version in ("2.26.6", "2.27.7")),
        ("2.27.7", "/opt/x/y,libx.so,libx", ("/opt/x/y", "libx.so", "libx", "librccl-net-libx.so")),
        ("2.26.6", "", ("librccl-net.so",)),
        *(("2.27.7", variable, ()) for variable in ("", ",", "x" * 255, "STATIC", "s")),
        ("2.27.7", "none", ("none", "librccl-net-none.so")),
        *(("2.28.3", variable, ()) for variable in ("", "none", "NONE")),
        ("2.25.1", "s", ("s", "librccl-net-s.so")),
        ("2.27.7", ",".join(f"/{number}" for number in range(20)), tuple(f"/{number}" for number in range(14))),
        ("2.7.8", "x", ()),
    ],
)
def test_what_nccl_net_plugin_makes_of_the_files_name(version: str, variable: str, names: tuple[str, ...]) -> None:
    """As src/net.cc, src/plugin/net.cc and src/plugin/plugin_open.cc of each version have it."""
    assert Rccl(version).names(variable) == names
    assert Rccl(version).opens_none(variable) is (not names and version != "2.7.8")


def test_the_rccl_table_is_in_order_and_knows_its_limits() -> None:
    starts = [generation.since for generation in generations()]
    assert starts == sorted(starts)
    assert generation_of("2.7.8") is None
    assert version_of_code(21304) == "2.13.4"
    assert version_of_code(22707) == "2.27.7"
