"""Token stores: corpora tokenised once, checked, and read as windows or as chunks of documents."""
