# Lmod restores a variable's earlier value. Tcl modules do not: pushenv came with 5.1 and loses values with a colon
# (seen with 5.2.0). Lmod 8.6 also sets the variable in its own process, and would restore that value
proc put {name value} {
    global env ModuleTool
    if {![info exists ModuleTool] || $ModuleTool ne {Lmod}} { return [setenv $name $value] }
    set before [array get env $name]
    pushenv $name $value
    set env($name) {}
    unset env($name)
    array set env $before
}
