"""One suite per port, run for each adapter and each fake."""
