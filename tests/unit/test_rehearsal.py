"""What `make rehearse` compiles from a source, and how it gets the headers."""

from __future__ import annotations

import datetime as dt
import http.server
import io
import re
import threading
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest
from msgspec.structs import replace as replaced

from lumiimg.core.errors import FailedError
from tools.rehearsal.bases import torch_of, wheels_beside
from tools.rehearsal.compile import HostFiles, fault_of, host_files, release_of
from tools.rehearsal.headers import Headers
from tools.rehearsal.index import PackageIndex
from tools.rehearsal.rows import rows
from tools.rehearse import Outcome, entries_of_failed, recorded, trials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER = "namespace torch { struct Tensor { int sizes() const; }; }\n"
CALLS = "#include <torch/tensor.h>\nint of(const torch::Tensor& one) { return one.%s(); }\n"


class Ranges(http.server.BaseHTTPRequestHandler):
    """Serves one wheel by byte ranges, and records the number of bytes sent."""

    wheel: ClassVar[bytes]
    gave: ClassVar[int]
    knows_ranges: ClassVar[bool]

    def do_GET(self) -> None:
        first, last = map(int, re.findall(r"\d+", self.headers["Range"]))
        body = type(self).wheel[first : last + 1] if type(self).knows_ranges else type(self).wheel
        type(self).gave += len(body)
        self.send_response(206 if type(self).knows_ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Headers]:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("torch/lib/libtorch.so", bytes(8 << 20))
        archive.writestr("torch/include/torch/tensor.h", HEADER)
        archive.writestr("torch/lib/libc10.so", bytes(8 << 20))
    Ranges.wheel, Ranges.gave, Ranges.knows_ranges = out.getvalue(), 0, True
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        name = "torch-2.10.0-cp312-cp312-manylinux_2_28_x86_64.whl"
        file = (f"http://127.0.0.1:{server.server_port}/", {"filename": name, "size": len(Ranges.wheel)})
        monkeypatch.setattr(PackageIndex, "_files", lambda *_: [file])
        yield Headers(PackageIndex(tmp_path), tmp_path)
        server.shutdown()


def test_of_a_wheel_its_headers_alone_are_fetched_and_once(headers: Headers) -> None:
    folder = headers.torch("2.10.0")
    assert (folder / "torch/tensor.h").read_text() == HEADER
    assert Ranges.gave < 1 << 20
    gave = Ranges.gave
    assert headers.torch("2.10.0") == folder
    assert Ranges.gave == gave


def test_a_release_that_the_index_does_not_have_and_a_server_without_ranges_are_named(headers: Headers) -> None:
    with pytest.raises(FailedError, match="the index has no file of torch like"):
        headers.torch("2.99.0")
    Ranges.knows_ranges = False
    with pytest.raises(FailedError, match="gives no range of bytes"):
        headers.torch("2.10.0")


def test_a_call_that_a_torch_does_not_have_is_found_with_its_line_and_gpu_code_is_passed_over(tmp_path: Path) -> None:
    torch, source = tmp_path / "torch-2.10.0", tmp_path / "source/csrc"
    (torch / "torch").mkdir(parents=True)
    (torch / "torch/tensor.h").write_text(HEADER)
    source.mkdir(parents=True)
    (source / "view.cu").write_text(CALLS % "sizes")
    (source / "kernels.cu").write_text("__global__ void add() {}\n")
    what = HostFiles(files=("csrc/*.cu",))
    files = host_files(source.parent, what)
    assert [file.name for file in files] == ["view.cu"]
    assert fault_of(source.parent, files, what, [torch]) == ""
    (source / "view.cu").write_text(CALLS % "layout")
    against = fault_of(source.parent, files, what, [torch])
    assert against.startswith("csrc/view.cu:2: ")
    assert "layout" in against


def test_a_torch_is_looked_for_by_the_release_that_the_index_names() -> None:
    assert [release_of(one) for one in ("2.10", "2.9.1+rocm6.4", "2.11.0a0+gitabc", None)] == [
        "2.10.0",
        "2.9.1",
        "2.11.0",
        "",
    ]


def test_the_torch_of_a_base_comes_with_the_torchvision_that_is_for_it(tmp_path: Path) -> None:
    def wheel(name: str, version: str, asked: str = "") -> Path:
        path = tmp_path / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name}-{version}.dist-info/METADATA", f"Requires-Dist: {asked}\n" if asked else "\n")
        return path

    torches = [wheel("torch", f"2.9.1+{local}") for local in ("git8907517", "rocm6.3", "rocm6.4")]
    visions = [wheel("torchvision", f"0.24.1+{local}", "torch (==2.9.1)") for local in ("rocm6.4", "rocm6.3")]
    visions += [wheel("torchvision", "1+git8907517", "torch==2.9.1+git8907517")]
    beside: dict[str, list[Path]] = {"torchvision": visions, "torchaudio": []}
    for rocm, torch, vision in (("6.3", "rocm6.3", "0.24.1+rocm6.3"), ("7.2", "rocm6.4", "0.24.1+rocm6.4")):
        found = torch_of(torches, "2.9.1", rocm)
        assert found.name == f"torch-2.9.1+{torch}-py3-none-any.whl"
        assert [one.name for one in wheels_beside(found, beside)] == [f"torchvision-{vision}-py3-none-any.whl"]


def test_a_release_that_fails_on_one_python_is_not_rehearsed() -> None:
    one, other = list(rows(frozenset({"lightning"})))[:2]
    assert one.same_release(other)
    good = Outcome(one, resolved=True, rehearsed=one.plans[0].base.name)
    bad = Outcome(other, resolved=True, failed="its test ends with 1")
    assert [trial.reach for trial in trials([good])] == ["resolved", "rehearsed"]
    assert [trial.reach for trial in trials([good, bad])] == ["resolved"]
    assert [reach for reach, _ in entries_of_failed([good, bad])] == ["resolved", "rehearsed"]


def test_what_the_ledger_has_of_a_row_as_it_is_is_not_built_again() -> None:
    one, other = list(rows(frozenset({"lightning"})))[:2]
    built = Outcome(one, resolved=True, rehearsed=one.plans[0].base.name, date=dt.date(2026, 11, 24))
    known = list(trials([built]))
    before = recorded(one, "", known)
    assert before
    assert (before.rehearsed, before.date) == (built.rehearsed, built.date)
    assert list(trials([before])) == known
    assert not recorded(other, "", known), "another Python"
    again = recorded(one, "compiled: 3 host files of lightning", known)
    assert again
    assert next(trial.how for trial in trials([again]) if trial.reach == "rehearsed").endswith(
        "3 host files of lightning"
    )
    assert not recorded(replace(one, release="0", facts=replaced(one.facts, test="true\n")), "", known)


def test_ones_own_packages_have_no_row() -> None:
    assert not list(rows(frozenset({"own-packages"})))
