"""What a step costs on hardware that is not there: it is compiled for a named topology, and the program is read."""
