# Only what is written below is bound: nothing of a module or a profile comes over it
unset {SINGULARITY,APPTAINER}{_BIND,_BINDPATH,ENV_LD_LIBRARY_PATH}
@VARIABLES@

@FILES@

container=(
    @ENGINE@ exec
    # the folder of this job
    --bind "$LUMIIMG_JOB"
@BINDS@
    "$image"
)
