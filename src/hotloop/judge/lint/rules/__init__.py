"""The static checks by subject. hotloop.judge.lint finds every rule of any file here; none imports another."""
