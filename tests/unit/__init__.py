"""Pure code against models too simple to be wrong."""
