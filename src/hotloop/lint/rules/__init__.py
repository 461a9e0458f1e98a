"""The static checks by subject. The catalogue of hotloop.lint finds every rule in any file here; none imports another."""
