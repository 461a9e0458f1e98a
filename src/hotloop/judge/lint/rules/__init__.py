"""The static checks by subject. hotloop.judge.lint finds every rule in any file here; no file imports another."""
