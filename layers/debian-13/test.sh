# The libraries that the checks are about are there, and the loader finds everything that they need.
for library in librccl.so.1 libamdhip64.so.5 libfabric.so.1 libnl-3.so.200; do
    path=$(ldconfig -p | sed -n "s|.*$library .* => ||p" | head -n 1)
    [ -n "$path" ] || { echo "$library is not in the loader's cache"; exit 1; }
    if ldd "$path" | grep 'not found'; then exit 1; fi
done
python3 -c 'import sys; assert sys.version_info >= (3, 11)'
