# The loader finds both libraries and all that they need, as this image's own; libfabric has the cxi provider in it, knows GPU
# memory, and has nothing to fall back to.
# Whether the provider meets a NIC is for a node.
for library in "$LIBFABRIC_PREFIX/lib/libfabric.so.1" "$LIBCXI_PREFIX/lib/libcxi.so.1"; do
    if ldd "$library" | grep 'not found'; then exit 1; fi
done
if ! ldd "$LIBFABRIC_PREFIX/lib/libfabric.so.1" | grep 'libcxi\.so\.1 => ' >/dev/null; then
    echo "libfabric does not load libcxi"
    exit 1
fi
if ! grep -aq 'cxip_' "$LIBFABRIC_PREFIX/lib/libfabric.so.1"; then
    echo "libfabric has no cxi provider"
    exit 1
fi
if ! ldd "$LIBFABRIC_PREFIX/lib/libfabric.so.1" | grep 'libhsa-runtime64\.so\.1 => ' >/dev/null; then
    echo "libfabric does not load ROCr, and would not know GPU memory"
    exit 1
fi
providers=$("$LIBFABRIC_PREFIX/bin/fi_info" --list)
if grep -Ex '(tcp|udp|sockets):' <<<"$providers"; then
    echo "libfabric could fall back to TCP in silence"
    exit 1
fi
version=$("$LIBFABRIC_PREFIX/bin/fi_info" --version | sed -n 's/^libfabric: //p')
[ "$version" = "$LIBFABRIC_VERSION" ] || { echo "libfabric is $version, not $LIBFABRIC_VERSION"; exit 1; }
if [ ! -e /usr/lib/libcurl.so.4 ] && [ ! -e /usr/lib64/libcurl.so.4 ]; then
    echo "the cxi provider would not find libcurl"
    exit 1
fi
