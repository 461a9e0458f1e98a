"""One file per target; the catalogue of hotloop.show.export finds them."""
