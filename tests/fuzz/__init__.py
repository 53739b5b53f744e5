"""Commands and readers given hostile input: a sample in `make test`, all in `make test-fuzz`."""
