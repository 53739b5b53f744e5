"""Token stores: a corpus tokenised once, written, checked, and read as windows or chunks of documents."""
