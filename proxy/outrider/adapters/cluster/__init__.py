"""The sources of members, and the client of the wire between members."""
