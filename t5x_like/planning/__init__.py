"""Estimate a step's cost on absent hardware from its compiled program."""
