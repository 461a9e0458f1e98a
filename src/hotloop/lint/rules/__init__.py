"""The static checks: one file each, found by the catalogue of hotloop.lint; a rule never imports another."""
