"""The engine with fakes at its ports: gates and a fake clock, no sleeps."""
