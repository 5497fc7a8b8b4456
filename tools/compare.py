"""Runs some hundred command lines with two versions of lumiimg, and shows where their answers differ: `make compare BASE=COMMIT`.

The lines are in tools/compare.toml. Of each line, exit code, standard output, standard error and every file that it writes are
written into build/compare/COMMIT.json, and into new.json for the working tree. Both versions read the same input files and ask
the same stand-ins of servers. `python -m tools.compare OLD.json NEW.json` compares two results of earlier runs.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import gzip
import hashlib
import importlib
import io
import itertools
import json
import os
import pkgutil
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = ("lumiimg", "layers", "recipes")
ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
PLACE = ROOT / "build" / "compare"
"""Both versions run at one path, one after the other: paths, and the lines that they break, are the same."""
LIMIT_S = 60
LETTERS_OF_FILE = 200_000
LINES_SHOWN = 16
ENVIRONMENT = {
    "COLUMNS": "100",
    "LANG": "C.UTF-8",
    "LUMIIMG_SITE": "generic",
    "PATH": os.environ.get("PATH", ""),
    "PYTHONDONTWRITEBYTECODE": "1",
    "TZ": "UTC",
    "USER": "ada",
}
_MASKS = (
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), "HOST:PORT"),
    (re.compile(r"\d+(\.\d+)? [KMGT]iB (are )?free"), "SIZE free"),
    (re.compile(r"\b\d+(\.\d+)? m?s\b"), "TIME"),
    (re.compile(r"(?<=Written )\d{4}-\d\d-\d\d \d\d:\d\d(?= UTC)"), "MOMENT"),
    (re.compile(r'(?<="id": ")[0-9a-f]{8}(?=")'), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"), "MOMENT"),
)
Record = dict[str, Any]


# -- the lines --


def lines(mirrors: str) -> Iterator[str]:
    """Yield every command line, by its words behind `lumiimg`."""
    told = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    sets = {name: _members(members) for name, members in told["sets"].items()} | {"mirrors": [mirrors]}
    seen: set[str] = set()
    for template in itertools.chain.from_iterable(told["lines"].values()):
        names = list(dict.fromkeys(re.findall(r"\{(\w+)\}", template)))
        for values in itertools.product(*(sets[name] for name in names)):
            line = template.format(**dict(zip(names, values, strict=True)))
            if line not in seen:
                seen.add(line)
                yield line


def _members(members: list[str] | dict[str, str]) -> list[str]:
    if isinstance(members, list):
        return members
    return sorted(path.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob(members["glob"]))


# -- the inputs, made once for both --


def make_inputs(place: Path) -> None:
    """Make images, snapshots, logs and broken files, which lines find at `..`."""
    from tests.shared import fabric_builder, gpu_builder, gpu_image, oci_builder, python_image
    from tests.shared.elf_builder import runpath
    from tests.shared.lumi_node import january, november
    from tests.shared.programs import squashed
    from tests.shared.shelf import DOCKERFILE, LOGS
    from tests.shared.sif_builder import made_sif

    for name in ("nccl", "bandwidth", "flight"):
        shutil.copytree(FIXTURES / name, place / name, ignore=shutil.ignore_patterns("*.toml"))
    for name, log in LOGS.items():
        shutil.copy(FIXTURES / "nccl" / log, place / name)
    (place / "good.out.gz").write_bytes(gzip.compress((place / "good.out").read_bytes(), mtime=0))
    roots = place / "roots"
    good = fabric_builder.image(place / "image.root", glibc=41)
    made_sif(good, place / "image.sif")
    squashed(good, place / "image.sqfs")
    made_sif(fabric_builder.image(roots / "old", glibc=35), place / "old.sif")
    made_sif(fabric_builder.image(roots / "no-plugin", plugin=False), place / "no-plugin.sif")
    made_sif(fabric_builder.bundled(roots / "bundled"), place / "bundled.sif")
    gpu_image.image(place / "gpu.root", {f"{gpu_image.PACKAGES}/own/own.so": gpu_image.only("gfx90a")}, of="torch")
    of_vllm = {f"{gpu_image.PACKAGES}/vllm/_C.so": gpu_builder.library(gpu_builder.bundle(*gpu_builder.hip("gfx942")))}
    gpu_image.image(place / "gpu-vllm.root", of_vllm, of="torch vllm")
    fabric_builder.image(place / "torch.root")
    python_image.python(place / "torch.root", "opt/conda", *runpath("$ORIGIN/../lib"))
    python_image.torch(place / "torch.root", "opt/conda")
    python_image.environment(place / "torch.root", PATH="/opt/conda/bin:/usr/bin", LD_LIBRARY_PATH="/opt/rocm/lib")
    fabric_builder.rocm_image(place / "rocm.root", "6.2.4", "vllm-0.10.1")
    members = []
    for path in sorted(good.rglob("*")):
        name, is_file = path.relative_to(good).as_posix(), path.is_file()
        members.append(
            oci_builder.member(name, path.read_bytes() if is_file else None, mode=path.stat().st_mode & 0o777)
        )
    layer = oci_builder.tar(*members)
    oci_builder.image(layer).write_folder(place / "layout")
    oci_builder.image(layer).write_tar(place / "layout.tar")
    oci_builder.docker_save(place / "saved.tar", layer)
    damaged = oci_builder.image(layer)
    damaged.files["index.json"] = damaged.files["index.json"].replace(b"sha256:", b"sha256:0", 1)
    damaged.write_folder(place / "damaged-layout")
    whole = (place / "image.sif").read_bytes()
    broken = {
        "empty.sif": b"",
        "cut.sif": whole[: len(whole) // 2],
        "noise.sif": bytes(range(256)) * 64,
        "text.sif": b"no image\n",
    }
    broken["cut.tar"] = (place / "saved.tar").read_bytes()[:5000]
    for name, content in broken.items():
        (place / name).write_bytes(content)
    (place / "empty.root").mkdir()
    for name, node, taken in (("before", november, "2025-11-20T10:00:00Z"), ("host", january, "2026-01-24T10:00:00Z")):
        made = fabric_builder.snapshot(node(roots / name), taken=taken)
        shutil.copy(made, place / f"{name}.json")
    (place / "Dockerfile.rocm").write_text(DOCKERFILE)
    (place / "requirements.txt").write_text("einops==0.8.1\ntqdm>=4\n")
    lock = (FIXTURES / "written" / "0.1.0" / "lumiimg.lock").read_text("utf-8")
    (place / "lumiimg.lock").write_text(lock)
    (place / "other.lock").write_text(lock.replace('version = "1', 'version = "2', 1))


# -- one version runs all lines: a process that has imported it, and forks for each line --


def run_all(tree: Path, asked: list[str], result: Path) -> None:
    """Run lines with the package of a tree, one on each core, and write their records."""
    sys.path.insert(0, str(tree))
    import lumiimg
    from lumiimg.cli.main import run

    for module in pkgutil.walk_packages(lumiimg.__path__, "lumiimg."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()
    running: set[int] = set()
    for number, line in enumerate(asked):
        if len(running) >= (os.cpu_count() or 1):
            running.discard(os.wait()[0])
        child = os.fork()
        if child == 0:
            try:
                _run_line(shlex.split(line), Kept(number), run)
            finally:
                os._exit(0)
        running.add(child)
    for _ in running:
        os.wait()
    result.write_text(json.dumps([_record(line, Kept(number)) for number, line in enumerate(asked)], indent=1))


class Kept:
    """Where a line runs, and where its home and what it prints are."""

    def __init__(self, number: int) -> None:
        self.here = PLACE / "inputs" / f"line-{number:03}"
        self.beside = PLACE / "kept" / f"line-{number:03}"
        self.home, self.code = self.beside / "home", self.beside / "code"
        self.out, self.err = self.beside / "out", self.beside / "err"

    def masked(self, text: str) -> str:
        for path, name in ((self.here, "HERE"), (self.beside, "BESIDE"), (PLACE, "PLACE")):
            text = text.replace(str(path), name)
        for pattern, name in _MASKS:
            text = pattern.sub(name, text)
        return text


def _run_line(words: list[str], kept: Kept, run: Callable[[], object]) -> None:
    """Run one line in a child process that ends with it."""
    for folder in (kept.here, kept.home):
        folder.mkdir(parents=True)
    os.chdir(kept.here)
    os.environ["HOME"] = str(kept.home)
    standard_input = "/dev/null"
    if "<" in words:
        words, standard_input = words[:-2], words[-1]
    os.dup2(os.open(standard_input, os.O_RDONLY), 0)
    for number, path in ((1, kept.out), (2, kept.err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), number)
    signal.alarm(LIMIT_S)
    sys.argv = ["lumiimg", *words]
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    kept.code.write_text(str(code))


def _record(line: str, kept: Kept) -> Record:
    code, out, err = (
        kept.masked(path.read_text("utf-8", "backslashreplace") if path.exists() else "")
        for path in (kept.code, kept.out, kept.err)
    )
    files: Record = {}
    for folder in (kept.here, kept.home):
        for path in sorted(folder.rglob("*")):
            name = f"{folder.name}/{path.relative_to(folder)}" if folder == kept.home else str(path.relative_to(folder))
            if ".cache" in path.parts:  # uv names its files by chance
                continue
            if path.is_symlink():
                files[name] = {"link": kept.masked(str(path.readlink()))}
            elif path.is_file():
                files[name] = _file(path.read_bytes(), kept)
    named = re.sub(r"( --mirror \S+)+", " --mirror …", line)
    return {"line": named, "code": code or "none", "out": out, "err": err, "files": files}


def _file(content: bytes, kept: Kept) -> Record:
    try:
        text = kept.masked(content.decode())
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(content).hexdigest()}
    shown = {"text": text} if len(text) <= LETTERS_OF_FILE else {}
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), **shown}


# -- two results beside each other --


def differences(old: list[Record], new: list[Record]) -> Iterator[tuple[str, str]]:
    """Yield each line whose answer differs, and how."""
    before, after = ({record["line"]: record for record in records} for records in (old, new))
    for line, record in before.items():
        if line not in after:
            yield line, "  only in the first result"
        elif told := list(_of_line(record, after[line])):
            yield line, "\n".join(told)
    for line in after.keys() - before.keys():
        yield line, "  only in the second result"


def _of_line(old: Record, new: Record) -> Iterator[str]:
    if old["code"] != new["code"]:
        yield f"  exit code {old['code']} -> {new['code']}"
    for name, title in (("out", "standard output"), ("err", "standard error")):
        yield from _of_text(title, old[name], new[name])
    for name in sorted(old["files"].keys() | new["files"].keys()):
        one, other = old["files"].get(name), new["files"].get(name)
        if one is None or other is None:
            yield f"  {name}: {'no longer' if other is None else 'also'} written"
        elif one != other:
            yield f"  {name}: other content"
            yield from _of_text(name, one.get("text", ""), other.get("text", ""))


def _of_text(title: str, old: str, new: str) -> Iterator[str]:
    """Yield how two texts differ, by lines."""
    if old == new:
        return
    changed = [*difflib.unified_diff(_rows(old), _rows(new), n=0, lineterm="")][2:]
    yield f"  {title}:"
    yield from (f"    {row[:200]}" for row in changed[:LINES_SHOWN])
    if len(changed) > LINES_SHOWN:
        yield f"    … and {len(changed) - LINES_SHOWN} more"


def _rows(text: str) -> list[str]:
    """Return the lines of a text; JSON has one for each key, in their order by name, a page one for each element."""
    try:
        return json.dumps(json.loads(text), indent=1, sort_keys=True).splitlines()
    except ValueError:
        return text.replace("><", ">\n<").splitlines()


def compare(old: Path, new: Path) -> None:
    """Print every difference, then how many lines of each verb differ."""
    records = [json.loads(path.read_text("utf-8")) for path in (old, new)]
    verbs = Counter(_verb(record["line"]) for record in records[0])
    differ: Counter[str] = Counter()
    for line, told in differences(*records):
        differ[_verb(line)] += 1
        print(f"lumiimg {line}\n{told}\n")
    for verb, count in sorted(differ.items()):
        print(f"{verb}: {count} of {verbs[verb]} lines differ")
    print(f"{differ.total()} of {verbs.total()} lines differ")


def _verb(line: str) -> str:
    return line.partition(" ")[0] or "lumiimg"


def run_both(base: str) -> None:
    """Run all lines with a commit and with the working tree, from one path after the other, and compare."""
    from tests.shared.world import World, serve, wheels_of_layers

    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short=8", base], check=True, text=True, capture_output=True
    ).stdout.strip()
    shutil.rmtree(PLACE / "inputs", ignore_errors=True)
    make_inputs(PLACE / "inputs")
    tree, wheels = PLACE / "tree", wheels_of_layers()
    # a client that has read enough is no error to show
    with contextlib.redirect_stderr(io.StringIO()), serve(World(of_layers=wheels, wheels=wheels)) as world:
        asked = PLACE / "lines.json"
        asked.write_text(json.dumps(list(lines(shlex.join(world.mirrors)))))
        results = PLACE / f"{commit}.json", PLACE / "new.json"
        for result in results:
            for old in (tree, PLACE / "kept", *(PLACE / "inputs").glob("line-*")):
                shutil.rmtree(old, ignore_errors=True)
            if result == results[0]:
                tree.mkdir()
                packed = subprocess.run([*git, "archive", commit, *PARTS], check=True, capture_output=True).stdout
                subprocess.run(["tar", "-x", "-C", tree], input=packed, check=True)
            else:
                for part in PARTS:
                    shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            words = [sys.executable, "-P", __file__, "--run", str(tree), str(asked), str(result)]
            subprocess.run(words, env=ENVIRONMENT, cwd=PLACE, check=True)
    compare(*results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="COMMIT", help="run that commit and the working tree, and compare")
    parser.add_argument("results", nargs="*", type=Path, help="two results, to be compared")
    parser.add_argument("--run", nargs=3, type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.run:
        tree, asked, result = told.run
        run_all(tree, json.loads(asked.read_text("utf-8")), result)
    elif told.base:
        run_both(told.base)
    elif len(told.results) == 2:
        compare(*told.results)
    else:
        parser.error("name a commit (--base), or two results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
