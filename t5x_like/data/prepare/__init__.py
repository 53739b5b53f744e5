"""From a source to a token store: cleaning, tokenising, removing duplicates, in parts that may be made anywhere."""
