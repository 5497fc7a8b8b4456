"""A lock is read back unchanged; all that a stranger's lock builds is in the catalogue, listed, or free to choose."""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
import itertools
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lumiimg.catalog.catalogue import Catalogue, open_catalogue
from lumiimg.core.errors import BadInputError, LumiimgError, RefusedError
from lumiimg.definition.text import DefinitionError
from lumiimg.definition.writer import write_chain
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.resolve import lock_check
from lumiimg.resolve.lock import locked_wheel
from lumiimg.resolve.lock_check import lock_of, outside_catalogue
from lumiimg.resolve.lock_file import read_document, to_text
from lumiimg.resolve.python_target import PythonTarget
from tests.fuzz.locks import lock_of_document, with_digests
from tests.shared.layer_builder import BASE, LAYER, catalogue_of, locked
from tests.shared.programs import examples, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumiimg.resolve.lock import Lock

INDEX, GENERAL = "https://download.pytorch.org/whl/rocm6.4", "https://pypi.test/simple"
MIRRORS = Mirrors({"pypi": GENERAL})
BOX = BASE.replace("[[", 'provides = ["python3"]\nhas = { python = "3.12", glibc = "2.39", jax = "0.9" }\n[[', 1)
WHOLE = f"""\
{LAYER}packages = ["egg"]
[arguments.COMMIT]
default = "one"
help = "which"
[arguments.VERSION]
default = "2.0"
help = "which"
[arguments.ARCH]
default = "gfx90a"
help = "which"
pattern = "gfx[0-9a-f]+"
[sources.made]
url = "https://x.test/{{COMMIT}}.tar.gz"
file = "t.tar.gz"
key = "{{COMMIT}}"
source = "s"
[sources.published]
url = "https://x.test/published.tar.gz"
file = "p.tar.gz"
key = "one"
source = "s"
[sources.published.sha256]
one = "{"0" * 64}"
[[release]]
version = "2.0"
wheels = ["snake==2.0+rocm6.4", "torch==2.9.1+rocm6.4"]
indexes = ["{INDEX}"]
without = ["worm"]
source = "the tests"
[unlisted]
read = "metadata"
projects = ["snake"]
range = ">=1"
arguments = {{ COMMIT = "{{VERSION}}" }}
wheels = ["snake=={{VERSION}}"]
indexes = ["{INDEX}"]
source = "s"
date = 2026-01-01
"""
ZEROS, ONES = "0" * 64, "1" * 64
Document = dict[str, Any]


@pytest.fixture(autouse=True)
def _no_pip_says_which_index_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_check, "public_index", lambda: ())


def read_again(lock: bytes, path: Path, catalogue: Catalogue) -> Lock:
    path.write_bytes(lock)
    return lock_of(read_document(path), [catalogue], MIRRORS, "/bin", path)


@dataclass(frozen=True)
class Stranger:
    """Somebody who changes a lock in which everything comes from the catalogue."""

    catalogue: Catalogue
    document: Document
    path: Path

    def lock(self, change: Callable[[Document], object]) -> Lock:
        """Return the lock as it is read after a change."""
        document = copy.deepcopy(self.document)
        change(document)
        return read_again(lock_of_document(document), self.path, self.catalogue)

    def listed(self, change: Callable[[Document], object]) -> list[str]:
        """Return what is listed about the changed lock."""
        return outside_catalogue(self.lock(change), MIRRORS)


def made(folder: Path, box: str = BOX, whole: str = WHOLE, **arguments: str) -> Stranger:
    layers = folder / "layers"
    layers.mkdir()
    catalogue = catalogue_of(layers, box=box, whole=whole)
    values = {"VERSION": "2.0", **arguments}
    named = {f"whole.{name}": value for name, value in values.items()}
    lock = with_digests(locked(catalogue, "box", "whole", arguments=named))
    places = [*(f"{INDEX}/{wheel.file}" for wheel in lock.layers[0].wheels), f"{GENERAL}/{file_of('egg')}"]
    layer = replace(lock.layers[0], wheels=tuple(locked_wheel(place, digest(place)) for place in places))
    return Stranger(catalogue, tomllib.loads(to_text(replace(lock, layers=(layer,)))), folder / "lumiimg.lock")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def file_of(project: str, version: str = "1.0") -> str:
    return f"{project}-{version}-py3-none-any.whl"


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return made(tmp_path)


