# ROCm is of the release that the base states, and the loader finds everything that its libraries need.
for package in libamdhip64-7 libhsa-runtime64-1 librccl1 librocm-core1; do
    version=$(dpkg-query -W -f '${Version}' "$package")
    [ "${version#7.2.4}" != "$version" ] || { echo "$package is $version, not of ROCm 7.2.4"; exit 1; }
done
for library in librccl.so.1 libamdhip64.so.7 libhsa-runtime64.so.1 librocm-core.so.1; do
    path=$(ldconfig -p | sed -n "s|.*$library .* => ||p" | head -n 1)
    [ -n "$path" ] || { echo "$library is not in the loader's cache"; exit 1; }
    if ldd "$path" | grep 'not found'; then exit 1; fi
done
