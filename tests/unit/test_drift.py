"""`drift`: which images an update of the machine breaks, and which need new binds.

The nodes are stand-ins for LUMI's before and after January 2026 (tests/shared/fabric_builder.py): the host's C library
went to 2.38 and its libraries required that, json-c changed its soname, libfabric its folder, and ROCm was removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lumiimg.check import drift as drift_module
from lumiimg.cli.main import main
from lumiimg.host.drift import Drift
from lumiimg.host.scan import scan_host
from lumiimg.host.snapshot import read_snapshot, write_snapshot
from tests.shared import fabric_builder
from tests.shared.elf_builder import library
from tests.shared.fabric_builder import bundled, versioned
from tests.shared.lumi_node import KERNEL, january, november, put_files
from tests.shared.programs import alive, patient, unwrapped, wait_until

if TYPE_CHECKING:
    from pathlib import Path


Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The snapshots of a node before the update, and of another one after it."""
    folder = tmp_path_factory.mktemp("nodes")
    before = fabric_builder.snapshot(november(folder / "november"), taken="2025-11-20T10:00:00Z")
    return before, fabric_builder.snapshot(january(folder / "january"), taken="2026-01-24T10:00:00Z")


def drift(capsys: Capture, before: Path, now: Path, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    code = main(["drift", str(before), str(now), "--json", *map(str, words)])
    out, err = capsys.readouterr()
    data: dict[str, Any] = json.loads(out)
    assert data["schema"] == 1
    return code, data, err


# -- the nodes --


def test_another_node_of_the_same_kind_and_a_rebuild_of_a_library_break_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    before = fabric_builder.snapshot(november(tmp_path / "one"), taken="2026-01-24T10:00:00Z")
    root, image = november(tmp_path / "other"), fabric_builder.image(tmp_path / "image", glibc=39)
    put_files(
        root,
        {"proc/sys/kernel/hostname": "nid007999\n", "sys/class/cxi/cxi0/device/uevent": "PCI_SLOT_NAME=0000:dd:00.0\n"},
    )
    now = fabric_builder.snapshot(root, taken="2026-01-25T10:00:00Z")
    code, data, err = drift(capsys, before, now, "--image", image)
    assert (code, data["answer"], data["images"][0]["fate"], data["notes"]) == (0, "fine", "fine", [])
    assert "no image breaks, of 1 image" in unwrapped(err)
    nl = root / "usr/lib64/libnl-3.so.200"
    versioned(nl, defines=("libnl_3",), needs={root / "lib64/libc.so.6": ("GLIBC_2.14",)}, source="int fixed;")
    code, data, _ = drift(capsys, now, fabric_builder.snapshot(root, name="rebuilt"), "--image", image)
    assert (code, data["images"][0]["fate"]) == (0, "fine")
    seen = read_snapshot(now)
    notes = Drift(seen, replace(seen, library_path="/opt/cray/pe/lib64", tool="9.9")).notes
    assert ("other loaded modules" in notes[0], "9.9" in notes[1]) == (True, True)
    shutil.rmtree(root / "opt/cray")
    code, data, _ = drift(capsys, before, fabric_builder.snapshot(root), "--image", image)
    assert (code, data["images"][0]["fate"]) == (3, "unknown")
    assert any("no libfabric was found" in note for note in data["notes"])


def test_nodes_of_different_kinds_are_reported_and_not_compared(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    root = january(tmp_path / "cpu-node")
    shutil.rmtree(root / "sys/module")
    (root / "proc/cpuinfo").write_text("vendor_id : AuthenticAMD\nmodel name : AMD EPYC 7763\n")
    image = fabric_builder.image(tmp_path / "image", glibc=35)
    code, data, err = drift(capsys, nodes[0], fabric_builder.snapshot(root), "--image", image)
    assert (code, data["answer"], data["images"]) == (3, "undecided", [])
    assert data["kinds"] == ["CPU: AMD EPYC 7A53 -> AMD EPYC 7763", "AMD GPUs: yes -> none"]
    assert "different kinds" in err
    assert "of one partition" in err


# -- images --


def test_an_image_counts_as_hit_by_the_update_where_it_is_worse_than_before(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    old, newer = (fabric_builder.image(tmp_path / f"of {glibc}", glibc=glibc) for glibc in (35, 39))
    own = bundled(tmp_path / "bundled")
    without = fabric_builder.image(tmp_path / "no-plugin", glibc=39, plugin=False)
    for image, code, fate, decision in (
        (old, 1, "breaks", "refused"),
        (newer, 1, "stale-binds", "ok"),
        (own, 0, "fine", "ok"),
        (without, 0, "broken-before", "refused"),
    ):
        reported, data, err = drift(capsys, *nodes, "--verbose", "--image", image, "--site", "lumi")
        (entry,) = data["images"]
        assert (reported, entry["fate"], entry["now"]["decision"]) == (code, fate, decision), image
        err = unwrapped(err)
        if image is old:
            assert entry["before"] == {"decision": "ok", "fabric": "host"}
            assert "1 of 1 image breaks" in err
            assert "GLIBC_2.38 of libc.so.6 is needed, the image's /lib64/libc.so.6 has up to GLIBC_2.35" in err
            assert "librccl-net.so -> libfabric.so.1 (host)" in err
            assert f": lumiimg adapt '{image}' --site lumi --fabric bundled -o" in entry["remedies"][0]
        if image is newer:
            gone = ["/opt/cray/libfabric/1.15.2.0/lib64/libfabric.so.1", "/usr/lib64/libjson-c.so.3"]
            assert entry["saved_binds"]["gone"] == gone
            assert entry["remedies"] == [f"source <(lumiimg bind '{image}' --host {nodes[1]} --site lumi)"]
            assert "1 of 1 image needs new binds" in err
            assert main(["bind", str(image), "--host", str(nodes[1])]) == 0, "and with what the remedy says, it is well"
            capsys.readouterr()
        if image is own:
            assert (entry["now"]["fabric"], entry["remedies"]) == ("bundled", [])
            assert "no image breaks, of 1 image" in err
    code, data, _ = drift(capsys, nodes[1], nodes[0], "--image", old)
    assert (code, data["images"][0]["fate"]) == (0, "mended")
    assert any("right order" in note for note in data["notes"])


def test_earlier_obstacles_of_an_image_hide_nothing_that_the_update_does(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    socket = fabric_builder.image(tmp_path / "socket", glibc=35)
    put_files(socket, {".singularity.d/env/91-more.sh": "export NCCL_NET=Socket\n"})
    code, data, _ = drift(capsys, *nodes, "--image", socket)
    assert (code, data["images"][0]["fate"]) == (1, "breaks")
    assert {finding["id"] for finding in data["images"][0]["refused"]} == {"bind.refused"}
    unread = fabric_builder.image(tmp_path / "unread", glibc=39)
    put_files(unread, {".singularity.d/env/91-more.sh": "if true; then export NCCL_NET=$(net); fi\n"})
    code, data, err = drift(capsys, *nodes, "--image", unread)
    assert (code, data["images"][0]["fate"], data["images"][0]["now"]["decision"]) == (1, "stale-binds", "unknown")
    assert "NEEDS NEW BINDS: they load, and something else is not known" in unwrapped(err)
    assert "NCCL_NET" in unwrapped(err)


def test_a_saved_list_that_lacks_a_new_library_does_not_hold(tmp_path: Path, capsys: Capture) -> None:
    before = fabric_builder.snapshot(january(tmp_path / "one"))
    root = january(tmp_path / "two")
    libc = root / "lib64/libc.so.6"
    uv = versioned(root / "usr/lib64/libuv.so.1", needs={libc: ("GLIBC_2.14",)}, source="int uv(void) { return 0; }")
    nl = root / "usr/lib64/libnl-3.so.200"
    nl.unlink()
    source = "int uv(void); int use(void) { return uv(); }"
    versioned(nl, defines=("libnl_3",), needs={libc: ("GLIBC_2.14",), uv: ()}, source=source)
    code, data, err = drift(
        capsys, before, fabric_builder.snapshot(root), "--image", fabric_builder.image(tmp_path / "image")
    )
    (entry,) = data["images"]
    assert (code, entry["fate"], entry["saved_binds"]["gone"]) == (1, "stale-binds", [])
    assert entry["saved_binds"]["refusal"]["need"] == "libuv.so.1"
    assert "neither the image nor the list has it" in unwrapped(err)


# -- the driver --


DRIVERS = [
    ("6.2.4", None, KERNEL, "6.10.5", "fine"),  # AMD says what it serves, whatever the site
    ("6.2.4", None, KERNEL, "6.18.4", "unknown"),  # no site, whose driver it would be
    ("6.2.4", "lumi", KERNEL, "6.10.5", "fine"),
    ("6.0.2", "lumi", KERNEL, "6.10.5", "breaks"),
    ("7.2.0", "lumi", KERNEL, "6.10.5", "unknown"),  # an image that the site ships says otherwise
    ("7.2.0", "lumi", "6.12.0-later", "6.16.13", "fine"),  # AMD says what it serves
    ("6.2.4", "lumi", "6.12.0-later", "6.16.13", "breaks"),
    ("6.2.4", "lumi", "6.12.0-later", "6.18.4", "unknown"),  # a driver of which nothing is known
]


def test_another_driver_is_judged_by_a_window_that_is_its_own(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    file, image = tmp_path / "now.json", bundled(tmp_path / "image")
    for rocm, site, kernel, driver, fate in DRIVERS:
        now = replace(read_snapshot(nodes[1]), gpu_driver=driver, kernel=kernel, taken="2026-09-24T10:00:00Z")
        write_snapshot(now, file)
        put_files(image, {"opt/rocm/.info/version": f"{rocm}\n"})
        of_site = ["--site", site] if site else []
        code, data, err = drift(capsys, nodes[0], file, "--verbose", "--image", image, *of_site)
        expected = (fate, {"fine": 0, "breaks": 1, "unknown": 3}[fate])
        assert (data["images"][0]["fate"], code) == expected, (rocm, site, driver)
        assert fate == "fine" or f"ROCm {rocm} of the image" in " ".join(err.split())
        assert driver in err


# -- bad input --


def test_what_is_no_snapshot_or_no_image_is_one_line(nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    bad, image = tmp_path / "bad.json", fabric_builder.image(tmp_path / "image")
    bad.write_text("[]")
    for words, expected in (
        ((bad, nodes[1], "--image", image), "is not a host snapshot"),
        ((nodes[0], bad, "--image", image), "is not a host snapshot"),
        ((*nodes, "--image", nodes[0]), "neither a SIF nor"),
    ):
        assert main(["drift", *map(str, words)]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert err.count("\n") == 1


# -- this machine, and several images --


def test_this_machine_is_read_where_no_second_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    own = library(tmp_path / "elsewhere/libfabric.so.1", "-Wl,-soname,libfabric.so.1", source="int one;")
    write_snapshot(scan_host(os.environ, include=[own]), tmp_path / "host.json")
    image = fabric_builder.image(tmp_path / "image")
    main(["drift", str(tmp_path / "host.json"), "--image", str(image), "--json"])
    assert json.loads(capsys.readouterr().out)["notes"] == []
    own.unlink()
    main(["drift", str(tmp_path / "host.json"), "--image", str(image), "--json"])
    (note, *_) = json.loads(capsys.readouterr().out)["notes"]
    assert note == f"the first scan had --include {own}; the second did not, or the path is gone"


def test_new_binds_of_this_machine_are_made_from_a_scan_of_its_own(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not replace the older snapshot, which may be called host.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lumiimg.cli.drift.scan_host", lambda *_, **__: read_snapshot(nodes[1]))
    fabric_builder.image(tmp_path / "image", glibc=39)
    assert main(["drift", str(nodes[0]), "--image", "image", "--site", "lumi", "--json"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["images"]
    made = "lumiimg host scan -o now.json && source <(lumiimg bind image --host now.json --site lumi)"
    assert (entry["fate"], entry["remedies"]) == ("stale-binds", [made])


def test_a_file_that_is_not_an_image_keeps_no_other_from_its_answer(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    text, page = tmp_path / "text.sif", tmp_path / "page.html"
    text.write_text("text")
    own, old = bundled(tmp_path / "own"), fabric_builder.image(tmp_path / "old", glibc=35)
    code, data, err = drift(capsys, *nodes, "--image", text, own, "--html", page)
    assert (code, [image["fate"] for image in data["images"]]) == (2, ["fine"])
    assert [unread["image"] for unread in data["unread"]] == [str(text)]
    assert err.splitlines()[0].endswith("; 1 image cannot be read")
    assert data["answer"] == "undecided"
    assert 'h1 class="unknown"' in page.read_text()
    assert str(text) in page.read_text()
    assert drift(capsys, *nodes, "--image", text, own, old)[0] == 1, "a no is worse"


def test_an_image_at_which_lumiimg_itself_ends_keeps_no_other_from_its_answer(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [bundled(tmp_path / f"image {number}") for number in range(5)]
    real, sick = drift_module.image_drift, {images[1]: lambda: os.kill(os.getpid(), signal.SIGKILL), images[3]: ending}
    monkeypatch.setattr(drift_module, "image_drift", lambda path, *rest: sick.get(path, int)() or real(path, *rest))
    code, data, err = drift(capsys, *nodes, "--image", *images)
    assert (code, data["answer"]) == (3, "undecided")
    assert [image["image"] for image in data["images"]] == [str(images[number]) for number in (0, 2, 4)]
    assert [(image["image"], image["why"].partition(":")[0]) for image in data["unread"]] == [
        (str(images[number]), "CANNOT TELL") for number in (1, 3)
    ]
    assert "2 images: CANNOT TELL: lumiimg ended while reading this image" in unwrapped(err)


def ending() -> None:
    raise MemoryError


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_of_lumiimg_is_left_when_it_is_interrupted_at_several_images(
    nodes: tuple[Path, Path], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    begun, made = tmp_path / "begun", tmp_path / "made"
    begun.mkdir()
    made.mkdir()
    program = (
        "import os, time\nfrom lumiimg.check import drift\nfrom lumiimg.cli.main import run\n"
        "from lumiimg.core.files import Path, atomic_file\n"
        "def follow(*_):\n"
        f"    with atomic_file(Path({str(made)!r}, str(os.getpid()))):\n"
        f"        Path({str(begun)!r}, str(os.getpid())).touch()\n        time.sleep(987)\n"
        "drift.image_drift = follow\nrun()"
    )
    words = [sys.executable, "-c", program, "drift", *map(str, nodes), "--image", "one", "two", "three"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as parent:
        wait_until(lambda: any(begun.iterdir()))  # the others may be anywhere
        copies = [path.name for path in begun.iterdir()]
        parent.send_signal(number)
        try:
            _, err = parent.communicate(timeout=patient(60))
        finally:
            parent.kill()  # otherwise a hanging one would be waited for forever
    assert (parent.returncode, err) == (code, "lumiimg: interrupted\n" if number == signal.SIGINT else "")
    wait_until(lambda: not any(map(alive, map(int, copies))))
    left = [path.name for path in made.iterdir() if path.name.split(".")[1] in copies]
    assert number == signal.SIGKILL or not left, "a file that is half-written"


def test_each_image_is_adapted_to_a_file_of_its_own_and_no_option_is_named_that_drift_does_not_have(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    older, old = (
        fabric_builder.image(tmp_path / "older.root", glibc=31),
        fabric_builder.image(tmp_path / "old", glibc=35),
    )
    unknown = bundled(tmp_path / "unknown")
    put_files(unknown, {"usr/bin/python3": "#!/bin/sh\n"})
    (unknown / "usr/bin/python3").chmod(0o755)
    shutil.copytree(old, tmp_path / "old two", symlinks=True)
    images = [image.name for image in (older, old, unknown)]
    _, data, _ = drift(capsys, *nodes, "--image", *images, "--site", "lumi")
    remedies = [remedy for image in data["images"] for remedy in image["remedies"]]
    main(["drift", *map(str, nodes), "--image", "older.root", "old", "old two", "--site", "lumi"])
    loop = "for image in ./old './old two'; do lumiimg adapt \"$image\" --site lumi --fabric bundled -o "
    assert f'{loop}"$(basename "$image" .sif)"-adapted.sif; done' in capsys.readouterr().out
    written = [remedy.rpartition(" -o ")[2] for remedy in remedies if " adapt " in remedy]
    assert written[:2] == ["older-adapted.sif", "old-adapted.sif"]
    assert len(set(written)) == len(written)
    asked = [remedy for remedy in remedies if "--program" in remedy]
    assert asked
    of_check = f"lumiimg check unknown --host {nodes[1]} --site lumi --program PATH"
    assert all(of_check in remedy for remedy in asked)


def test_images_that_break_alike_have_one_cure_below_the_answer_and_long_work_says_how_far_it_is(
    nodes: tuple[Path, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lumiimg.cli.output._SOON_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    for name in ("one", "two"):
        fabric_builder.image(tmp_path / name, glibc=35)
    main(["drift", *map(str, nodes), "--image", "one", "two", "--site", "lumi"])
    out, err = capsys.readouterr()
    adapt = 'lumiimg adapt "$image" --site lumi --fabric bundled -o "$(basename "$image" .sif)"-adapted.sif'
    assert out.splitlines()[1] == f"next:  for image in ./one ./two; do {adapt}; done"
    assert "; do ; done" not in out, "what is no command is no loop"
    assert err == "1 of 2 images are read\n"
    shutil.copytree("one", "-one")
    main(["drift", *map(str, nodes), "--image", "./-one", "--site", "lumi"])
    step = "lumiimg adapt ./-one --site lumi --fabric bundled -o ./-one-adapted.sif"
    assert f"\nnext:  {step}\n" in capsys.readouterr().out