def more(*projects: str, index: str = GENERAL) -> Callable[[Document], object]:
    """Return a change that adds wheels of an index."""
    added = {f"{index}/{file_of(project)}": ONES for project in projects}
    return lambda document: document["layer"][0]["wheels"].update(added)


def moved(old: str, new: str) -> Callable[[Document], object]:
    """Return a change that replaces a text in the addresses of wheels."""

    def change(document: Document) -> None:
        layer = document["layer"][0]
        layer["wheels"] = {url.replace(old, new): sha256 for url, sha256 in layer["wheels"].items()}

    return change


def with_row(first_download: str | None = None, **row: object) -> Callable[[Document], object]:
    """Return a change that adds a release without a row, with what the stranger claims was read of it."""

    def change(document: Document) -> None:
        entry = document["layer"][0]
        document["request"] |= {"add": ["whole"], "arguments": {}}
        entry["release"] = "9.9"
        entry["row"] = {"version": "9.9", "read": dt.date(2026, 1, 1), "source": "s", "without": ["worm"], **row}
        entry["wheels"] = {f"{INDEX}/{file_of('snake', '9.9')}": ONES}
        if first_download is not None:
            document["first-download"] = {first_download: ONES}

    return change


def asking(**values: object) -> Callable[[Document], object]:
    return lambda document: document["request"].update(values)


def both(*changes: Callable[[Document], object]) -> Callable[[Document], object]:
    return lambda document: [change(document) for change in changes]


LISTED = {
    "a pinned wheel of the general index": (moved(INDEX, GENERAL), ("snake 2.0+rocm6.4", "torch 2.9.1+rocm6.4")),
    "one of another index": (moved("download.pytorch.org", "other.test"), ("snake 2.0", "torch 2.9.1")),
    "another version of a pinned one": (moved("torch-2.9.1+rocm6.4", "torch-2.9.1+cu128"), ("torch 2.9.1+cu128",)),
    "a free wheel of the layer's index": (moved(f"{GENERAL}/egg", f"{INDEX}/egg"), ("egg 1.0",)),
    "what the base has": (more("jax"), ("jax 1.0",)),
    "what the release leaves out": (more("worm", "triton"), ("triton 1.0", "worm 1.0")),
    "what is for CUDA": (more("nvidia_cublas_cu12"), ("nvidia-cublas-cu12 1.0",)),
    "a release without a row, whatever is said of it": (
        both(
            with_row(
                "https://x.test/evil.tar.gz",
                arguments={"COMMIT": "evil"},
                indexes=["https://evil.test"],
                wheels=["snake==9.9"],
            ),
            moved(INDEX, "https://evil.test"),
        ),
        (
            "the release whole 9.9, which is not in the catalogue",
            "source made of whole from https://x.test/evil",
            "Python package snake 9.9 of whole from https://evil.test/",
        ),
    ),
    "a source of a stranger": (
        asking(sources={"published": f"https://evil.test/x#sha256={ZEROS}"}),
        ("source published of whole from https://evil.test/x",),
    ),
    "a commit": (
        lambda document: document.update(
            {
                "request": {**document["request"], "arguments": {"whole.COMMIT": "evil"}},
                "first-download": {"https://x.test/evil.tar.gz": ONES},
            }
        ),
        ("source made of whole from https://x.test/evil.tar.gz",),
    ),
}


@pytest.mark.threat
@pytest.mark.parametrize("case", LISTED)
def test_what_a_lock_takes_from_elsewhere_is_listed(stranger: Stranger, case: str) -> None:
    change, reported = LISTED[case]
    found = stranger.listed(change)
    assert len(found) == len(reported), found
    assert [words for words in reported if not any(words in line for line in found)] == []


@pytest.mark.threat
def test_a_base_that_the_catalogue_names_by_its_digest_is_that_one(tmp_path: Path) -> None:
    stranger = made(tmp_path, BOX.replace('"busybox"', f'"busybox@sha256:{ZEROS}"'))
    assert stranger.listed(lambda _: None) == []
    with pytest.raises(LumiimgError, match=r"'base.digest' is not that of base.from"):
        stranger.lock(lambda document: document["base"].update(digest=f"sha256:{ONES}"))


