"""Downloads that lose the connection, are interrupted or killed, and resume; several at once; real loopback servers."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.build.definition_files import write_with_sources
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError
from lumiimg.core.files import file_sha256
from lumiimg.definition.definition import Definition, Header, Sections, StagedFile
from lumiimg.engine.engine import Engine, EngineKind
from lumiimg.fetch import http
from lumiimg.fetch.download import OLD_S, claim_partial
from lumiimg.fetch.http import Http
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.store import Store
from lumiimg.resolve.lock import LockedSource
from tests.shared.build_machine import build_machine, layers_by
from tests.shared.layer_builder import BASE, LAYER, MakeLayer
from tests.shared.loopback import Asked, Reply, listening
from tests.shared.programs import patient, wait_until
from tests.shared.tls import CERTIFICATE, certified

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from lumiimg.build.layer_build import LayerBuild

DATA = bytes(range(256)) * 1200
CUT = 100_000
ENGINE = Engine(Path("/x/apptainer"), EngineKind.APPTAINER, "1.4.5", frozenset())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


SHA = sha256(DATA)


@dataclass
class Server:
    """The content of a server, its misbehaviour, and the requests to it."""

    url: str = ""
    data: bytes = DATA
    knows_ranges: bool = True
    statuses: dict[str, int] = field(default_factory=dict)
    """Status by path, instead of 200."""
    before: dict[str, Callable[[], bool]] = field(default_factory=dict)
    """Conditions that an answer waits for, by path."""
    range_status: int | None = None
    """Status of the answer to a Range, instead of 206."""
    content_range: str | None = "bytes {first}-{last}/{total}"
    part_bytes: int | None = None
    """Most bytes sent in answer to a Range (RFC 9110, 15.3.7.1: a part of the range is a valid answer)."""
    cuts: list[int] = field(default_factory=list)
    """Bytes after which the connection is lost, one number for each of the first answers."""
    pauses: bool = False
    """Whether it goes silent until the test ends, instead of losing the connection."""
    drips: bool = False
    """Whether it sends a byte now and then, instead of losing the connection."""
    location: str | None = None
    asked: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def ranges(self) -> list[str | None]:
        return [one.range for one in self.asked]

    def answer(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        if asked.path in self.before:
            wait_until(self.before[asked.path])
        status, headers, body = self.whole(asked)
        cut = self.cuts.pop(0) if self.cuts else len(body)
        return Reply(status, self.pieces(body, cut), headers, len(body))

    def pieces(self, body: bytes, cut: int) -> Iterator[bytes]:
        yield body[:cut]
        if cut < len(body) and self.pauses:
            self.over.wait()
        while cut < len(body) and self.drips and not self.over.wait(0.02):
            yield body[cut : cut + 1]
            cut += 1

    def whole(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        """Return the answer without a lost connection."""
        if self.location is not None:
            return 302, {"Location": self.location}, b""
        status = self.statuses.get(asked.path, 200)
        if status != 200:
            return status, {}, b""
        if asked.range is None or not self.knows_ranges:
            return 200, {}, self.data
        if self.range_status is not None:
            return self.range_status, {}, b""
        first = int(asked.range.removeprefix("bytes=").removesuffix("-"))
        if first >= len(self.data):
            return 416, {"Content-Range": f"bytes */{len(self.data)}"}, b""
        part = self.data[first:][: self.part_bytes]
        where = (self.content_range or "").format(first=first, last=first + len(part) - 1, total=len(self.data))
        return 206, {"Content-Range": where} if where else {}, part


@contextlib.contextmanager
def running(server: Server, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with listening(server.answer, tls) as server.url:
        yield server
        server.over.set()


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.fetch.download._PAUSE_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lumiimg.fetch.download._ATTEMPTS", 1)


def store(folder: Path, jobs: int = 1) -> Store:
    """Return a store as in a new run."""
    return Store(folder, Http(), Mirrors({}), jobs)


def partials(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*"))


def broken_off(server: Server, folder: Path, digest: str | None = SHA, cut: int = CUT) -> None:
    """Leave the beginning of the file, as a failed run does."""
    server.cuts = [cut]
    with pytest.raises(FailedError, match="connection lost"):
        get(server, folder, digest)
    server.asked.clear()


def get(server: Server, folder: Path, digest: str | None = SHA) -> str:
    """Fetch the file in a new run, with or without its digest; return the digest of what is stored."""
    new = store(folder)
    kept = new.get(f"{server.url}/file", digest)
    assert list(folder.iterdir()) == [kept], "nothing else is left"
    return sha256(kept.read_bytes())


@pytest.mark.threat
def test_a_download_that_breaks_off_asks_for_the_rest(server: Server, folder: Path) -> None:
    server.cuts = [CUT, 50_000]
    assert get(server, folder) == SHA
    assert server.ranges == [None, f"bytes={CUT}-", f"bytes={CUT + 50_000}-"]
    assert sum(one.served_bytes for one in server.asked) == len(DATA)


@pytest.mark.threat
def test_without_a_digest_a_download_begins_again_and_keeps_nothing(server: Server, folder: Path) -> None:
    server.cuts = [CUT, 50_000]
    assert get(server, folder, None) == SHA
    assert server.ranges == [None, None, None]
    (folder / SHA).unlink()
    server.cuts = [CUT] * 4
    with pytest.raises(FailedError, match="connection lost"):
        store(folder).get(f"{server.url}/file", None)
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("one_try")
@pytest.mark.threat
def test_a_part_of_the_rest_is_not_taken_for_the_rest(server: Server, folder: Path) -> None:
    broken_off(server, folder)
    server.part_bytes = 10
    with pytest.raises(FailedError, match=rf"connection lost: received {CUT + 10} bytes of {len(DATA)}"):
        store(folder).get(f"{server.url}/file", SHA)
    server.part_bytes = None
    assert get(server, folder) == SHA


REST = f"bytes={CUT}-"
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str | None]]] = {
    "the same": ({}, {}, [REST]),
    "no ranges": ({}, {"knows_ranges": False}, [REST]),
    "no such range": ({}, {"range_status": 416}, [REST, None]),
    "another range": ({}, {"content_range": "bytes {total}-{last}/{total}"}, [REST, None]),
    "a range of nothing": ({}, {"content_range": None}, [REST, None]),
    # pieces of two different files are discarded
    "another file": ({"data": DATA[::-1]}, {"data": DATA}, [REST, None]),
}
"""State of the server when the connection is lost, its state afterwards, and the ranges requested then."""


@pytest.mark.usefixtures("one_try")
@pytest.mark.threat
def test_an_answer_that_is_not_the_rest_is_not_put_behind_the_beginning(folder: Path) -> None:
    for change, (before, after, ranges) in CHANGES.items():
        with running(replace(Server(), **before)) as server:
            broken_off(server, folder)
            for name, value in after.items():
                setattr(server, name, value)
            assert get(server, folder) == SHA, change
            assert server.ranges == ranges, change
        shutil.rmtree(folder)


@pytest.mark.usefixtures("one_try")
@pytest.mark.threat
def test_what_is_wrong_even_from_zero_is_refused_and_not_stored(server: Server, folder: Path) -> None:
    broken_off(server, folder)
    server.data = DATA[::-1]
    with pytest.raises(FailedError, match=f"^{server.url}/file: has the wrong digest"):
        get(server, folder)
    assert server.ranges == [f"bytes={CUT}-", None]
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("one_try")
@pytest.mark.threat
def test_a_range_follows_a_redirect_to_another_host_and_a_login_does_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    tls = certified()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(CERTIFICATE))
    with running(Server(), tls) as front, running(Server(), tls) as store_of_it:
        front.location = f"{store_of_it.url}/signed?key=secret"
        store_of_it.cuts = [CUT]
        with pytest.raises(FailedError, match=f"^{store_of_it.url}/signed: connection lost"):
            get(front, folder)
        assert get(front, folder) == SHA
        assert "authorization" in front.asked[1].headers
    assert store_of_it.ranges == [None, f"bytes={CUT}-"]
    assert not any("authorization" in one.headers for one in store_of_it.asked)


@pytest.mark.usefixtures("one_try")
@pytest.mark.threat
def test_limits_hold_for_the_whole_file(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off(server, folder)
    monkeypatch.setattr("lumiimg.fetch.download.SIZE_LIMIT_BYTES", len(DATA) - 1)
    with pytest.raises(FailedError, match=f"is larger than {len(DATA) - 1} bytes"):
        get(server, folder)
    assert list(folder.iterdir()) == []


# --- killed, interrupted, at the same time


def came_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("part-*"))


@pytest.mark.threat
def test_two_runs_at_once_do_not_touch_each_others_beginnings(server: Server, folder: Path) -> None:
    with claim_partial(folder, SHA) as other:
        other.write_bytes(DATA[:CUT])
        assert store(folder).get(f"{server.url}/file", SHA).read_bytes() == DATA
        assert server.ranges == [None]
        assert other.read_bytes() == DATA[:CUT]
    assert len(partials(folder)) == 1


def aged(partial: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(partial, (then, then))


@pytest.mark.threat
def test_a_beginning_of_another_node_is_taken_once_no_download_can_still_be_running(
    server: Server, folder: Path
) -> None:
    with claim_partial(folder, SHA) as mine:
        mine.write_bytes(DATA[:CUT])
        theirs = mine.with_name(mine.name.replace(f"@{socket.gethostname()}", "@another-node"))
        mine.rename(theirs)
    assert store(folder).get(f"{server.url}/file", SHA).read_bytes() == DATA
    assert partials(folder) == [theirs]
    (folder / SHA).unlink()
    aged(theirs, OLD_S + 60)
    assert get(server, folder) == SHA
    assert server.ranges == [None, f"bytes={CUT}-"]


@pytest.mark.threat
def test_a_beginning_of_another_user_is_left_alone_and_old_ones_of_mine_go(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with claim_partial(folder, SHA) as theirs:
        theirs.write_bytes(DATA[:CUT])
    (left,) = partials(folder)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert store(folder).get(f"{server.url}/file", SHA).read_bytes() == DATA
    assert server.ranges == [None]
    assert partials(folder) == [left]
    aged(left, OLD_S + 60)
    with claim_partial(folder, SHA):
        assert left.exists()
    monkeypatch.undo()
    with claim_partial(folder, "0" * 64):
        assert not left.exists()


@pytest.mark.parametrize("is_large_first", [True, False])
def test_of_several_beginnings_the_largest_stays(folder: Path, is_large_first: bool) -> None:
    large, small = DATA[:CUT], DATA[:10]
    with claim_partial(folder, SHA) as one, claim_partial(folder, SHA) as other:
        one.write_bytes(large if is_large_first else small)
        other.write_bytes(small if is_large_first else large)
    (left,) = partials(folder)
    assert left.read_bytes() == large
    for number, data in enumerate((small, large, small)):
        (folder / f"part-{SHA}.{number}").write_bytes(data)  # as an earlier lumiimg named them
    with claim_partial(folder, SHA) as mine:
        assert mine.read_bytes() == large
        assert partials(folder) == [mine]


@pytest.mark.threat
def test_what_is_not_a_file_is_no_beginning(server: Server, folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (tmp_path / "mine").write_bytes(DATA[:CUT])
    left = folder / f"part-{SHA}"
    for make in (os.mkfifo, os.mkdir, lambda name: name.symlink_to(tmp_path / "mine")):
        make(left)
        assert store(folder).get(f"{server.url}/file", SHA).read_bytes() == DATA
        assert (server.ranges, partials(folder)) == ([None], [left])
        left.rename(tmp_path / make.__name__)
        (folder / SHA).unlink()
        server.asked.clear()
    assert (tmp_path / "mine").read_bytes() == DATA[:CUT]


def source(server: Server, name: str, data: bytes = DATA) -> LockedSource:
    return LockedSource(name, name.upper(), name, sha256(data), f"{server.url}/{name}")


def test_a_file_of_two_names_is_fetched_once_and_read_once_unless_it_is_touched(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def reading(file: Path) -> str:
        read.append(file)
        return file_sha256(file)

    monkeypatch.setattr("lumiimg.fetch.store.file_sha256", reading)
    one, other = source(server, "one"), source(server, "other")
    mine = store(folder, 2)
    for _ in range(2):
        assert mine.sources([one, other], lambda _: None) == {one: folder / SHA, other: folder / SHA}
    assert ([asked.path for asked in server.asked], read) == (["/one"], [])
    store(folder).sources([one], lambda _: None)
    assert read == [folder / SHA], "by another command"
    (folder / SHA).write_bytes(DATA[::-1])
    aged(folder / SHA, 60)  # else within one tick of the clock of files
    assert mine.sources([one], lambda _: None)[one].read_bytes() == DATA


def test_one_that_fails_stops_the_others_which_go_on_next_time(server: Server, folder: Path) -> None:
    server.cuts, server.drips = [CUT], True
    server.statuses["/gone"] = 404
    server.before["/gone"] = lambda: came_bytes(folder) >= CUT
    large, gone, third = source(server, "large"), source(server, "gone", b"1"), source(server, "third", b"2")
    with pytest.raises(FailedError, match=f"^{server.url}/gone: the server answers 404"):
        store(folder, 2).sources([large, gone, third], lambda _: None)
    assert sorted(one.path for one in server.asked) == ["/gone", "/large"]
    (left,) = partials(folder)
    assert left.suffix != ".lumiimg-partial", "it is nobody's"
    came = came_bytes(folder)
    assert came >= CUT
    server.asked.clear()
    store(folder).sources([large], lambda _: None)
    assert server.ranges == [f"bytes={came}-"]


def test_ctrl_c_ends_downloads_promptly_in_one_line_and_keeps_what_came(
    server: Server, layers: Path, make_layer: MakeLayer, clean_home: Path, tmp_path: Path
) -> None:
    make_layer("box", BASE)
    words = ["build", "--layers", str(layers), "--base", "box", "--definitions", str(tmp_path / "defs")]
    for name in ("one", "two"):
        make_layer(name, f'{LAYER}[sources.{name}]\nurl = "http://x/"\nfile = "{name}"\nkey = "1"\nsource = "tests"\n')
        words += ["--add", name, "--source", f"{name}={server.url}/{name}#sha256={sha256(DATA + name.encode())}"]
    server.cuts, server.pauses = [CUT, CUT], True
    folder = clean_home / ".cache" / "lumiimg" / "sources"
    with subprocess.Popen([sys.executable, "-m", "lumiimg", *words], stderr=subprocess.PIPE, text=True) as child:
        try:
            wait_until(lambda: came_bytes(folder) >= 2 * CUT)
            begin = time.monotonic()
            child.send_signal(signal.SIGINT)
            _, error = child.communicate(timeout=patient(20))
            assert time.monotonic() - begin < patient(3)
        finally:
            child.kill()
    assert (child.returncode, error) == (130, "lumiimg: interrupted\n")
    assert len(partials(folder)) == 2


_HELD = """
import time
from lumiimg.fetch.store import run_parallel
run_parallel({1: lambda: time.sleep(600), 2: lambda: 1 // 0}, 2, lambda: None)
"""


def test_a_download_that_cannot_be_ended_holds_up_nobody() -> None:
    """Such as one whose connection attempt is dropped, on a node without a network."""
    words = [sys.executable, "-c", _HELD]
    done = subprocess.run(words, timeout=patient(20), capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in done.stderr


# --- before the first layer


def chain_of(*sources: LockedSource | None) -> list[Definition]:
    """Return a base and layers, each with one source or none."""
    return [
        Definition(
            f"{number:02}-x",
            (f"x{number}",),
            None,
            Sections(Header("docker", f"x{number}")),
            (StagedFile("files/x", one),) if one else (),
        )
        for number, one in enumerate(sources)
    ]


class Stand:
    """A stand-in for a build strategy: a layer is the header of its definition, and nothing is run."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.built: list[tuple[str, int]] = []
        """Layers, each with the number of requests that the server had received by then."""

    def base(self, step: LayerBuild, target: Path, _store: object = None) -> None:
        self.built.append((step.definition.name, len(self.server.asked)))
        target.write_text(step.definition.sections.header.text)

    def layer(self, step: LayerBuild, below: Sequence[Path], target: Path) -> None:
        del below
        self.base(step, target)

    def build(self, *sources: LockedSource | None) -> list[str]:
        """Build a base and layers in a new run; return its stages."""
        chain, downloads = chain_of(*sources), store(self.folder / "store", 2)
        stages = layers_by(self, chain, build_machine(ENGINE), self.folder, downloads)[1]
        return [stage.name for stage in stages]


def test_everything_is_fetched_before_the_first_layer_is_built_and_nothing_for_cached_ones(
    server: Server, tmp_path: Path
) -> None:
    one, two = source(server, "one"), replace(source(server, "two"), sha256="2" * 64)
    stand = Stand(server, tmp_path)
    assert stand.build(None, one) == ["downloads", "00-x", "01-x"]
    assert stand.built == [("00-x", 1), ("01-x", 1)]
    (tmp_path / "store" / SHA).unlink()
    server.asked.clear()
    stand.built.clear()
    with pytest.raises(FailedError, match="two: has the wrong digest"):
        stand.build(None, one, None, two)
    assert [asked.path for asked in server.asked] == ["/two"], "the layer of the other is in the cache"
    assert stand.built == [], "no layer was begun"
    assert stand.build(None, one, None) == ["00-x", "01-x", "02-x"]
    assert stand.built == [("02-x", 1)]


def test_definitions_are_written_without_a_network_with_a_script_that_fetches_and_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_ATTEMPTS", 0)
    here, there = (
        LockedSource(name, "", name, sha256(name.encode()), f"http://127.0.0.1:9/{name}") for name in ("here", "there")
    )
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / f"{here.sha256}").write_text("here")
    files = tuple(StagedFile(f"files/x/it's {one.name}", one) for one in (here, there))
    chain = [Definition("01-x", ("x",), None, Sections(Header("docker", "x")), files)]
    downloads, folder = store(tmp_path / "store", 2), tmp_path / "defs"
    script = write_with_sources(chain, folder, downloads, lambda _: None).fetch
    assert script is not None
    assert (folder / "files/x/it's here").read_text() == "here"
    curl = tmp_path / "bin/curl"  # a stand-in: its server has the name of the file
    curl.parent.mkdir()
    for content, code in (("another", 1), ("there", 0), ("is not asked again", 0)):
        curl.write_text(f"""#!/bin/sh\n[ "$3" = {there.location} ] && printf %s '{content}' >"$2"\n""")
        curl.chmod(0o755)
        env = {"PATH": f"{curl.parent}:{os.environ['PATH']}"}
        assert subprocess.run(["sh", script], env=env, check=False, capture_output=True).returncode == code
        assert (folder / "files/x/it's there").is_file() == (code == 0)
    assert (folder / "files/x/it's there").read_text() == "there"


def test_a_digest_that_only_the_network_has_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http, "_ATTEMPTS", 0)
    monkeypatch.setenv("LUMIIMG_CACHE", f"{tmp_path}")
    words = ["build", "--base", "debian-13", "--add", "aws-ofi-nccl==1.19.0", "--definitions", f"{tmp_path}/d"]
    assert main([*words, "--mirror", "https://github.com=http://127.0.0.1:9"]) == ExitCode.MISSING_HERE
    last = capsys.readouterr().err.splitlines()[-1]
    assert "v1.19.0.tar.gz: its sha256 is not in the catalogue, and it could not be reached" in last
    assert "then `build --locked` here; or name the file: --source" in last
    assert not (tmp_path / "d").exists()
