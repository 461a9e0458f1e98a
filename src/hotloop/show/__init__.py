"""Reports -> pages, terminals, servers and other tools."""
