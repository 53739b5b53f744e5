"""From a source to a token store: cleaning, deduplicating and tokenising, in parts that any machine can make."""
