"""`__main__` of lumiimg.pyz: unpack what is beside it once, then run the program from there.

Compiled modules cannot be loaded out of a zip file, and lumiimg reads its layers as files. Old Pythons come here, too,
and are to be told so: nothing in this file is newer than Python 3.6.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

ARCHIVE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = "packages/"
NEEDS = (3, 11)
NEWEST = 20
MISSING_HERE = 4
NEW = ".new-"
DAY_S = 24 * 3600


def fail(what: str) -> None:
    """Leave with one line."""
    sys.stderr.write("lumiimg: " + what + "\n")
    sys.exit(MISSING_HERE)


def use_newer_python() -> None:
    """Start anew with a Python that is new enough, or leave."""
    for minor in range(NEWEST, NEEDS[1] - 1, -1):
        program = shutil.which("python3." + str(minor))
        # one that does not start (a shim for a version that is not active) is none
        if program and subprocess.call([program, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(program, [program, ARCHIVE, *sys.argv[1:]])
    here = ".".join(map(str, sys.version_info[:2]))
    fail("needs Python 3.11 or newer, and this is " + here + " (" + sys.executable + "); load a module that has one")


def places() -> "list[str]":
    """Return where to unpack: on this node, where starting takes no file system that many share; else below $HOME."""
    user = str(os.getuid())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [os.path.join(tempfile.gettempdir(), "lumiimg-" + user), os.path.join(home, "lumiimg-zipapp")]


def is_ours(folder: str) -> bool:
    """Make a folder unless it is there; whether nobody else can put anything into it, and programs may run there."""
    above = os.path.dirname(folder)
    try:
        if not os.path.isdir(above):
            os.makedirs(above)
        if not os.path.lexists(folder):
            os.mkdir(folder, 0o700)
        seen, parent = os.lstat(folder), os.stat(above)
        flags = os.statvfs(folder).f_flag
    except OSError:
        return False
    # in a folder that others may write to, and that is not sticky, they may put another in its place
    is_safe = not parent.st_mode & 0o022 or bool(parent.st_mode & stat.S_ISVTX)
    own = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o022
    return is_safe and own and not flags & (os.ST_NOEXEC | os.ST_RDONLY)


def wanted(archive: zipfile.ZipFile) -> "list[zipfile.ZipInfo]":
    """Return the files for this Python: compiled modules are there for several."""
    files = [info for info in archive.infolist() if info.filename.startswith(PACKAGES)]
    return [info for info in files if ".cpython-" not in info.filename or info.filename.endswith(EXTENSION_SUFFIXES[0])]


def is_whole(folder: str, names: "list[str]") -> bool:
    """Whether all files are there: what cleans /tmp by age may have taken some."""
    seen: set[str] = set()
    for here, _, files in os.walk(folder):
        seen.update(os.path.join(here, name) for name in files)
    return all(os.path.join(folder, name) in seen for name in names)


def remove_stale(place: str) -> None:
    """Remove what one that was killed had unpacked; others may be at it, too."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        try:
            if name.startswith(NEW) and os.lstat(path).st_mtime < time.time() - DAY_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue


def unpack(archive: zipfile.ZipFile, place: str, name: str) -> str:
    """Return the folder with the files, all of them, whoever else is unpacking at the same time."""
    files = wanted(archive)
    names = [info.filename[len(PACKAGES) :] for info in files]
    folder = os.path.join(place, name)
    if is_whole(folder, names):
        return folder
    remove_stale(place)
    new = tempfile.mkdtemp(prefix=NEW, dir=place)
    try:
        for info in files:
            archive.extract(info, new)
        if os.path.isdir(folder) and not is_whole(folder, names):
            os.rename(folder, os.path.join(new, "old"))
        os.rename(os.path.join(new, PACKAGES), folder)
    except OSError:
        if not is_whole(folder, names):  # nobody was quicker
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def main() -> None:
    """Find or make the folder, and run the program."""
    if sys.version_info < NEEDS:
        use_newer_python()
    with zipfile.ZipFile(ARCHIVE) as archive:
        name = archive.read("digest").decode("ascii") + EXTENSION_SUFFIXES[0].rpartition(".")[0]
        tried = []
        for place in places():
            if is_ours(place):
                try:
                    sys.path[0] = unpack(archive, place, name)
                    break
                except OSError as error:
                    tried.append(place + " (" + str(error.strerror) + ")")
            else:
                tried.append(place + " (not writable, not yours alone, or not for programs)")
        else:
            fail("cannot be unpacked in " + " or ".join(tried) + "; TMPDIR names a folder of your own on this node")
    import lumiimg  # it has just been unpacked
    from lumiimg.cli.main import run

    lumiimg.archive = ARCHIVE
    run()


main()
