"""Decisions without IO: facts in, decisions out. No loop, clock, files, logging or chance of its own."""
