# Compile the probes. A compiler that was not in the image does not stay in it.
# shellcheck source=layers/lib/packages.sh
. "$LAYER_FILES/packages.sh"

target=/opt/lumiimg/netprobe
missing=()
find_compiler() {
    local name
    for name in cc gcc clang; do
        if command -v "$name"; then return; fi
    done
}
[ -n "$(find_compiler)" ] || missing+=(gcc)
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
if [ ${#missing[@]} -gt 0 ] && ! command -v apt-get >/dev/null; then
    echo "netprobe: no C compiler in this image, and no apt-get to add one: add gcc and the C library's headers before" >&2
    exit 1
fi
add_packages "${missing[@]}"

mkdir -p "$target/bin" "$target/src"
compiler=$(find_compiler)
for program in allreduce handshake rcclprobe rcclsim; do
    # -rdynamic: rcclsim stands in for HIP. -ldl: glibc before 2.34 has dlopen in a library of its own.
    "$compiler" -std=c11 -O2 -Wall -Wextra -rdynamic -o "$target/bin/$program" "$LAYER_FILES/$program.c" -ldl
done
cp "$LAYER_FILES/"*.c "$LAYER_FILES/probe.h" "$LAYER_FILES/torch_allreduce.py" "$target/src/"
chmod 755 "$target/bin/"*
chmod 644 "$target/src/"*
remove_packages "$target/bin/handshake"
