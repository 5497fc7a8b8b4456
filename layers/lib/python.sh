# shellcheck shell=bash
# What the Python layers have in common: which Python, how wheels and packages get into it, and that no CUDA comes with
# them. The caller sets `layer` (its name). The working directory must be the layer's own: packages.sh keeps its notes
# there.
if ! declare -F add_packages >/dev/null; then
    # shellcheck source=layers/lib/packages.sh
    . "$LAYER_FILES/packages.sh"
fi

venv=/opt/venv
constraints=/opt/lumiimg/constraints.txt
pinned="torch|torchvision|torchaudio|pytorch-triton-rocm|triton-rocm|triton"

# Of a layer that names for the lock what it needs, the lock is whole. So no pip asks an index: neither one that is called
# here nor one that a build starts.
[ -z "${WHEELS:-}" ] || export PIP_NO_INDEX=1 UV_OFFLINE=1

fail() {
    echo "${layer:-python}: $*" >&2
    exit 1
}

# The Python that the image's software is in: the environment of the image, else the distribution's own.
find_python() {
    local name
    if [ -x "$venv/bin/python" ]; then
        echo "$venv/bin/python"
        return
    fi
    for name in python3 python; do
        if command -v "$name"; then return; fi
    done
    fail "this image has no Python: add one in a layer before"
}

# Sets `python`: the image's own environment, made if need be, as what pip installs into the distribution's Python can
# break the distribution's tools, and Debian and Ubuntu refuse it (PEP 668).
use_venv() {
    if [ ! -x "$venv/bin/python" ]; then
        local base
        base=$(find_python)
        # Debian and Ubuntu have ensurepip in a package of its own.
        "$base" -c 'import ensurepip, venv' 2>/dev/null || add_packages python3-venv
        "$base" -m venv "$venv"
    fi
    python=$venv/bin/python
}

# Sets `python`: an environment that the base brought, /opt/venv or another that comes first on PATH; else as use_venv.
use_environment() {
    python=$(find_python)
    case $python in
    "$venv"/*) ;;
    /usr/bin/* | /bin/* | /usr/local/bin/*) use_venv ;;
    esac
}

# What triton compiles for each kernel when it first runs: a small module in C. So the compiler and Python's headers stay.
keep_compiler() {
    local headers missing=()
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || missing+=(python3-dev)
    command -v gcc >/dev/null || command -v cc >/dev/null || missing+=(gcc libc6-dev)
    [ ${#missing[@]} -gt 0 ] || return 0
    if command -v apt-get >/dev/null; then
        keep_packages "${missing[@]}"
    else
        echo "$layer: triton compiles at run time, and this image lacks (Debian's names): ${missing[*]}"
    fi
}

# Sets `python`: the one that has the image's torch, whose versions are pinned from here on.
use_torch() {
    python=$(find_python)
    "$python" -c 'import torch' || fail "$python has no torch that loads: add the layer pytorch before"
    [ -s "$constraints" ] || write_constraints
}

# The headers that a compiled module includes.
need_python_headers() {
    local headers
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || add_packages python3-dev
    [ -e "$headers/Python.h" ] || fail "$headers has no Python.h, and the distribution's python3-dev does not bring it"
}

# pip, with the pins of the image. No cache: it would stay in the image.
run_pip() {
    local options=()
    [ ! -s "$constraints" ] || options=(env PIP_CONSTRAINT="$constraints")
    "${options[@]}" "$python" -m pip --no-cache-dir --disable-pip-version-check --no-input "$@"
}

# All distributions that the environment sees, as `name==version`, names as PEP 503 writes them.
list_distributions() {
    "$python" - <<'EOF' | LC_ALL=C sort -u
import re
from importlib.metadata import distributions

for found in distributions():
    name = found.metadata["Name"]
    if name:
        print(re.sub(r"[-_.]+", "-", name).lower() + "==" + found.version)
EOF
}

# The layer's wheel files, as the lock names them. --no-deps: what belongs to them lies beside them, or is there already;
# --no-index: and nothing else can come in. A lock is whole, so nothing is unmet afterwards that was not before. Where a
# layer below brings all that this one needs, there is no file.
install_wheels() {
    local wheels=() before unmet
    [ -n "${WHEELS:-}" ] || fail "the lock has no wheels for this layer"
    mapfile -t wheels < <(find "$WHEELS" -name '*.whl' -type f 2>/dev/null | LC_ALL=C sort)
    [ ${#wheels[@]} -gt 0 ] || return 0
    before=$(missing_requirements)
    run_pip install --no-index --no-deps "${wheels[@]}"
    unmet=$(new_in "$before" "$(missing_requirements)")
    [ -z "$unmet" ] || fail "the lock leaves unmet: $unmet; the index said something else of a wheel"
    refuse_cuda
}

# The lines of the second text that the first lacks, in one line.
new_in() {
    LC_ALL=C comm -13 <(LC_ALL=C sort <<<"$1") <(LC_ALL=C sort <<<"$2") | paste -sd'|' | sed 's/|/; /g'
}

# Whether the lock has a wheel of DISTRIBUTION for this layer.
has_wheel() {
    [ -n "${WHEELS:-}" ] && [ -n "$(find "$WHEELS" -name "${1//-/_}-*.whl" -type f -print -quit)" ]
}

# What `pip check` misses. A layer that names nothing for the lock gets it as the index offers it, and that is said.
install_missing() {
    local missing=()
    mapfile -t missing < <(missing_requirements | sed 's/, which .*//')
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "$layer: not in the lock, so taken as the index offers them today: ${missing[*]}"
    pip_install "${missing[@]}"
}

