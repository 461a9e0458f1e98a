"""Programs that measure something with the interpreter that a recording names; torch and the standard library only."""
