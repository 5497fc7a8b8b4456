# "complete" images have no autotools, and not always RCCL's headers.
# shellcheck source=layers/lib/packages.sh
. "$LAYER_FILES/packages.sh"
packages=(autoconf automake libtool make pkg-config)
if [ ! -e /opt/rocm/include/rccl/rccl.h ]; then
    packages+=(rccl-dev)
elif ! said=$(apt_get update 2>&1) && grep -q EXPKEYSIG <<<"$said"; then
    # With a key that has expired since the image was made, apt gets no list at all, here and in the layers above. All that
    # these want is Ubuntu's.
    for file in /etc/apt/sources.list.d/*; do
        if grep -q 'repo\.radeon\.com' "$file"; then mv "$file" "$file.disabled"; fi
    done
    echo "the key of AMD's archive in this image has expired: apt is not to ask it any more"
fi
add_packages "${packages[@]}"
