"""One file per target; the catalogue of hotloop.export finds them."""
