# engines take these signs in a path that is bound for their own
case $PWD in
    *[:,\\]*)
        echo "no engine binds a folder with ':', ',' or a backslash, submit from another: $PWD" >&2
        exit 2
        ;;
esac
# What belongs to this job: the files below, and what it logs of its network
export LUMIIMG_JOB="$PWD/lumiimg-@NUMBER@"
# where others may write, they must not have made it first: what is in it is run
mkdir "$LUMIIMG_JOB" 2>/dev/null || true
if [ -L "$LUMIIMG_JOB" ] || [ ! -O "$LUMIIMG_JOB" ]; then
    echo "cannot be made, or is somebody else's: $LUMIIMG_JOB" >&2
    exit 2
fi
chmod go-w "$LUMIIMG_JOB"
# of a job that was started again, what its first start left is not new
if [ -e "$LUMIIMG_JOB/nccl" ]; then mv "$LUMIIMG_JOB/nccl" "$LUMIIMG_JOB/nccl-before-$(date +%s)"; fi
rm -f "$LUMIIMG_JOB/ended"
mkdir -p "$LUMIIMG_JOB/nccl"
