"""One file per kind of report; the catalogue finds every View. Trace and tune draw what a run's report may hold."""
