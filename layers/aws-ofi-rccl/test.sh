# RCCL of every generation finds the plugin under the name it looks for, and the loader finds all that the plugin needs.
lib=$PREFIX/lib
for name in librccl-net.so librccl-net-ofi.so libnccl-net.so libnccl-net-ofi.so; do
    [ -e "$lib/$name" ] || { echo "$lib/$name is missing"; exit 1; }
    [ "$lib/$name" -ef "$lib/librccl-net.so" ] || { echo "$lib/$name is another file than librccl-net.so"; exit 1; }
done
path=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${ROCM:-/opt/rocm}/lib
missing=$(LD_LIBRARY_PATH=$path ldd "$lib/librccl-net.so" | grep 'not found' || true)
# Compiled against the host's libfabric, it is whole once that is bound: nothing else may be missing.
of_host=$PREFIX/share/lumiimg/host-libfabric
[ ! -e "$of_host" ] || missing=$(grep -v 'libfabric\.so\.1 ' <<<"$missing" || true)
[ -z "$missing" ] || { echo "$missing"; exit 1; }
symbols=$(grep -aoE 'ncclNetPlugin_v[0-9]+' "$lib/librccl-net.so" | sort -u | tr '\n' ' ')
[ -n "$symbols" ] || { echo "$lib/librccl-net.so has no ncclNetPlugin_v symbol"; exit 1; }
# The probe's word is better than a name in the file. Without a network it may end at init (12), and that is no fault here.
handshake=/opt/lumiimg/netprobe/bin/handshake
if [ -x "$handshake" ] && [ ! -e "$of_host" ]; then
    code=0
    answer=$("$handshake" "$lib/librccl-net.so") || code=$?
    case $code in
    10 | 11 | 2) echo "$answer"; exit 1 ;;
    esac
fi
