#? Only the paths below are bound: no module or profile can override them, nor the ranks' numbers and addresses
unset {SINGULARITY,APPTAINER}{_BIND,_BINDPATH,_CLEANENV,_COMPAT,_CONTAIN,_CONTAINALL,_PWD,_CWD}
unset {SINGULARITY,APPTAINER}ENV_{LD_LIBRARY_PATH,MASTER_ADDR,MASTER_PORT,LUMIIMG_JOB}
unset "${!SINGULARITYENV_@NUMBERS@_@}" "${!APPTAINERENV_@NUMBERS@_@}"
