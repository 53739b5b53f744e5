"""Hostile input of every kind a user can give: a sample in `make test`, all of it in `make
test-fuzz`."""
