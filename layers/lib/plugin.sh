# shellcheck shell=bash
# What the two OFI net plugins have in common when they are built: unpack, find the parts, configure without RUNPATH, install
# under the names that RCCL looks for. The caller sets `layer` (its name) and `ROCM` (the folder), and has PREFIX from
# its arguments.
# shellcheck source=layers/lib/packages.sh
. "$LAYER_FILES/packages.sh"

# ROCm 5.4 to 6.4, and later rocm-systems, load librccl-net.so; 7.1 and 7.2 load libnccl-net.so; the other two are what
# NCCL_NET_PLUGIN=ofi asks for in the one and in the other.
plugin_names=(librccl-net.so librccl-net-ofi.so libnccl-net.so libnccl-net-ofi.so)

fail() {
    echo "${layer:-plugin}: $*" >&2
    exit 1
}

# Unpack ARCHIVE here and go into the folder that holds its configure script, whatever the name of its top folder.
enter_source() {
    local archive=$1 found
    mkdir source
    # The ids in an archive need not exist in a user namespace.
    tar --no-same-owner -xf "$archive" -C source
    found=$(find source -maxdepth 2 \( -name configure -o -name configure.ac \) -type f -printf '%d %h\n' | LC_ALL=C sort -n)
    [ -n "$found" ] || fail "no configure or configure.ac in $archive, nor in its top folder"
    cd "$(sed -n '1s/^[0-9]* //p' <<<"$found")" || fail "cannot enter the unpacked $archive"
}

# Whether the source's configure looks for something: what it does not ask for need not be installed.
asks_for() {
    local file
    for file in configure configure.ac m4/*.m4; do
        if [ -f "$file" ] && grep -Eq -- "$1" "$file"; then return 0; fi
    done
    return 1
}

# Set `libfabric` to the folder to build with: what the user says, the host's own, then what is in the image, a layer's
# before the distribution's.
choose_libfabric() {
    local folder
    if [ -n "$LIBFABRIC" ]; then
        libfabric=$LIBFABRIC
        return
    fi
    if [ -n "${SOURCE_HOST_LIBFABRIC:-}" ]; then
        # The ids in an archive need not exist in a user namespace.
        tar --no-same-owner -xf "$SOURCE_HOST_LIBFABRIC"
        libfabric=$PWD/libfabric
        # What it needs itself (libcxi and others) stays on the host: configure's test programs link without.
        export LDFLAGS="${LDFLAGS:-} -Wl,--allow-shlib-undefined"
        return
    fi
    for folder in /opt/libfabric /usr/local /usr; do
        libfabric=$folder
        [ ! -e "$folder/include/rdma/fabric.h" ] || return 0
    done
}

find_rocm() {
    if [ -d /opt/rocm ]; then echo /opt/rocm; else echo /usr; fi
}

# The packages that the build needs and this image lacks.
add_build_packages() {
    local missing=() libfabric=$1
    command -v make >/dev/null || missing+=(make)
    [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
    command -v readelf >/dev/null || missing+=(binutils)
    if asks_for 'CXX'; then
        command -v g++ >/dev/null || missing+=(g++)
    fi
    command -v gcc >/dev/null || missing+=(gcc)
    if [ ! -e configure ]; then
        command -v autoreconf >/dev/null || missing+=(autoconf)
        command -v automake >/dev/null || missing+=(automake)
        command -v libtoolize >/dev/null || missing+=(libtool)
    fi
    if [ ! -e "$libfabric/include/rdma/fabric.h" ]; then
        [ "$libfabric" = /usr ] || fail "$libfabric/include/rdma/fabric.h is missing: set LIBFABRIC"
        missing+=(libfabric-dev)
    fi
    if asks_for 'hwloc'; then
        [ -e /usr/include/hwloc.h ] || [ -e /usr/local/include/hwloc.h ] || missing+=(libhwloc-dev)
    fi
    # The distribution's own ROCm is completed by its packages; AMD's in /opt/rocm has its headers in its own.
    if asks_for 'hip/hip_runtime'; then
        if [ "$ROCM" = /usr ]; then
            [ -e /usr/include/hip/hip_runtime.h ] || missing+=(libamdhip64-dev)
            [ -e /usr/include/hsa/hsa.h ] || missing+=(libhsa-runtime-dev)
        elif [ ! -e "$ROCM/include/hip/hip_runtime.h" ]; then
            fail "$ROCM/include/hip/hip_runtime.h is missing: the base needs ROCm's development files"
        fi
    fi
    if asks_for 'with-rccl'; then
        if [ "$ROCM" = /usr ]; then
            [ -e /usr/include/rccl/rccl.h ] || missing+=(librccl-dev)
        elif [ ! -e "$ROCM/include/rccl/rccl.h" ]; then
            fail "$ROCM/include/rccl/rccl.h is missing: the base needs RCCL's development files"
        fi
    fi
    add_packages "${missing[@]}"
}

# libtool writes the folder of a library that it linked against, and that the loader does not search by itself, into the
# plugin as RUNPATH. That is searched before the loader's cache (ld.so(8)): the plugin would keep to the libfabric that it was
# built with, in a folder that may be gone, or that a bind of the host fills with something else. Without it the plugin takes
# the libfabric that the process has.
forget_runpath() {
    [ -f libtool ] || return 0
    sed -i libtool -e 's/^hardcode_libdir_flag_spec=.*/hardcode_libdir_flag_spec=""/' \
        -e 's/^runpath_var=.*/runpath_var=NO_RUNPATH/'
}

