# Which network carried the traffic; the exit code of the job stays that of the step. All nodes wait
# meanwhile, so those of a large job are let go first
if [ "$@NODES@" -le @MOST@ ] && command -v lumiimg >/dev/null; then
    lumiimg log "@LOG@" || true
else
    echo "which network it used: lumiimg log @LOG@"
fi
