"""Files wherever they are: names, addresses, locks, object stores and what is written."""
