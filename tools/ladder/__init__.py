"""Ladders of sizes: small models of a recipe that predict a larger one."""
