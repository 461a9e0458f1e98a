"""Acts that no strategy can apply: one file each, with how to do it as its docstring."""
