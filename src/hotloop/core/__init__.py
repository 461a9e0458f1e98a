"""The vocabulary of every stage: frozen values, standard library only, no input or output."""
