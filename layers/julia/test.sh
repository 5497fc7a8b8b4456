# Julia runs, is the release that was asked for, and sees the preferences of the image.
answer=$(JULIA_DEPOT_PATH=/nonexistent "$PREFIX/bin/julia" --startup-file=no -e 'print(VERSION)')
[ "$answer" = "$VERSION" ] || { echo "Julia is $answer, not $VERSION"; exit 1; }
[ -f /opt/lumiimg/julia/Project.toml ] || { echo "/opt/lumiimg/julia/Project.toml is missing"; exit 1; }
