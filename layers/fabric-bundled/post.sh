# Build libcxi and libfabric of the host's Slingshot release, so that the image needs no library of the host. The
# headers of the NIC and of the driver stay beside libcxi: its own header includes them.
layer=fabric-bundled
# shellcheck source=layers/lib/build.sh
. "$LAYER_FILES/build.sh"

ROCM=$(find_rocm)
# The cxi provider loads libcurl by hand, from /usr/lib or /usr/lib64 and nowhere else (prov/cxi/src/cxip_curl.c), for
# collectives in the network. It is no package of the build only, so it comes before those are noted.
libcurl() { ldconfig -p | sed -n 's|.*libcurl\.so\.4 .* => ||p' | head -n 1; }
if [ -z "$(libcurl)" ]; then
    apt_get update
    apt_get install -y --no-install-recommends libcurl4 >/dev/null
fi
[ -e /usr/lib/libcurl.so.4 ] || [ -e /usr/lib64/libcurl.so.4 ] || ln -s "$(libcurl)" /usr/lib/libcurl.so.4

need_compilers
need_autotools
need python3=python3 bzip2=bzip2 \
    /usr/include/libconfig.h=libconfig-dev \
    /usr/include/uv.h=libuv1-dev \
    /usr/include/fuse/fuse.h=libfuse-dev \
    /usr/include/yaml.h=libyaml-dev \
    /usr/include/libnl3/netlink/netlink.h=libnl-3-dev \
    /usr/include/numa.h=libnuma-dev \
    /usr/include/sensors/sensors.h=libsensors-dev \
    /usr/include/json-c/json.h=libjson-c-dev
# The header is in the machine's own folder on Debian and Ubuntu, which is asked for by pkg-config.
pkg-config --exists libcurl || add_packages libcurl4-openssl-dev

unpack "$SOURCE_CASSINI_HEADERS" cassini-headers
unpack "$SOURCE_CXI_DRIVER" cxi-driver
mkdir -p "$LIBCXI_PREFIX/include" "$LIBCXI_PREFIX/share"
cp -r cassini-headers/include/. cxi-driver/include/. "$LIBCXI_PREFIX/include/"
cp -r cassini-headers/share/cassini-headers "$LIBCXI_PREFIX/share/"

rocm_flags=()
[ ! -e "$ROCM/include/hip/hip_runtime_api.h" ] || rocm_flags=(--with-rocm="$ROCM")
[ -n "${rocm_flags[*]}" ] || rocm_flags=(--with-rocm=/nowhere) # asked for /opt/rocm, it ends where that has no headers

unpack "$SOURCE_LIBCXI" libcxi
(
    cd libcxi || exit
    sed -i "s|/usr/share/cassini-headers|$LIBCXI_PREFIX/share/cassini-headers|g" utils/cxi_dump_csrs.py
    # Written for the compilers of SLES: newer ones have warnings of their own, which its -Werror would end the build
    # for.
    sh ./autogen.sh
    sh ./configure --prefix="$LIBCXI_PREFIX" --libdir="$LIBCXI_PREFIX/lib" --disable-static --without-systemd \
        --with-systemdsystemunitdir=no --with-udevrulesdir="$LIBCXI_PREFIX/lib/udev/rules.d" "${rocm_flags[@]}" \
        CPPFLAGS="-I$LIBCXI_PREFIX/include" CFLAGS="-O2 -g -Wno-error"
    forget_runpath
    make
    make install
)
search_in "$LIBCXI_PREFIX/lib"

# Without ROCr libfabric does not know memory of GPUs, and configure leaves it out where it misses the headers. It is linked,
# as in LUMI's own images: --enable-rocr-dlopen opens libhsa-runtime64.so, a name that only development packages bring.
if [ "$ROCM" = /usr ]; then
    need /usr/include/hsa/hsa.h=libhsa-runtime-dev
elif [ ! -e "$ROCM/include/hsa/hsa.h" ]; then
    fail "$ROCM/include/hsa/hsa.h is missing: without it libfabric would not know GPU memory. The base needs AMD's hsa-rocr-dev"
fi
unpack "$SOURCE_LIBFABRIC" libfabric
(
    cd libfabric || exit
    # libfabric up to 1.22 asks for a flag that libcxi no longer has; a release of 2.1 or newer has no such line.
    sed -i 's/| CXI_MAP_IOVA_ALLOC//g' prov/cxi/include/cxip.h
    [ -e configure ] || sh ./autogen.sh
    # The providers of LUMI's own images: no tcp and udp, so that nothing falls back to them in silence. xpmem is left out: it
    # is for ranks of one node, has to fit the module in the host's kernel, and RCCL does not use it.
    # With the static library, which goes again below: the provider's own tests are linked with it, asked for or not.
    sh ./configure --prefix="$LIBFABRIC_PREFIX" --libdir="$LIBFABRIC_PREFIX/lib" --enable-only \
        --enable-rxm --enable-rxd --enable-shm --enable-lnx --enable-hook_hmem --enable-dmabuf_peer_mem \
        --enable-cxi="$LIBCXI_PREFIX" --with-rocr="$ROCM" CPPFLAGS="-I$LIBCXI_PREFIX/include"
    forget_runpath
    make
    make install
)
folders=("$LIBCXI_PREFIX/lib" "$LIBFABRIC_PREFIX/lib")
ldconfig -p | grep 'libhsa-runtime64\.so\.1 ' >/dev/null || folders+=("$ROCM/lib") # AMD's images leave that to LD_LIBRARY_PATH
printf '%s\n' "${folders[@]}" >/etc/ld.so.conf.d/lumiimg-fabric-bundled.conf
ldconfig
rm -f "$LIBCXI_PREFIX"/lib/*.la "$LIBFABRIC_PREFIX"/lib/*.la "$LIBFABRIC_PREFIX"/lib/*.a
for name in libcxi:"$LIBCXI_PREFIX" libfabric:"$LIBFABRIC_PREFIX"; do
    for text in LICENSE COPYING README.md; do
        [ ! -f "${name%%:*}/$text" ] || install -D -m 644 "${name%%:*}/$text" "${name#*:}/share/doc/${name%%:*}/$text"
    done
done

# Asked for by name, configure leaves the provider out where it misses something, and only says so.
grep -aq 'cxip_' "$LIBFABRIC_PREFIX/lib/libfabric.so.1" || fail "libfabric was built without its cxi provider"
readelf -d "$LIBFABRIC_PREFIX/lib/libfabric.so.1" | grep 'NEEDED.*libhsa-runtime64\.so\.1' >/dev/null ||
    fail "libfabric was built without ROCr: it would not know GPU memory"
built=("$LIBFABRIC_PREFIX/lib/libfabric.so.1" "$LIBCXI_PREFIX/lib/libcxi.so.1" "$LIBFABRIC_PREFIX/bin/fi_info")
mapfile -t -O ${#built[@]} built < <(find "$LIBCXI_PREFIX/bin" -type f)
remove_packages "${built[@]}"
check_libraries "${built[@]}"
