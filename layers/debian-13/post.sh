# debootstrap brings the packages along; an image from a registry gets them here. INCLUDE and MIRROR come from the plan.
missing=()
for package in $INCLUDE; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ -n "$MIRROR" ]; then
        # The same archive from nearby, for this build and for whoever adds packages later.
        printf 'Types: deb\nURIs: %s\nSuites: trixie\nComponents: main\nSigned-By: %s\n' "$MIRROR" \
            /usr/share/keyrings/debian-archive-keyring.gpg >/etc/apt/sources.list.d/debian.sources
    fi
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
fi
apt-get clean
rm -rf /var/lib/apt/lists/*