@pytest.mark.threat
def test_a_torch_of_the_general_index_takes_no_layers_place(tmp_path: Path) -> None:
    free = f'{LAYER}requires = ["python3"]\npackages = ["egg"]\n'
    of_torch = (
        f"{WHOLE.partition('packages')[0]}[[release]]{WHOLE.partition('[[release]]')[2].partition('[unlisted]')[0]}"
    )
    catalogue = catalogue_of(
        tmp_path,
        box=BOX,
        low=free,
        pytorch=of_torch.replace("[[release]]", 'provides = ["torch"]\n[[release]]', 1),
        high=free.replace('"python3"', '"torch"'),
    )
    lock = with_digests(locked(catalogue, "box", "low", "pytorch", "high"))
    stranger = Stranger(catalogue, tomllib.loads(to_text(lock)), tmp_path / "lumiimg.lock")

    def replaced(document: Document) -> None:
        document["request"]["add"] = ["low", "high"]
        low, _, high = document["layer"]
        document["layer"] = [{**low, "wheels": {f"{GENERAL}/{file_of('torch', '2.9.1')}": ONES}}, high]

    with pytest.raises(LumiimgError, match="high requires torch, which is not among the layers below it"):
        stranger.lock(replaced)
    (reported,) = stranger.listed(both(replaced, lambda document: document["layer"].pop(), asking(add=["low"])))
    assert "Python package torch 2.9.1 of low from https://pypi.test" in reported


def test_what_is_of_the_catalogue_is_known_where_an_argument_has_to_be_given(tmp_path: Path) -> None:
    needed = f'{WHOLE}[arguments.NEEDED]\ndefault = ""\nhelp = "which"\npattern = ".+"\n'
    assert made(tmp_path, whole=needed, NEEDED="x").listed(lambda _: None) == []


# -- any change --

