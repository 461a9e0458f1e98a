"""The vocabulary that every stage speaks: frozen values, standard library only, no input or output."""