# Requirements of what is installed that nothing installed meets, and whose they are: `yolk>=2, which egg 1.0 requires,
# beside yolk 1.0`. Markers and extras are pip's own reading of them.
missing_requirements() {
    "$python" - <<'EOF'
from importlib.metadata import PackageNotFoundError, distributions, version

try:
    from packaging.requirements import Requirement
except ImportError:  # pip brings its own
    from pip._vendor.packaging.requirements import Requirement

wanted = set()
for found in distributions():
    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            there = version(requirement.name)
            if requirement.specifier.contains(there, prereleases=True):
                continue
            beside = f", beside {requirement.name} {there}"
        except PackageNotFoundError:
            beside = ""
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        whose = f"{found.metadata['Name']} {found.version}"
        wanted.add(f"{requirement.name}{extras}{requirement.specifier}, which {whose} requires{beside}")
print("\n".join(sorted(wanted)), end="\n" if wanted else "")
EOF
}

# pip install, under the image's constraints: for layers that name nothing for the lock. Afterwards the torch of the
# image is still there, no CUDA, and nothing that was there before has lost what it needs: pip only warns of that.
pip_install() {
    local before after broken
    before=$(missing_requirements)
    run_pip install "$@" ||
        fail "'pip install $*' failed${WHEELS:+; beside a lock no index is asked: name it in packages of layer.toml}"
    after=$(missing_requirements)
    broken=$(new_in "$before" "$after")
    [ -z "$broken" ] || fail "'pip install $*' leaves this unmet: $broken"
    refuse_cuda
}

# Build the Python project in FOLDER with the torch of the image (its build must not get one of its own), and install
# the wheel. More arguments are pip's. A wheel that lies in $KEPT was compiled by an earlier build of this layer.
build_wheel() {
    local folder=$1 compiled=$KEPT/$1 before unmet
    shift
    before=$(missing_requirements)
    if [ -d "$compiled" ]; then
        echo "$layer: compiled before: $(ls "$compiled")"
    else
        mkdir -p "$KEPT"
        rm -rf wheels
        # With ./ before it, as pip takes a bare name for a project of its index, though a folder is there.
        run_pip wheel --no-deps --no-build-isolation --wheel-dir "$PWD/wheels" "$@" "./$folder"
        mv wheels "$compiled"
    fi
    run_pip install --no-index --no-deps "$compiled"/*.whl
    if [ -z "${WHEELS:-}" ]; then
        install_missing
        return
    fi
    unmet=$(new_in "$before" "$(missing_requirements)")
    [ -z "$unmet" ] || fail "not in the lock: $unmet; name it in packages of layer.toml"
}

# The pins of what belongs to torch. The next pip, in a layer or a user's, cannot replace it: PyPI's wheels of the same
# names are CUDA's. PyPI's `triton` is CUDA's too, and would install over the files of ROCm's, which has another name.
write_constraints() {
    mkdir -p "${constraints%/*}"
    stand_in_triton
    list_distributions | grep -E "^($pinned)==" >"$constraints" ||
        fail "no torch is installed in $python"
    grep -q '^triton==' "$constraints" || echo 'triton<0' >>"$constraints"
    chmod 644 "$constraints"
}

# What requires `triton` means the module, which ROCm's distribution brings under another name. Beside it stands a
# distribution `triton` without files, in a version that no index has: so the requirement is met, `pip check` agrees, and
# PyPI's cannot come in its place.
stand_in_triton() {
    "$python" - <<'EOF'
from importlib.metadata import PackageNotFoundError, distribution


def find(name):
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


rocm = find("pytorch-triton-rocm") or find("triton-rocm")
if rocm and not find("triton"):
    public = rocm.version.partition("+")[0]
    folder = rocm.locate_file(f"triton-{public}+rocm.dist-info")
    folder.mkdir()
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: triton\nVersion: {public}+rocm\n"
        f"Summary: No files: the module triton is of {rocm.metadata['Name']}\n"
        f"Requires-Dist: {rocm.metadata['Name']}=={public}\n",
        "INSTALLER": "lumiimg\n",
        "RECORD": "".join(f"{folder.name}/{file},,\n" for file in ("INSTALLER", "METADATA", "RECORD")),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
EOF
}

# Ends the build where CUDA came in, or the torch of the image went, and names the distributions.
refuse_cuda() {
    local found
    found=$(list_distributions | grep '^nvidia-' || true)
    [ -z "$found" ] || fail "CUDA came into the image: $(tr '\n' ' ' <<<"$found")"
    [ -s "$constraints" ] || return 0
    found=$(grep '==' "$constraints" | LC_ALL=C sort -u | LC_ALL=C comm -23 - <(list_distributions))
    [ -z "$found" ] || fail "these were replaced or removed: $(tr '\n' ' ' <<<"$found")"
    if grep -q '^triton<0' "$constraints"; then
        found=$(list_distributions | grep '^triton==' || true)
        [ -z "$found" ] || fail "CUDA's triton came into the image, over ROCm's: $found"
    fi
}

# The end of a layer: the image is checked as its test will check it, and the build's packages go, but for the libraries
# that these distributions' compiled parts load.
finish_python() {
    local name files=()
    refuse_cuda
    for name; do
        mapfile -t -O ${#files[@]} files < <(extension_files "$name")
    done
    if [ -f "$LAYER_FILES/check.py" ]; then
        install -D -m 644 "$LAYER_FILES/check.py" /opt/lumiimg/check_torch.py
    fi
    remove_packages "${files[@]}"
}

# The compiled parts of a distribution, for remove_packages.
extension_files() {
    "$python" - "$1" <<'EOF'
import sys
from importlib.metadata import distribution

for file in distribution(sys.argv[1]).files or []:
    if ".so" in file.suffixes:
        print(file.locate())
EOF
}
