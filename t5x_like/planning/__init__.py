"""Estimate a step's cost on absent hardware: compile it for a named topology and read the
program."""
