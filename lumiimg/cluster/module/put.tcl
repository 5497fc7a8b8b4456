# Lmod puts back what a variable was before. Tcl modules do not: their pushenv came with 5.1 and loses values with a colon
# (seen with 5.2.0). Lmod 8.6 sets it in its own process, too, and would put that back
proc put {name value} {
    global env ModuleTool
    if {![info exists ModuleTool] || $ModuleTool ne {Lmod}} { return [setenv $name $value] }
    set before [array get env $name]
    pushenv $name $value
    set env($name) {}
    unset env($name)
    array set env $before
}