CHOSEN = {
    ("base", "digest"): "which image of the repository",
    ("gpu",): "for which GPU",
    ("request", "arguments", "whole.VERSION"): "arguments",
    ("layer", 0, "wheels"): "packages of the general index; a digest is compared with what the index has",
    ("first-download", "https://x.test/one.tar.gz"): "digests that nobody published",
}
"""What the author of a lock may choose (docs/security.md), by its place in the lock."""
HEAD = {"format", "lumiimg", "digest"}
TEXTS = (
    *("", "x", "0", "9.9", "main", "evil", "../x", "/etc/passwd", "~/x", "x y", "-x", "$(id)", "{COMMIT}"),
    *("box", "whole", "gfx942", "docker", "localimage", "host", "https://evil.test/x", "docker://evil.test/x"),
    *(f"sha256:{ONES}", ONES),
)
HOSTS = (
    "evil.test",
    "download.pytorch.org",
    "download-r2.pytorch.org",
    "pypi.test",
    "pypi.test:8443",
    "pypi.test.evil",
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every value of a document, including tables, with its path."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in entries:
        yield (*path, key), value
        yield from places(value, (*path, key))


def changed(place: tuple[Any, ...], value: object) -> Callable[[Document], object]:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    return change


def built(lock: Lock) -> object:
    return [*write_chain(lock)], lock.bootstrap.agent, lock.bootstrap.image


@pytest.mark.threat
def test_whatever_text_of_a_lock_is_changed_what_is_built_is_the_same_or_that_is_listed(stranger: Stranger) -> None:
    good, taken = built(stranger.lock(lambda _: None)), 0
    of_all = [value for _, value in places(stranger.document) if isinstance(value, str)]
    optional: list[tuple[tuple[Any, ...], str]] = [(("request", key), "") for key in ("host", "site", "exclude-newer")]
    optional += [(("layer", 0, "row"), ""), (("base", "release"), ""), (("base", "image"), ""), (("gpu",), "")]
    cases = [
        (place, value)
        for place, old in [*places(stranger.document), *optional]
        if place[0] not in HEAD and isinstance(old, str)
        for value in sorted({*TEXTS, *of_all, f"{old}x", f"x{old}", old[:-1], old[:-1] + "1", old.upper()} - {old})
    ]
    assert len(cases) > 1000
    for place, value in sampled(cases, 150):
        try:
            lock = stranger.lock(changed(place, value))
            new = built(lock)
        except LumiimgError:
            continue
        taken += 1
        if new != good and not any(place[: len(chosen)] == chosen for chosen in CHOSEN):
            assert outside_catalogue(lock, MIRRORS), (place, value)
    assert taken > 5


@pytest.mark.threat
def test_wherever_a_wheel_of_a_lock_is_from_it_is_listed_unless_its_project_is_from_there(stranger: Stranger) -> None:
    projects = ("snake", "torch", "egg", "jax", "worm", "triton", "nvidia_cublas", "Torch", "to.rch", "t_orch")
    versions = ("1.0", "2.0+rocm6.4", "2.9.1+rocm6.4", "2.9.1", "2.9.1+rocm6.4.1", "2.9.1+ROCM6.4")
    allowed = {(host, *pin) for host in HOSTS[1:3] for pin in (("snake", versions[1]), ("torch", versions[2]))}
    allowed |= {("pypi.test", free, version.lower()) for free in ("egg", "to.rch", "t_orch") for version in versions}
    where = [("https", host) for host in HOSTS] + [("http", HOSTS[1]), ("ftp", HOSTS[1])]
    cases = [*itertools.product(stranger.document["layer"][0]["wheels"], where, projects, versions)]
    assert len(cases) > 1000
    unlisted = 0
    for old, (scheme, host), project, version in sampled(cases, 150):
        try:
            found = stranger.listed(moved(old, f"{scheme}://{host}/x/{file_of(project, version)}"))
        except LumiimgError:
            continue
        if not found:
            unlisted += 1
            assert scheme == "https"
            assert (host, project.lower(), version.lower()) in allowed
    assert unlisted > 0


def test_a_version_that_an_image_names_is_no_template(stranger: Stranger) -> None:
    image = {"has": {"python": "{VERSION}", "glibc": "{"}, "provides": ["python3"]}
    base = {"name": "box", "agent": "localimage", "from": "/x.sif", "image": image}
    lock = stranger.lock(lambda document: document.update(base=base))
    assert (lock.base.versions, PythonTarget.from_versions(lock.versions)) == (image["has"], None)


# -- what is read back, and what is accepted --

FREE = (
    LAYER + '[arguments.NOTE]\ndefault = ""\nhelp = "free text"\n[arguments.OTHER]\ndefault = "x"\nhelp = "more"\n'
    '[sources.one]\nurl = "https://h.test/t.tar.gz"\nfile = "t.tar.gz"\nkey = "one"\nsource = "s"\n'
    f'[sources.one.sha256]\none = "{"0" * 64}"\n'
)
TEXT = st.text(st.characters(exclude_characters="\0"), max_size=30)
"""What a user can type; a byte that is not UTF-8 appears as a surrogate."""
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A base, and a layer whose arguments take any text."""
    return catalogue_of(tmp_path_factory.mktemp("layers"), base=BASE, free=FREE)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=SLOW)
@given(note=TEXT, other=TEXT, address=st.text("abc/.-_%~", max_size=20))
@example(note="\udcff", other="", address="")
@example(note="two\nlines %post {{ x }} \r\x1b[2J \x85\u2028", other="'\"`$(id)\\", address="t.tar.gz")
def test_any_text_of_a_user_is_preserved_or_refused(
    own: Catalogue, tmp_path: Path, note: str, other: str, address: str
) -> None:
    arguments = {"free.NOTE": note, "free.OTHER": other}
    sources = {"one": f"https://h.test/{address}#sha256={'1' * 64}"}
    try:
        lock = with_digests(locked(own, "base", "free", arguments=arguments, sources=sources))
        text = to_text(lock)
    except BadInputError as error:
        assert str(error).isprintable()  # noqa: PT017 - or nothing is raised
        return
    assert (again := read_again(text.encode(), tmp_path / "lumiimg.lock", own)) == lock
    turned = locked(own, "base", "free", arguments=dict(reversed(arguments.items())), sources=sources)
    assert to_text(with_digests(turned)) == text, "the order in which arguments are given is no part of a lock"
    try:
        chain = write_chain(lock)
    except DefinitionError:
        return
    assert write_chain(again) == chain


CATALOGUE = open_catalogue({"HOME": "/nonexistent"})
SHIPPED = to_text(with_digests(locked(CATALOGUE, "rocm-6.4.4", "vllm")))
DOCUMENT = tomllib.loads(SHIPPED)
PLACES = [path for path, _ in places(DOCUMENT) if path[0] not in HEAD]
TABLES = [path for path in PLACES if isinstance(path[-1], int) and path[0] not in {"rule", "request"}]
"""Paths of the layers in a lock, which include those that `request` names."""


@pytest.fixture
def shipped(tmp_path: Path) -> Stranger:
    """Somebody who changes a lock of the shipped catalogue."""
    return Stranger(CATALOGUE, DOCUMENT, tmp_path / "lumiimg.lock")


@pytest.mark.threat
@settings(max_examples=examples(20), deadline=None, suppress_health_check=SLOW)
@given(place=st.one_of(st.sampled_from(PLACES), st.sampled_from(TABLES)), count=st.sampled_from([0, 2]))
def test_a_value_of_another_type_and_what_is_left_out_or_there_twice_is_refused(
    shipped: Stranger, place: tuple[Any, ...], count: int
) -> None:
    with pytest.raises((BadInputError, RefusedError)) as caught:
        shipped.lock(changed(place, 7))
    named = next(str(key) for key in reversed(place) if isinstance(key, str))
    assert named in str(caught.value)
    if place not in TABLES:
        return

    def repeated(array: Any) -> None:
        for key in place[:-1]:
            array = array[key]
        array[place[-1] : place[-1] + 1] = [array[place[-1]]] * count

    other = r"twice|need each other|is missing|but the lock has|is in the lock|not among the layers"
    with pytest.raises(BadInputError, match=other):
        shipped.lock(repeated)


@pytest.mark.threat
def test_a_lock_that_is_not_of_one_mind_is_refused(shipped: Stranger) -> None:
    for place, value, expected in (
        (("request", "base"), "rocm-7.0", "request.base is 'rocm-7.0', and the base is rocm-6.4.4"),
        (("request", "add"), ["sglang"], "request.add names sglang, which is not among the layers"),
        (("request", "arguments"), {"vllm.ARCH": "x"}, "argument vllm.ARCH is 'x', which does not match"),
        (("request", "arguments"), {"vllm.TEA": "x"}, "no layer of this image uses the argument vllm.TEA"),
        (("request", "sources"), {"vllm": "/etc/passwd"}, "the source vllm: '/etc/passwd' is not a valid"),
        (("request", "sources"), {"vllm": f"a.tar#sha256={'0' * 64}"}, "'a.tar' is not a valid http(s) address"),
        (("request", "sources"), {"tea": "https://h.test/tea"}, "no layer of this image uses a source named 'tea'"),
        (("first-download",), {"https://tea": "0" * 64}, "is missing, or does not belong in the lock"),
        (
            ("layer", 0, "wheels"),
            {"https://h.test/tea": "0" * 64},
            "which is not a plain address that ends in the name",
        ),
        (("base", "release"), "9", "'9' is not a release of rocm-6.4.4"),
        (("base", "wheels"), {"https://h.test/a-1-py3-none-any.whl": "0" * 64}, "has Python packages, but needs none"),
        (("base", "agent"), "oras", "'base.agent' is 'oras'; one of debootstrap, docker, "),  # of an earlier lumiimg
        # where this machine finds things
        *((("request", key), [], f"key 'request.{key}' is not known") for key in ("mirrors", "layers", "brought")),
        (("site",), "x" * (2 << 20), "is larger than 2097152 bytes"),
    ):
        with pytest.raises(BadInputError) as caught:
            shipped.lock(changed(place, value))
        assert expected in str(caught.value)
        assert len(str(caught.value)) < 4000, expected


@pytest.mark.threat
def test_a_row_of_a_lock_that_makes_no_sense_is_refused(shipped: Stranger) -> None:
    entry = {**DOCUMENT["layer"][0], "release": "9.9", "wheels": {}}
    for row, expected in (
        ({"wheels": ["a==1.."]}, "a pin is not valid"),
        ({"has": {"x": "{NOPE}"}}, "has.x contains {NOPE}"),
        ({"has": {"net-api": "many"}}, "has.net-api is 'many'; the number of an API"),
        ({"arguments": {"NOPE": "x"}}, "arguments.NOPE is not"),
        ({"version": "nine"}, "not of a release '9.9' that was read"),
        ({"read": None}, "not of a release '9.9' that was read"),
    ):
        written = {"version": "9.9", "read": dt.date(2026, 11, 1), "source": "s", **row}
        entry["row"] = {key: value for key, value in written.items() if value is not None}
        with pytest.raises(BadInputError) as caught:
            shipped.lock(both(asking(add=[]), changed(("layer", 0), entry)))
        assert expected in str(caught.value), row


@pytest.mark.threat
def test_what_the_head_of_a_lock_says_beside_format_and_digest_is_noticed(tmp_path: Path) -> None:
    """The digest covers only what follows the head."""
    for line in ('site = "lumi"', 'layer = [{name = "netprobe"}]', 'request = {base = "x"}'):
        with pytest.raises(BadInputError, match="was changed after it was written"):
            read_again(
                SHIPPED.replace("format = 3\n", f"format = 3\n{line}\n").encode(), tmp_path / "a.lock", CATALOGUE
            )
