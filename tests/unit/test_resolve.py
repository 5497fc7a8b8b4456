"""Request to lock: digests are verified, mirrors are applied, combinations that cannot work are refused."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.catalog.catalogue import Catalogue
from lumiimg.core.errors import BadInputError, ExitCode, MissingHereError, RefusedError
from lumiimg.fabric.rccl import Rccl, generation_of, version_of_code
from lumiimg.fetch.mirrors import Mirrors, apt_mirror, parse_mirrors
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.shared.layer_builder import BASE, LAYER, MakeLayer, catalogue_of, locked

if TYPE_CHECKING:
    from pathlib import Path

    from lumiimg.resolve.lock import Lock, LockedSource

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


def locked_source(catalogue: Catalogue, given: str | None = None, **fields: Any) -> LockedSource:
    """Return the locked archive of the plugin, with or without a given file or address."""
    (source,) = (
        locked(catalogue, "base", "plugin", sources={"plugin": given} if given else {}, **fields).layers[0].sources
    )
    return source


def test_a_source_is_locked_at_its_digest_wherever_it_is_taken_from(
    catalogue: Catalogue, layers: Path, tmp_path: Path
) -> None:
    """The lock is valid elsewhere, too; a mirror only affects the download."""
    source = locked_source(catalogue)
    assert (source.location, source.sha256) == ("https://host.test/v1.0.tar.gz", DIGEST)
    assert source.file == "plugin-1.0.tar.gz"
    assert Mirrors({"https://host.test": "http://near/x"}).rewrite(source.location) == "http://near/x/v1.0.tar.gz"
    # a user's file has its own digest, but one that claims to be the release must be the release
    mine = tmp_path / "my plugin; $(rm).tar.gz"
    mine.write_bytes(b"something else\n")
    source = locked_source(catalogue, str(mine))
    assert (source.sha256, source.file) == (OTHER, "my_plugin_rm_.tar.gz")
    assert "your own archive" in source.note
    for name in ("plugin-1.0.tar.gz", "v1.0.tar.gz"):
        file = tmp_path / name
        file.write_bytes(CONTENT)
        assert locked_source(catalogue, str(file)).note == ""
        assert locked_source(catalogue, f"{file}#sha256={DIGEST.upper()}").sha256 == DIGEST
        file.write_bytes(b"something else\n")
        with pytest.raises(BadInputError, match="the wrong digest") as caught:
            locked_source(catalogue, str(file))
        assert f"#sha256={OTHER}" in str(caught.value), "the way to mean it is shown"
        assert locked_source(catalogue, f"{file}#sha256={OTHER}").sha256 == OTHER
    # a source without a known digest is resolved at the first download
    found = locked(catalogue, "base", "plugin", arguments={"plugin.VERSION": "2.0"})
    assert found.layers[0].sources[0].sha256 is None
    assert [line for line in found.missing_digests if "2.0" in line]
    (layers / "plugin/layer.toml").write_text(PLUGIN.replace('"1.0" = ', '"9.9" = '))
    again = Catalogue((layers,), ())
    for place in ("https://else.test/x.tar.gz", "HTTPS://else.test/x.tar.gz"):
        source = locked_source(again, place)
        assert (source.sha256, source.is_local, "first download" in source.note) == (None, False, True)
    source = locked_source(again, f"https://else.test/x.tar.gz#sha256={DIGEST}")
    assert (source.location, source.sha256) == ("https://else.test/x.tar.gz", DIGEST)
    assert locked_source(again, f"https://host.test/@x.tar.gz#sha256={DIGEST}").name == "plugin"


def test_an_index_below_the_mirror_of_another_is_not_taken_for_that() -> None:
    mirrors = Mirrors({"https://wheels.test": "https://near.test", "pypi": "https://near.test/pypi/simple"})
    assert mirrors.restore("https://near.test/whl/torch.whl") == "https://wheels.test/whl/torch.whl"
    for url in ("https://near.test/pypi/simple/files/numpy.whl", "https://elsewhere.test/numpy.whl"):
        assert mirrors.restore(url) == url


@pytest.mark.threat
def test_a_source_that_cannot_be_taken_is_bad_input(catalogue: Catalogue, tmp_path: Path) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(CONTENT)
    for given, what in (
        (f"{file}#sha256={OTHER}", "the wrong digest"),
        (f"{file}#sha256=12", "64 hexadecimal digits"),
        ("nowhere.tar.gz", "is not a file"),
        (".", "is not a file"),
        (f"https://user:secret@host.test/x.tar.gz#sha256={DIGEST}", "contains a password"),
    ):
        with pytest.raises(BadInputError, match=what) as caught:
            locked_source(catalogue, given)
        assert "secret" not in str(caught.value)


def test_what_nothing_takes_is_a_typing_error(catalogue: Catalogue) -> None:
    for add, fields, what in (
        ((), {"arguments": {"plugin.VERSON": "1"}}, "uses the argument plugin.VERSON; known: plugin.V"),
        ((), {"sources": {"plugn": "x"}}, "source named 'plugn'; known: plugin"),
        (("plugin",), {}, "named twice"),
        ((), {"arguments": {"plugin.VERSION": "1;rm"}}, r"plugin.VERSION is '1;rm', which does not match"),
    ):
        with pytest.raises(BadInputError, match=what):
            locked(catalogue, "base", "plugin", *add, **fields)


def test_layers_that_do_not_go_together_are_refused_with_the_rule(layers: Path, make_layer: MakeLayer) -> None:
    make_layer("base", BASE + "", test_sh="true\n")
    make_layer("a", LAYER + 'conflicts = ["b"]\n')
    make_layer("b", LAYER + 'provides = ["hwloc"]\n')
    make_layer("c", LAYER + 'requires = ["hwloc"]\n')

    def build(*add: str) -> Lock:
        return locked(Catalogue((layers,), ()), "base", *add)

    for order in (("a", "b"), ("b", "a")):
        with pytest.raises(RefusedError, match="cannot be in one image") as caught:
            build(*order)
        assert caught.value.exit_code is ExitCode.NO
    for add in (("c", "b"), ("b", "c"), ("c",)):
        assert [layer.layer.name for layer in build(*add).stack] == ["base", "b", "c"]
    make_layer("b2", LAYER + 'provides = ["hwloc"]\n')
    with pytest.raises(RefusedError, match="c requires hwloc"):  # which of the two is not ours to say
        build("c")
    for layer, other in (("x", "y"), ("y", "x"), *((f"l{number}", f"l{number + 1}") for number in range(42))):
        make_layer(layer, LAYER + f'requires = ["{other}"]\n')
    with pytest.raises(RefusedError, match="y requires x"):
        build("x")
    with pytest.raises(BadInputError, match="require each other more than 40 levels deep: l0 -> l1"):
        build("l0")


DEBOOTSTRAP = LAYER.replace('"layer"', '"base"', 1) + (
    '[[bootstrap]]\nagent = "debootstrap"\nfrom = "trixie"\nmirror = "debian"\n'
)


def test_debootstrap_is_taken_where_it_is_and_a_mirror_is_known(
    layers: Path, make_layer: MakeLayer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layer("base", DEBOOTSTRAP + '[[bootstrap]]\nagent = "docker"\nfrom = "debian:trixie-slim"\n')
    make_layer("alone", DEBOOTSTRAP.replace('mirror = "debian"\n', ""))
    catalogue = Catalogue((layers,), ())
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr("lumiimg.resolve.bootstrap._SBIN", "")
    monkeypatch.setattr("lumiimg.resolve.bootstrap.apt_mirror", lambda _: None)

    def bootstrap(mirrors: dict[str, str], base: str = "base") -> tuple[str, str, str | None]:
        found = decide(Request(base), PlanContext(catalogue, Mirrors(mirrors), str(programs))).require_lock().bootstrap
        return found.agent, found.origin, found.mirror_url

    named = {"debian": "http://m/debian"}
    assert bootstrap(named)[:2] == ("docker", "debian:trixie-slim")
    with pytest.raises(MissingHereError, match="debootstrap: the program is not on PATH"):
        bootstrap({}, "alone")
    (programs / "debootstrap").write_text("#!/bin/sh\n")
    (programs / "debootstrap").chmod(0o755)
    assert bootstrap(named) == ("debootstrap", "trixie", "http://m/debian")
    assert bootstrap({})[0] == "docker"
    with pytest.raises(MissingHereError, match="no mirror is known \\(--mirror debian=URL\\)"):
        bootstrap({}, "alone")
    monkeypatch.setattr("lumiimg.resolve.bootstrap.apt_mirror", lambda _: "http://own/debian")
    assert bootstrap({}) == ("debootstrap", "trixie", "http://own/debian")


@pytest.mark.threat
def test_no_mirror_with_a_password_gets_anywhere() -> None:
    for word, what in (
        *((word, "contains a password") for word in ("docker.io=https://user:secret@reg", "docker.io=user:secret@reg")),
        ("https://g=http://secret@m", "contains a password"),
        *((word, "is not FROM=TO") for word in ("x", "=y", "x=", "")),
    ):
        with pytest.raises(BadInputError, match=what) as caught:
            parse_mirrors({}, [word])
        assert "secret" not in str(caught.value)
    for url, what in (
        ("http://user:secret@m/debian", "contains a password"),
        ("http://secret@m", "contains a password"),
        ("file:///srv/debian", "is not a valid http"),
        ("http://m/de bian", "is not a valid http"),
        ("http://m/debian\nIncludeCmd: x", "is not a valid http"),
    ):
        with pytest.raises(BadInputError, match=what) as caught:
            Mirrors({"debian": url}).named("debian")
        assert "secret" not in str(caught.value)


MINE = "\n\nTypes: deb\nURIs: http://mine/debian\nSuites: trixie\nComponents: main contrib\n"


def test_only_debians_own_archive_in_use_is_the_mirror_for_debian(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    sources, one_line = tmp_path / "sources.list.d" / "a.sources", tmp_path / "sources.list"
    others = "Types: deb\nURIs: https://others/x/debian\nSuites: x\nComponents:"
    for stanza in (
        f"{others} stable\n",
        f"{others} main\nSigned-By: /etc/apt/keyrings/others.asc\n",
        f"{others} main\nSigned-By:\n -----BEGIN PGP\n .\n mQ==\n",
        f"Enabled: no\n{others} main\n",
        "types: deb\nuris: http://off/debian\nsuites: x\ncomponents: main\nENABLED: False\n",
        "Types: deb-src\nURIs: http://sources/debian\nSuites: x\nComponents: main\n",
        "Types: deb\nURIs: http://[ ftp://x/debian\nSuites: x\nComponents: main\n",
    ):
        sources.write_text(stanza)
        assert apt_mirror("debian", tmp_path) is None, stanza
        sources.write_text(stanza + MINE)
        assert apt_mirror("debian", tmp_path) == "http://mine/debian", stanza
    sources.write_text(
        "Types: deb-src\n deb\nURIs:\n http://security/debian-security\n http://mine/debian\nSuites: x\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.pgp\n"
    )
    assert apt_mirror("debian", tmp_path) == "http://mine/debian"
    sources.write_text(f"Enabled: no\n{others} main\n\n# mine\n{MINE.lstrip()}")
    assert apt_mirror("debian", tmp_path) == "http://mine/debian"
    sources.unlink()
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    for line in (
        "deb [arch=amd64 signed-by=/etc/apt/keyrings/others.asc] https://others/x/debian x main",
        "deb-src http://sources/debian x main",
    ):
        one_line.write_text(line + "\n")
        assert apt_mirror("debian", tmp_path) is None, line
        one_line.write_text(f"{line}\ndeb [ signed-by={keyring} ] http://mine/debian x main contrib\n")
        assert apt_mirror("debian", tmp_path) == "http://mine/debian", line


def test_the_rccl_table_says_what_was_measured() -> None:
    rows = (("2.13.4", 21304, True), ("2.20.5", 22005, True), ("2.22.3", 22203, False), ("2.30.4", 23004, False))
    for version, code, loads in rows:
        found = generation_of(version_of_code(code))
        assert (version_of_code(code), found and found.unique_id_loads_plugin) == (version, loads)


_LIST = ("x", "librccl-net-x.so", "y", "librccl-net-y.so")


def test_what_nccl_net_plugin_makes_of_the_files_name() -> None:
    """As in src/net.cc, src/plugin/net.cc and src/plugin/plugin_open.cc of each version."""
    many = ",".join(f"/{number}" for number in range(20))
    rows: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("2.20.5", "x,y", ("librccl-net-x,y.so",)),
        *((version, "x,y", ("x,y", "librccl-net-x,y.so")) for version in ("2.21.5", "2.22.3", "2.26.6")),
        *((version, f"{comma}x{comma},y{comma}", _LIST) for version in ("2.27.7", "2.29.7") for comma in ("", ",")),
        ("2.25.1", "libx.so", ("libx.so", "librccl-net-libx.so.so")),
        *((version, "libx.so", ("libx.so",)) for version in ("2.26.6", "2.27.7")),
        ("2.27.7", "/opt/x/y,libx.so,libx", ("/opt/x/y", "libx.so", "libx", "librccl-net-libx.so")),
        ("2.26.6", "", ("librccl-net.so",)),
        *(("2.27.7", variable, ()) for variable in ("", ",", "x" * 255, "STATIC", "s")),
        ("2.27.7", "none", ("none", "librccl-net-none.so")),
        *(("2.28.3", variable, ()) for variable in ("", "none", "NONE")),
        ("2.25.1", "s", ("s", "librccl-net-s.so")),
        ("2.27.7", many, tuple(f"/{number}" for number in range(14))),
        ("2.7.8", "x", ()),
    )
    for version, variable, names in rows:
        assert Rccl(version).names(variable) == names, (version, variable)
        assert Rccl(version).opens_none(variable) is (not names and version != "2.7.8"), (version, variable)


ROWS = """
[[release]]
version = "{}"
requires = ["{}"]
source = "{}"
"""


def test_what_no_release_of_a_layer_finds_is_one_refusal_that_names_all_needs_and_the_releases(
    layers: Path, make_layer: MakeLayer
) -> None:
    make_layer("base", BASE.replace("[[", 'has = { glibc = "2.35" }\n[[', 1))
    make_layer("tool", LAYER)
    for rows, asked, need, have, because in (
        ([("2", "glibc>=2.39", "a")], "tool", "glibc>=2.39", "glibc 2.35", "tool 2 requires glibc>=2.39"),
        (
            [("2", "glibc>=2.39", "a"), ("1", "glibc>=2.37", "b"), ("0", "glibc>=2.37", "c")],
            "tool",
            "glibc>=2.39 or glibc>=2.37",
            "glibc 2.35",
            "no release of tool fits (2, 1, 0)",
        ),
        (
            [("2", "glibc>=2.39", "a"), ("2", "glibc>=2.37", "a")],
            "tool",
            "glibc>=2.39 or glibc>=2.37",
            "glibc 2.35",
            "tool 2 requires glibc>=2.39 or glibc>=2.37",
        ),
        ([("2", "glibc", "a"), ("1", "glibc", "a")], "tool==9", "tool==9", "tool 2, 1", "no such release of tool"),
        ([], "tool==9", "tool==9", "tool", "tool has only one version: leave the version out"),
    ):
        (layers / "tool/layer.toml").write_text(LAYER + "".join(ROWS.format(*row) for row in rows))
        (rule,) = decide(Request("base", (asked,)), PlanContext(Catalogue((layers,), ()))).rules
        assert (rule.need, rule.have) == (need, have), rows
        assert because in rule.because
        assert rule.source in {"; ".join(dict.fromkeys(row[2] for row in rows[:2])), "the tests"}


def test_no_layer_is_brought_in_for_what_only_its_releases_have(layers: Path) -> None:
    """RCCL is in torch's wheels: a plugin on an image without RCCL is refused, and torch is not added."""
    torch = f'{LAYER}[[release]]\nversion = "2.9.1"\nhas = {{ rccl = "2.26.6" }}\nsource = "the tests"\n'
    catalogue = catalogue_of(layers, box=BASE, torch=torch, plugin=f'{LAYER}requires = ["rccl"]\n')
    (rule,) = decide(Request("box", ("plugin",)), PlanContext(catalogue)).rules
    assert (rule.need, rule.because) == ("rccl", "plugin requires rccl")
    assert locked(catalogue, "box", "torch", "plugin").layers[1].name == "plugin"


def test_a_layer_without_rows_is_taken_as_its_argument_says_and_in_another_version_with_a_doubt(
    catalogue: Catalogue,
) -> None:
    for asked, version, doubted in (
        ("plugin", None, False),
        ("plugin==1.0", None, False),
        ("plugin==1.7", "1.7", True),
    ):
        plan = decide(Request("base", (asked,)), PlanContext(catalogue))
        assert (plan.layers[-1].version, plan.is_doubtful) == (version, doubted), asked
    assert "nothing is known about this release" in plan.rules[-1].because
    assert "v1.7.tar.gz" in plan.require_lock().layers[0].sources[0].location
