"""Tasks with labelled examples: columns of records become ids, ids become packed rows."""
