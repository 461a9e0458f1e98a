"""pinnlab: small physics-informed solvers for 1+1 dimensional PDEs."""
