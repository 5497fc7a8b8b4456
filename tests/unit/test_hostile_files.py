"""Any file in place of one that a command reads: an answer or one line of error, and no hang."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from lumiimg.build.cache import CacheKey, LayerCache
from lumiimg.catalog.layers import read_layer
from lumiimg.cli.main import main
from lumiimg.core.errors import BadInputError, ExitCode, LumiimgError
from lumiimg.fetch.http import login_for
from lumiimg.joblog import files as sources
from lumiimg.resolve.bootstrap import file_stamp
from lumiimg.resolve.lock import layer_digest
from tests.shared.build_machine import stored
from tests.shared.layer_builder import LAYER, MakeLayer
from tests.shared.programs import patient, sampled

LINE = b"n1:1:1 [0] NCCL INFO Using network Socket\n"
TERABYTES = 4 << 40
VERBS = {
    "log": ("log", "FILE"),
    "log --follow": ("log", "--follow", "FILE"),
    "check": ("check", "FILE", "--level", "static"),
    "ldd": ("ldd", "FILE", "--all"),
    "show": ("show", "FILE"),
    "rebuild": ("rebuild", "FILE", "-o", "new.sif"),
    "bind": ("bind", "image", "--host", "FILE"),
    "diff": ("diff", "FILE", "image"),
    "draft": ("draft", "FILE"),
    "explain -r": ("explain", "--base", "debian-13", "-r", "FILE"),
    "explain --host": ("explain", "image", "--host", "FILE"),
    "drift": ("drift", "FILE", "FILE", "--image", "image"),
    "drift of nodes": ("drift", "FILE", "FILE"),
    "adapt": ("adapt", "FILE", "--site", "lumi"),
    "module": ("module", "FILE", "-o", "modules"),
    "build --base": ("build", "--base", "FILE", "--dry-run"),
    "build --lock": ("build", "--locked", "--lock", "FILE", "--dry-run"),
}
_CHILD = """
import os, resource, signal, sys
from lumiimg.cli.main import main
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
name, verbs = sys.argv[1], eval(sys.argv[2])
for verb, words in verbs.items():
    signal.alarm(20)
    print("verb", verb, file=sys.stderr)
    code = main([word.replace("./FILE", os.path.join(".", name)).replace("FILE", name) for word in words])
    print("code", int(code), file=sys.stderr, flush=True)
"""


def laid(folder: Path) -> None:
    (folder / "image/bin").mkdir(parents=True)
    (folder / "job.out").write_bytes(LINE)
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", TERABYTES)
    os.mkfifo(folder / "pipe")
    os.mknod(folder / "socket", stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize("name", ["pipe", *sampled(["/dev/zero", "sparse", "socket", "/proc/self/pagemap"], 1)])
@pytest.mark.usefixtures("clean_home")
@pytest.mark.threat
def test_no_verb_waits_for_a_file_or_reads_it_without_end(name: str, tmp_path: Path) -> None:
    laid(tmp_path)
    follows = {"log --follow"} if name in {"sparse", "/proc/self/pagemap"} else set()  # until Ctrl-C
    verbs = {
        verb: words for verb, words in VERBS.items() if verb not in follows | ({"log"} if name == "pipe" else set())
    }
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, name, repr(verbs)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    message = [part.splitlines() for part in child.stderr.split("verb ")[1:]]
    assert child.returncode == 0, f"{name}: {message[-1] if message else child.stderr}"
    assert [lines[0] for lines in message] == list(verbs)
    for verb, *lines, code in message:
        assert code == f"code {ExitCode.BAD_INPUT:d}", (name, verb, lines)
        assert len(lines) <= 1, (name, verb, lines)


_IN_A_CACHE = """
import os, resource, signal, sys
from pathlib import Path
from lumiimg.build.cache import CacheKey, LayerCache
from lumiimg.cli.main import main
from lumiimg.resolve.bootstrap import digest_of_file
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
root, cache = Path(sys.argv[1]), LayerCache(Path(sys.argv[1]))
signal.alarm(20)
for name in sys.argv[2].split():
    found = cache.find(CacheKey({"definition": name}))
    print(name, found is not None and found.is_intact, list(cache.seconds()))
print(digest_of_file(root / "base", root, print))
for verb in ("ls", "verify", "prune", "ls"):
    print("code", int(main(["cache", verb])), flush=True)
