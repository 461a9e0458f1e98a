"""The static checks by subject. The catalogue of hotloop.lint finds every rule of any file here; none imports another."""
