"""Families of models, one a file: a design, and a table of sizes (`VARIANTS`)."""
