"""The local page over a folder of runs: a list, a run while it trains, reports and comparisons."""
