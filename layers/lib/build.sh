# shellcheck shell=bash
# What the layers have in common that build C and C++ from an archive. The caller sets `layer` (its name).
if ! declare -F add_packages >/dev/null; then
    # shellcheck source=layers/lib/packages.sh
    . "$LAYER_FILES/packages.sh"
fi

fail() {
    echo "${layer:-build}: $*" >&2
    exit 1
}

# Unpack ARCHIVE as the folder NAME, whatever its own top folder is called.
unpack() {
    local archive=$1 folder=$2 top
    mkdir "$folder.unpacked"
    # The ids in an archive need not exist in a user namespace.
    tar --no-same-owner -xf "$archive" -C "$folder.unpacked"
    top=("$folder.unpacked"/*)
    if [ ${#top[@]} -ne 1 ] || [ ! -d "${top[0]}" ]; then fail "$archive has not one top folder"; fi
    rm -rf "$folder"
    mv "${top[0]}" "$folder"
    rmdir "$folder.unpacked"
}

# Add what the build needs and this image lacks, as PROGRAM=PACKAGE or /HEADER=PACKAGE, with Debian's names. What a base
# brought itself stays as it is, and outlasts the build.
need() {
    local entry missing=()
    for entry; do
        case $entry in
        /*) [ -e "${entry%%=*}" ] || missing+=("${entry#*=}") ;;
        *) command -v "${entry%%=*}" >/dev/null || missing+=("${entry#*=}") ;;
        esac
    done
    add_packages "${missing[@]}"
}

need_compilers() {
    need make=make gcc=gcc 'g++=g++' readelf=binutils /usr/include/stdlib.h=libc6-dev
}

need_autotools() {
    need autoconf=autoconf automake=automake libtoolize=libtool pkg-config=pkg-config
}

# libtool writes the folder of a library that it linked against into the file as RUNPATH, and that is searched before
# the loader's cache (ld.so(8)): the library of the build would win over the one that is bound from the host.
forget_runpath() {
    sed -i libtool -e 's/^hardcode_libdir_flag_spec=.*/hardcode_libdir_flag_spec=""/' \
        -e 's/^runpath_var=.*/runpath_var=NO_RUNPATH/'
}

# Have the loader find what lies in FOLDER, without LD_LIBRARY_PATH.
search_in() {
    local folder=$1
    echo "$folder" >"/etc/ld.so.conf.d/lumiimg-$layer.conf"
    ldconfig
}

# Ends the build if the loader does not find all that the files need. ROCm's folder need not be in the loader's cache.
check_libraries() {
    local file missing
    for file; do
        missing=$(LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${ROCM:-/opt/rocm}/lib" ldd "$file" 2>&1 |
            grep 'not found' || true)
        [ -z "$missing" ] || fail "$file: $missing"
    done
}

find_rocm() {
    if [ -d /opt/rocm ]; then echo /opt/rocm; else echo /usr; fi
}
