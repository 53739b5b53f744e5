"""Efficient attention: sparse, projected and compressed attention for long sequences.

The cores are those of BigBird, Linformer and T-DMCA, and each has the family of its paper.
"""