"""


@pytest.mark.parametrize("kind", ["pipe", *sampled(["sparse", "zero", "socket", "folder", "loop"], 2)])
@pytest.mark.usefixtures("clean_home")
@pytest.mark.threat
def test_no_file_in_a_shared_cache_is_waited_for_or_read_without_end(kind: str, tmp_path: Path) -> None:
    """Something else has been put in place of each file of a cache."""
    laid(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    cache = LayerCache(tmp_path / "cache")
    entries = {}
    for name in ("entry.json", "key.json", "data.sqfs", "good"):
        key = CacheKey({"definition": name})
        entries[name] = stored(cache, key, b"", name)
    (cache.root / "base").write_bytes(b"base")
    places = [cache.root / "layers" / entry.key / name for name, entry in entries.items() if name != "good"]
    places.append(cache.root / "contents" / ("1" * 64))
    places.append(cache.root / "bases" / file_stamp(cache.root / "base"))
    places += [cache.root / "oci" / f"sha256-{'0' * 64}-{size}.tar" for size in (0, TERABYTES)]
    places.append(cache.root / "from.json")
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        (tmp_path / kind).rename(place) if kind == "folder" else os.link(tmp_path / kind, place, follow_symlinks=False)
        (tmp_path / "folder").mkdir(exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_CACHE, str(cache.root), " ".join(entries)],
        env={**os.environ, "LUMIIMG_CACHE": str(cache.root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    codes = [line for line in done.stdout.splitlines() if line.startswith("code")]
    pruned = "code 1" if kind == "folder" else "code 0"  # what lumiimg did not write is left to the user
    assert codes == ["code 0", "code 1", pruned, "code 0"], done.stdout + done.stderr
    assert {entry.layers[0] for entry in cache.entries()} == {"good", "key.json"}
    assert time.monotonic() - began < patient(20)


@pytest.mark.parametrize("name", ["layers", "work"])
@pytest.mark.threat
def test_what_is_in_the_place_of_a_folder_of_a_cache_is_an_error_and_is_not_waited_for(
    name: str, tmp_path: Path
) -> None:
    cache, key = LayerCache(tmp_path / "cache"), CacheKey({"definition": "x"})
    cache.root.mkdir()
    os.mkfifo(cache.root / name)

    with pytest.raises((LumiimgError, OSError)):
        stored(cache, key)


@pytest.mark.threat
def test_a_file_of_a_layer_is_read_in_pieces_and_nothing_else_is(tmp_path: Path, make_layer: MakeLayer) -> None:
    laid(tmp_path)
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 64 << 20)
    folder = make_layer("box", f'{LAYER}files = ["data"]\n')
    (folder / "data").touch()
    layer = read_layer(folder)
    tracemalloc.start()
    for name in ("large", "pipe", "socket", "zero"):
        (folder / "data").unlink(missing_ok=True)
        os.link(tmp_path / name, folder / "data", follow_symlinks=False)
        if name == "large":
            layer_digest(layer)
        else:
            with pytest.raises(BadInputError, match="cannot be read"):
                layer_digest(layer)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.threat
def test_a_netrc_that_is_a_pipe_or_has_no_end_has_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid(tmp_path)
    for name in ("pipe", "socket", "sparse"):
        monkeypatch.setenv("NETRC", f"{tmp_path}/{name}")
        assert login_for("https://host.test/x") is None


@pytest.mark.threat
def test_a_stream_in_which_no_line_ends_is_left_with_a_message() -> None:
    with Path("/dev/zero").open("rb") as zeros:
        child = subprocess.run(
            [sys.executable, "-m", "lumiimg", "log", "-"],
            stdin=zeros,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert child.returncode == ExitCode.BAD_INPUT
    assert child.stderr == "lumiimg: -: has no line end in 1024 MiB, so it is not a log\n"


@pytest.mark.threat
def test_lines_longer_than_any_are_no_endless_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ENDLESS_BYTES", 1 << 20)
    (tmp_path / "a").write_bytes((b"x" * 900_000 + b"\n") * 3 + LINE)
    assert b"".join(sources.blocks(str(tmp_path / "a"), print)).endswith(LINE)
    (tmp_path / "b").write_bytes(b"x" * 2_000_000 + LINE)
    with pytest.raises(BadInputError, match="has no line end in 1 MiB"):
        list(sources.blocks(str(tmp_path / "b"), print))


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A sandbox with folders 1,500 deep."""
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    (image / "bin/sh").touch()
    monkeypatch.chdir(image)
    try:
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        os.chdir(tmp_path)
        yield image
    finally:
        subprocess.run(["rm", "-rf", image], check=True, cwd=tmp_path)  # shutil.rmtree would recurse as deep


@pytest.mark.usefixtures("clean_home", "deep")
@pytest.mark.threat
def test_folders_thousands_deep_are_an_answer_or_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    for words in (
        ("check", "image", "--level", "static"),
        ("explain", "./image"),
        ("ldd", "image", "--all"),
        ("diff", "image", "image"),
        ("lock", "--base", "./image"),
    ):
        assert main(list(words)) in set(ExitCode), words
        error = capsys.readouterr().err
        assert error.count("\n") <= 1, words
        assert len(error) < 400, words
    assert time.process_time() - start < 20
