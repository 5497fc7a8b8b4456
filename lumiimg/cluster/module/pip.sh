
# -- pip: the image is read-only, and packages in ~/.local would be visible in every other image, too --
if [ "$kind" = pip ]; then
    changes='' before='' packages=()
    for word; do
        case $before:$word in
            *:--target | *:--target=* | *:-t | *:--prefix | *:--prefix=* | *:--root | *:--root=* | *:--dry-run | *:--help | *:-h)
                changes=''
                break
                ;;
            *:install | *:uninstall) changes=${changes:-$word} ;;
            -r:* | --requirement:*) packages+=(-r "$word") ;;
            *:--requirement=*) packages+=(-r "${word#*=}") ;;
            *:-r?*) packages+=(-r "${word#-r}") ;;
            *:-* | -[cefi]:* | --constraint:* | --editable:* | --find-links:* | --*index-url:*) ;;
            *) [ -z "$changes" ] || packages+=("$word") ;;
        esac
        before=$word
    done
    if [ "$changes" = install ]; then
        [ "${#packages[@]}" -gt 0 ] || packages=(-r requirements.txt)
        printf -v command ' %q' "$image" "${packages[@]}"
        fail "the image is read-only. Use: lumiimg venv$command -o env.sqsh, then the module again with --venv env.sqsh" 2
    elif [ "$changes" = uninstall ]; then
        fail "the image is read-only: no package of it can be removed" 2
    fi
    program=$python
    set -- -m pip "$@"
fi
