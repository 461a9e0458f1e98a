"""The rules: one file each, found by the catalogue of hotloop.diagnose; a rule never imports another."""
