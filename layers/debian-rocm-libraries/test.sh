# All libraries are there, of one release, and the loader finds everything that they need.
for library in libhipblas.so.3 libhipblaslt.so.1 libhipfft.so.0 libhipsolver.so.1 libhipsparse.so.4 libMIOpen.so.1 \
    librocblas.so.5 librocsolver.so.0 librocsparse.so.1 libroctracer64.so.4; do
    path=$(ldconfig -p | sed -n "s|.*$library .* => ||p" | head -n 1)
    [ -n "$path" ] || { echo "$library is not in the loader's cache"; exit 1; }
    if ldd "$path" | grep 'not found'; then exit 1; fi
done
others=$(dpkg-query -W -f '${Package} ${Version}\n' 'libroc*' 'libhip*' libmiopen1 | grep -v ' 7\.2\.4' | grep -v ' $' || true)
[ -z "$others" ] || { echo "not of ROCm 7.2.4: $others"; exit 1; }
echo "libroctracer64.so.4 is a stand-in: nothing can be traced"
