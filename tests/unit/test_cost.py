"""The cost of a plan: from the cache, from the ledger, or unknown; and early warnings of what does not fit."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from lumiimg.build.build_host import BuildHost
from lumiimg.build.cache import LayerCache
from lumiimg.build.cost import BuildCost, PartCost, PlaceNeed, cost_of, measured
from lumiimg.build.keys import content_after, steps_of
from lumiimg.catalog.catalogue import open_catalogue
from lumiimg.catalog.ledger import all_trials
from lumiimg.cli.main import main
from lumiimg.core.errors import ExitCode, FailedError
from lumiimg.definition.writer import write_chain
from lumiimg.engine import room
from lumiimg.engine.room import FreeSpace, Mount, quota_at, room_at
from lumiimg.fetch.mirrors import Mirrors
from lumiimg.fetch.registry import parse_reference
from lumiimg.report.views.request import cost_lines
from lumiimg.resolve.bootstrap import known_size, note_digest
from lumiimg.resolve.context import PlanContext
from lumiimg.resolve.lock import locked_wheel
from lumiimg.resolve.lock_file import document_of
from lumiimg.resolve.planner import decide
from lumiimg.resolve.request import Request
from tests.shared.build_machine import build_machine, stored

if TYPE_CHECKING:
    from lumiimg.resolve.lock import Lock


def locked(base: str, *add: str, site: str = "generic") -> Lock:
    request = Request(base=base, add=add, site=site)
    return decide(request, PlanContext.from_request(request, open_catalogue({}), {})).require_lock()


def fill(lock: Lock, cache: LayerCache, most: int = 9) -> None:
    """Store results of the steps of a build on some machine in a cache, lowest first."""
    content = ""
    for number, step in enumerate(steps_of(write_chain(lock), build_machine())[:most]):
        data = b"x" * (100 + number)
        entry = stored(cache, step.key(content), data, *step.definition.layers)
        content = content_after(content, entry)


def test_a_plan_says_what_the_ledger_has_and_what_nobody_knows(
    clean_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--recipe", "demo", "--json"]) == 0
    out, captured = capsys.readouterr()
    cost = json.loads(out)["cost"]
    recorded = [one for name in ("debian-13", "netprobe") for one in all_trials(open_catalogue({}).entry(name))]
    sizes = [one.size_bytes for one in recorded if one.reach == "built"]
    assert [(part["known_by"], part["size_bytes"]) for part in cost["parts"]] == [("ledger", size) for size in sizes]
    assert cost["cache_bytes"] == cost["image_bytes"] == sum(filter(None, sizes))
    assert {place["use"] for place in cost["places"]} == {"cache", "output", "TMPDIR"}
    assert "cost: download not known, cache 554 MiB, image at most 554 MiB, time" in " ".join(captured.split())

    assert Path(cost["places"][0]["room"]["folder"]).is_relative_to(clean_home)
    main(["build", "--base", "rocm-6.2.4", "--add", "vllm", "--site", "generic", "--dry-run"])
    captured = " ".join(capsys.readouterr().out.split())
    assert "cost: not known (no build is recorded of rocm-6.2.4, pytorch 2.7.1, vllm 0.10.1) free: " in captured
    main(["explain", "--recipe", "lumi-vllm"])  # 7 MiB of it are known, and more than a thousand times that is not
    assert "cost: not known (no build" in capsys.readouterr().out
    main(["explain", "--base", "debian-13", "--add", "netprobe", "--add", "mpi4py", "--site", "generic"])
    captured = " ".join(capsys.readouterr().out.split())
    assert "(no build is recorded of " in captured


@pytest.mark.usefixtures("clean_home")
def test_a_dry_run_takes_the_base_that_the_build_takes_and_fails_as_it_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = ["build", "--recipe", "demo", "--mirror", "debian=http://m/debian", "--dry-run"]
    program = tmp_path / "debootstrap"
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    for is_root, origin in ((True, "debootstrap trixie"), (False, "docker debian:trixie-slim")):
        monkeypatch.setattr(BuildHost, "is_root", is_root)
        assert main(build) == ExitCode.GOOD
        assert origin in capsys.readouterr().out
    monkeypatch.setattr("lumiimg.engine.room.shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert main(build) == ExitCode.NO
    assert "does not fit: the build needs about" in " ".join(capsys.readouterr().out.split())


def test_what_is_in_the_cache_costs_nothing_and_what_was_built_here_as_much_again(tmp_path: Path) -> None:
    lock, cache = locked("debian-13", "netprobe"), LayerCache(tmp_path / "cache")
    chain = write_chain(lock)
    fill(lock, cache, most=2)
    cost = cost_of(lock, chain, cache.root, tmp_path / "x.sif")
    base, above = cost.parts
    assert (base.known_by, base.size_bytes, base.seconds, above.known_by) == ("cache", 201, 0.0, "ledger")
    assert list(measured(lock, chain, cache.root)) == [(None, 201, 4.0)], "the base in its two steps"
    fill(lock, cache)
    cost = cost_of(lock, chain, cache.root, tmp_path / "x.sif")
    assert (cost.cache_bytes, cost.download_bytes, cost.seconds, cost.image_bytes) == (0, 0, 0.0, 303)
    assert next(cost_lines(cost)) == "cost: nothing, everything is here already; image at most 303 B"

    other = replace(chain[0], sections=replace(chain[0].sections, post="echo another script\n"))
    cost = cost_of(lock, (other, chain[1]), cache.root, tmp_path / "x.sif")
    assert [part.known_by for part in cost.parts] == ["ledger", "here"], "it will be on another base"
    assert (cost.parts[1].size_bytes, cost.parts[1].seconds) == (102, 2.0)


def test_wheels_and_images_of_registries_have_the_sizes_that_their_servers_say(tmp_path: Path) -> None:
    wheel = locked_wheel("https://wheels.test/a-1-py3-none-any.whl", "a" * 64, 5 << 20)
    lock = locked("rocm-6.4.4", "pytorch", site="lumi")
    at, torch = next((at, one) for at, one in enumerate(lock.layers) if one.name == "pytorch")
    layers = (*lock.layers[:at], torch.with_wheels([wheel]), *lock.layers[at + 1 :])
    lock = replace(lock, layers=layers, resolved=True)

    def downloads(lock: Lock) -> dict[str, int | None]:
        parts = cost_of(lock, write_chain(lock), tmp_path, tmp_path / "x.sif").parts
        return {part.title.partition(" ")[0]: part.download_bytes for part in parts}

    assert downloads(lock)["pytorch"] == 5 << 20
    assert downloads(replace(lock, resolved=False))["pytorch"] is None
    assert downloads(lock)["rocm-6.4.4"] is None
    image = lock.bootstrap.image
    assert image is not None
    note_digest(image, f"sha256:{'b' * 64}", tmp_path, 7 << 30)
    assert downloads(lock)["rocm-6.4.4"] == 7 << 30
    of_digest = replace(lock, bootstrap=replace(lock.bootstrap, image=replace(image, digest=f"sha256:{'b' * 64}")))
    assert downloads(of_digest)["rocm-6.4.4"] == 7 << 30
    (entry,) = (one for one in document_of(of_digest).layer if one.wheels)
    assert entry.wheel_bytes == 5 << 20, "a lock has them, too"
    assert known_size(parse_reference("a/b", Mirrors({})), tmp_path) is None
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / wheel.sha256).touch()  # type: ignore[operator]  # it has one
    assert downloads(lock)["pytorch"] == 0, "it is here"


def need(use: str, folder: Path, needed: int, **more: object) -> PlaceNeed:
    return PlaceNeed(use, FreeSpace(folder, 1 << 30, **{"in_memory": False, **more}), needed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("use", "remedy"), [("cache", "LUMIIMG_CACHE="), ("output", "write it elsewhere: -o"), ("TMPDIR", "set TMPDIR")]
)
def test_what_cannot_fit_is_refused_with_the_folder_what_is_missing_and_what_to_do(
    use: str, remedy: str, tmp_path: Path
) -> None:
    parts = (PartCost("a", "nothing", None, None, None),)
    cost = BuildCost(parts, (need(use, tmp_path, 3 << 30), need("TMPDIR", tmp_path, 0)))
    message = "the build needs about 3.0 GiB, but only 1.0 GiB is free: 2.0 GiB is missing"
    with pytest.raises(FailedError, match=remedy) as raised:
        cost.require_room()
    assert str(raised.value).startswith(f"{tmp_path}: {message}; ")
    assert f"does not fit: {message} in {tmp_path}; " in list(cost_lines(cost))[-1]
    # on one file system needs add up
    both = need("cache", tmp_path, 700 << 20), need("output", tmp_path, 800 << 20)
    with pytest.raises(FailedError, match=r"about 1\.5 GiB"):
        BuildCost(parts, both).require_room()
    BuildCost(parts, both[:1]).require_room()
    with pytest.raises(FailedError, match="1 MiB is free: 699 MiB is missing"):
        BuildCost(parts, (need("cache", tmp_path, 700 << 20, quota_bytes=1 << 20),)).require_room()


def test_room_is_that_of_the_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "not" / "yet"
    assert room_at(there).folder == tmp_path
    monkeypatch.setattr(room, "_mount", lambda _: Mount("tmpfs", "/"))
    assert room_at(there).in_memory


# -- quotas: stand-ins for `quota` and `lfs` print what the real ones print

QUOTA = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
 server:/export/a/long/path/of/homes
                   90000* 80000  100000   6days     10       0       0
Disk quotas for group staff (gid 50): none
"""
LFS = """\
#!/bin/sh
case "$1 $2 $3" in
"project -d "*) echo "  465000001 P $3" ;;
"quota -q -u") echo "     /scratch  5000  0  0  -  9  0  0  -" ;;
"quota -q -g") echo "     /scratch  5000  0  0  -  9  0  0  -" ;;
"quota -q -p") [ "$4" = 465000001 ] && printf '     /scratch\\n   [7340032]*  6291456  8388608  -  9  0  0  -\\n' ;;
esac
exit 1
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_tightest_quota_counts(programs: Path, tmp_path: Path) -> None:
    assert quota_at(tmp_path, Mount("lustre", "/scratch")).left_bytes is None
    program(programs / "quota", f"#!/bin/sh\ncat <<'E'\n{QUOTA}E\nexit 1\n")
    program(programs / "lfs", LFS)
    assert quota_at(tmp_path, Mount("nfs4", "/home")).left_bytes == 0, "above the soft limit"
    assert quota_at(tmp_path, Mount("tmpfs", "/tmp")).left_bytes is None
    assert quota_at(tmp_path, Mount("lustre", "/scratch")).left_bytes == 0
    program(programs / "lfs", LFS.replace("7340032", "5242880"))
    assert quota_at(tmp_path, Mount("lustre", "/scratch")).left_bytes == 1 << 30


@pytest.mark.parametrize(("name", "kind"), [("quota", "ext4"), ("lfs", "lustre")])
def test_a_quota_tool_that_hangs_is_asked_once_and_one_line(
    name: str, kind: str, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_LIMIT_S", 0.1)
    monkeypatch.setattr(room, "_mount", lambda _: Mount(kind, "/"))
    program(programs / name, f"#!/bin/sh\necho >>{tmp_path}/asked\nexec sleep 100\n")
    cost = BuildCost((), (PlaceNeed("cache", room_at(tmp_path), 0),))
    assert room_at(programs).note == cost.places[0].room.note
    assert (tmp_path / "asked").read_text() == "\n"
    assert f"{name} did not answer within 0 s (cache)" in list(cost_lines(cost))[-1]
    assert cost.places[0].room.quota_bytes is None


@pytest.mark.parametrize("printed", ["", "/home", "/home 1 2", "/home 99999999999999999999 1 2", "\0\n" * 1000])
def test_what_is_no_table_of_quotas_is_no_quota(printed: str, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "printed").write_text(printed)
    program(programs / "quota", f"#!/bin/sh\ncat {tmp_path}/printed\n")
    assert quota_at(tmp_path, Mount("ext4", "/home")) == room.NO_QUOTA