# One file under all names: one inode is one plugin to the loader, whichever name RCCL takes.
install_names() {
    local lib=$PREFIX/lib name system
    [ -e "$lib/librccl-net.so" ] || fail "the build installed no $lib/librccl-net.so"
    rm -f "$lib"/*.la
    for name in "${plugin_names[@]:1}"; do
        ln -sfn librccl-net.so "$lib/$name"
    done
    # ldconfig keeps a library under its SONAME only, so the other names are not in the loader's cache, and whoever sets
    # LD_LIBRARY_PATH anew would lose them. Where the C library is, the loader looks for any name (ld.so(8)).
    system=$(ldd /bin/sh | sed -n 's|.* => \(/.*\)/libc\.so\.6 .*|\1|p')
    for name in "${plugin_names[@]}"; do
        ln -sfn "$lib/librccl-net.so" "${system:?}/$name"
    done
    echo "$lib" >"/etc/ld.so.conf.d/lumiimg-$layer.conf"
    ldconfig
    # What test.sh goes by: the image has no libfabric then, it is bound.
    if [ -n "${SOURCE_HOST_LIBFABRIC:-}" ]; then
        install -D -m 644 /dev/null "$PREFIX/share/lumiimg/host-libfabric"
    fi
    for name in LICENSE LICENSE.txt NOTICE; do
        [ ! -f "$name" ] || install -D -m 644 "$name" "$PREFIX/share/doc/$layer/$name"
    done
}

# What only readelf can see is checked here, where readelf is.
check_plugin() {
    local plugin=$PREFIX/lib/librccl-net.so missing
    ! readelf -d "$plugin" | grep -E 'RPATH|RUNPATH' || fail "$plugin has a RUNPATH: it would search build-time folders first"
    readelf -W --dyn-syms "$plugin" | grep -E ' OBJECT .* ncclNetPlugin_v[0-9]+$' >/dev/null ||
        fail "$plugin exports no ncclNetPlugin_v symbol"
    missing=$(loader_complaints "$plugin")
    [ -z "$missing" ] || fail "$plugin: $missing"
}

# ROCm's own folder need not be in the loader's cache: RCCL has its libraries loaded when it loads the plugin. The host's
# libfabric is there when the image runs.
loader_complaints() {
    LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$ROCM/lib" ldd "$1" 2>&1 | grep 'not found' |
        if [ -n "${SOURCE_HOST_LIBFABRIC:-}" ]; then grep -v 'libfabric\.so\.1 ' || true; else cat; fi || true
}
