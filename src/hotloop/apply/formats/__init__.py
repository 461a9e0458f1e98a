"""What other training libraries call a strategy: one file per format, found by hotloop.apply.interop."""
