"""One file per renderer, found by the catalogue in hotloop.show.report."""
