"""The static checks by subject. hotloop.lint finds every rule of any file here; none imports another."""
